//! Who sees a record's state sees the fields that it stands for, in every interleaving.
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p forebay-table --test loom_records
#![cfg(loom)]

use forebay_table::sync::atomic::AtomicU64;
use forebay_table::{
    CopyFile, CopyIdentity, CopyStatus, Identity, MAX_DEVICES, RECORD_WORDS, RecordId, RecordState, Records,
    SourceFile, index_words,
};
use loom::sync::Arc;
use loom::thread;

const CAPACITY: u32 = 2;
/// More take minutes.
const PREEMPTIONS: usize = 3;
const PATH: u128 = 7 | 9 << 64;

struct Memory {
    devices: Vec<AtomicU64>,
    records: Vec<AtomicU64>,
    indexes: Vec<AtomicU64>,
}

impl Memory {
    fn new() -> Arc<Self> {
        let zeros = |words: usize| (0..words).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self {
            devices: zeros(MAX_DEVICES),
            records: zeros(CAPACITY as usize * RECORD_WORDS),
            indexes: zeros(3 * index_words(CAPACITY)),
        })
    }

    fn records(&self) -> Records<'_> {
        Records::new(&self.devices, &self.records, &self.indexes, CAPACITY)
    }
}

fn source() -> SourceFile {
    let identity = Identity { device: 1, inode: 2, bytes: 3, modified_ns: 4, changed_ns: 5 };
    SourceFile {
        identity,
        born_ns: Some(6),
        mode: 7,
        user: 8,
        group: 9,
        links: 10,
        blocks: 11,
        block_bytes: 512,
    }
}

fn copy() -> CopyFile {
    let identity = CopyIdentity { device: 21, inode: 22, modified_ns: 23, changed_ns: 24 };
    CopyFile { level: 2, number: 25, identity }
}

fn check(records: &Records<'_>) {
    match records.find(&source().identity) {
        CopyStatus::Unknown => {}
        CopyStatus::Copying(id) => assert_eq!(records.source(id), Some(source())),
        CopyStatus::Whole(id) | CopyStatus::Stale(id) => {
            assert_eq!(records.source(id), Some(source()));
            assert_eq!(records.copy(id), Some(copy()));
            assert_eq!(records.source_of(&copy().identity, 3), Some(source()));
        }
        other => panic!("{other:?}"),
    }
    if let Some(id) = records.find_path(PATH) {
        assert_eq!(records.copy(id), Some(copy()));
    }
}

fn bounded(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(test);
}

#[test]
fn a_reader_sees_the_fields_of_a_record_that_is_being_published() {
    bounded(|| {
        let memory = Memory::new();
        // The reader is spawned, so that loom runs the daemon first: of the accesses to a word,
        // loom remembers only the last, and inserting into an index begins with a load.
        let reader = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                check(&memory.records());
                check(&memory.records());
            })
        };
        let records = memory.records();
        records.add(RecordId(0), &source(), PATH).unwrap();
        records.publish(RecordId(0), &copy()).unwrap();
        records.set_state(RecordId(0), RecordState::Stale);
        reader.join().unwrap();
        assert_eq!(records.find(&source().identity), CopyStatus::Stale(RecordId(0)));
    });
}
