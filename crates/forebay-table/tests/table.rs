//! A table under random operations against a plain list, and its bytes.
#![cfg(not(loom))]

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_table::{
    CopyFile, CopyIdentity, CopyStatus, Flags, Identity, Layout, Next, RecordId, RecordState, ServingState,
    Settings, SharedPart, SourceFile, SourcePrefix, Table, TableCounter, TableError, TableWriter, WORD_BYTES,
    path_hash,
};
use proptest::prelude::*;

const LEVELS: [&[u8]; 2] = [b"/scratch/forebay-0/v1", b"/dev/shm/forebay-0/v1"];

fn memory(layout: Layout) -> Vec<AtomicU64> {
    (0..layout.bytes() / WORD_BYTES).map(|_| AtomicU64::new(0)).collect()
}

fn settings() -> Settings<'static> {
    const PREFIXES: [SourcePrefix<'static>; 2] =
        [SourcePrefix { device: 9, path: b"/data/train" }, SourcePrefix { device: 10, path: b"/" }];
    Settings {
        flags: Flags { frozen: true, check: false },
        generation: 3,
        levels: &LEVELS,
        prefixes: &PREFIXES,
    }
}

fn source(inode: u64, bytes: u64) -> SourceFile {
    let identity = Identity { device: 9, inode, bytes, modified_ns: -5, changed_ns: 6 };
    SourceFile {
        identity,
        born_ns: inode.is_multiple_of(2).then_some(7),
        mode: 0o10_0644,
        user: u32::MAX,
        group: 12,
        links: 13,
        blocks: (1 << 40) - 1,
        block_bytes: 4096,
    }
}

fn copy(number: u64) -> CopyFile {
    let identity = CopyIdentity { device: 77, inode: number + 1, modified_ns: 8, changed_ns: 9 };
    CopyFile { level: 1, number, identity }
}

#[test]
fn a_table_of_100_000_files_takes_at_most_160_bytes_for_each() {
    let capacity = 100_000;
    let bytes = Layout::new(capacity, 2048).unwrap().bytes();
    assert!(bytes / capacity as usize <= 160, "{bytes}");
}

#[test]
fn a_table_of_another_version_is_refused() {
    let layout = Layout::new(1, 1).unwrap();
    let words = memory(layout);
    TableWriter::create(&words, layout, &settings()).unwrap();
    for found in [0, 1, 3] {
        words[1].store(u64::from(found), Ordering::Relaxed);
        assert_eq!(Table::open(&words).err(), Some(TableError::Version { expected: 2, found }));
    }
}

#[test]
fn a_table_has_room_for_31_devices() {
    let layout = Layout::new(40, 1).unwrap();
    let words = memory(layout);
    let mut writer = TableWriter::create(&words, layout, &settings()).unwrap();
    let on = |device| {
        let file = source(1, 1);
        SourceFile { identity: Identity { device, ..file.identity }, ..file }
    };
    let mut records = Vec::new();
    for device in 1..32 {
        records.push(writer.add(&on(device), None).unwrap());
    }
    let full = |device| Err(TableError::TooLarge { field: "device", found: device });
    assert_eq!(writer.add(&on(32), None), full(32).map(|()| RecordId(0)));
    // A device that is known takes no place; a copy is on one of them, too.
    let again = writer.add(&on(31), None).unwrap();
    writer.publish(again, &copy(0)).unwrap_err();
    assert_eq!(writer.records().state(again), RecordState::Gone);
    let copy = CopyFile { identity: CopyIdentity { device: 30, ..copy(1).identity }, ..copy(1) };
    writer.publish(records[4], &copy).unwrap();
    let table = Table::open(&words).unwrap();
    for (device, record) in (1..32).zip(&records) {
        assert_eq!(table.records().source(*record), Some(on(device)));
    }
    assert_eq!(table.records().copy(records[4]), Some(copy));
    assert_eq!(table.records().source_of(&copy.identity, 1), Some(on(5)));
}

#[test]
fn a_table_says_what_was_written_into_it() {
    let layout = Layout::new(10, 8).unwrap();
    let words = memory(layout);
    let mut writer = TableWriter::create(&words, layout, &settings()).unwrap();
    let table = Table::open(&words).unwrap();
    assert_eq!((table.layout(), table.flags()), (layout, settings().flags));

    let id = writer.add(&source(1, 100), Some(b"/data/train/a")).unwrap();
    assert_eq!(table.records().find(&source(1, 100).identity), CopyStatus::Copying(id));
    assert_eq!(table.records().find_path(path_hash(b"/data/train/a")), None);
    writer.publish(id, &copy(0xab)).unwrap();
    assert_eq!(table.records().find(&source(1, 100).identity), CopyStatus::Whole(id));
    assert_eq!(table.records().find(&source(1, 101).identity), CopyStatus::Changed);
    assert_eq!(table.records().find(&source(2, 100).identity), CopyStatus::Unknown);
    assert_eq!(table.records().find_path(path_hash(b"/data/train/a")), Some(id));
    assert_eq!(table.records().source_of(&copy(0xab).identity, 100), Some(source(1, 100)));
    assert_eq!(table.records().source_of(&copy(0xab).identity, 101), None);
    assert_eq!(table.records().of_file(9, 1).collect::<Vec<_>>(), [id]);
    let path = table.path_of(&table.records().copy(id).unwrap()).unwrap();
    assert_eq!(path.with_zero(), b"/dev/shm/forebay-0/v1/files/00000000000000ab\0");

    // A descriptor of the copy may outlive it.
    writer.advance(id, RecordState::Gone);
    assert_eq!(table.records().find(&source(1, 100).identity), CopyStatus::Unknown);
    assert_eq!(table.records().source_of(&copy(0xab).identity, 100), Some(source(1, 100)));
    writer.advance(id, RecordState::Stale);
    assert_eq!(table.records().state(id), RecordState::Gone);
    let deleted = CopyIdentity { changed_ns: 99, ..copy(0xab).identity };
    assert_eq!(table.records().source_of(&deleted, 100), None);
    assert_eq!(table.records().source_of_deleted(&deleted, 100), Some(source(1, 100)));
    let other = CopyIdentity { modified_ns: 99, ..deleted };
    assert_eq!(table.records().source_of_deleted(&other, 100), None);

    assert_eq!([0, 1, 2].map(|level| table.level_state(level)), {
        use ServingState::{Open, Out};
        [Open, Open, Out]
    });
    writer.set_level_state(1, ServingState::Out);
    assert_eq!(table.level_state(1), ServingState::Out);
    assert!(table.is_current());
    writer.retire();
    assert!(!table.is_current());
    assert_eq!(Table::open(&words).err(), Some(TableError::Retired));
}

#[test]
fn a_source_path_is_below_a_prefix_of_its_device() {
    let layout = Layout::new(1, 1).unwrap();
    let words = memory(layout);
    TableWriter::create(&words, layout, &settings()).unwrap();
    let table = Table::open(&words).unwrap();
    for (device, path, expected) in [
        (9, "/data/train", true),
        (9, "/data/train/a/b", true),
        (9, "/data/training", false),
        (9, "/data/trai", false),
        (9, "data/train/a", false),
        (10, "/data/train/a", true),
        (10, "/", true),
        (11, "/data/train/a", false),
    ] {
        assert_eq!(table.is_source_path(device, path.as_bytes()), expected, "{path}");
    }
    assert_eq!([9, 10, 11].map(|device| table.is_source_device(device)), [true, true, false]);
    let settings = Settings { prefixes: &settings().prefixes[..1], ..settings() };
    let words = memory(layout);
    TableWriter::create(&words, layout, &settings).unwrap();
    let table = Table::open(&words).unwrap();
    let paths = [&b"/data/train/a"[..], b"/data/train", b"/data/training", b"data/train/a"];
    assert_eq!(paths.map(|path| table.is_below_source(path)), [true, true, false, false]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let layout = Layout::new(1, 1).unwrap();
    let words = memory(layout);
    let long = [b'x'; 256];
    let too_long = Settings { levels: &[&long], ..settings() };
    assert!(matches!(
        TableWriter::create(&words, layout, &too_long),
        Err(TableError::Path { bytes: 256, .. })
    ));
    let words = memory(layout);
    let mut writer = TableWriter::create(&words, layout, &settings()).unwrap();
    assert!(TableWriter::create(&words, layout, &settings()).is_err(), "the memory is taken");
    assert!(TableWriter::create(&words[..8], layout, &settings()).is_err());
    for odd in [
        SourceFile { mode: 1 << 16, ..source(1, 1) },
        SourceFile { blocks: 1 << 40, ..source(1, 1) },
        SourceFile { block_bytes: 1 << 33, ..source(1, 1) },
        SourceFile { block_bytes: 513, ..source(1, 1) },
    ] {
        assert!(matches!(writer.add(&odd, None), Err(TableError::TooLarge { .. })));
    }
    let id = writer.add(&source(1, 1), None).unwrap();
    assert_eq!(writer.add(&source(2, 1), None), Err(TableError::Full));
    assert!(writer.publish(id, &CopyFile { level: 2, ..copy(1) }).is_err());
    assert!(writer.publish(id, &CopyFile { number: 1 << 56, ..copy(1) }).is_err());
    writer.publish(id, &copy(1)).unwrap();
    assert!(writer.publish(id, &copy(2)).is_err(), "a record is published once");
    for (capacity, wishes) in [(0, 1), (u32::MAX, 1), (1, 0), (1, 3), (1, 1 << 21)] {
        assert!(Layout::new(capacity, wishes).is_err());
    }
}

#[test]
fn wishes_come_in_order_and_the_oldest_are_lost() {
    let layout = Layout::new(1, 4).unwrap();
    let words = memory(layout);
    let ring = SharedPart::new(&words, layout).unwrap().wishes();
    assert_eq!(ring.read(0), Next::Empty);
    assert!(ring.push(1, 2, 3, b"/data/a"));
    let Next::Wish(wish) = ring.read(0) else { panic!("one wish") };
    assert_eq!((wish.device, wish.inode, wish.bytes, wish.path()), (1, 2, 3, &b"/data/a"[..]));
    for number in 1..9 {
        assert!(ring.push(number, 0, 0, b""));
    }
    assert_eq!(ring.read(1), Next::Lost(5));
    for number in 5..9 {
        let Next::Wish(wish) = ring.read(number) else { panic!("wish {number}") };
        assert_eq!((wish.device, wish.path()), (number, &b""[..]));
    }
    assert_eq!(ring.read(9), Next::Empty);
    assert!(!ring.push(1, 2, 3, &[b'x'; 473]));
}

#[test]
fn a_file_that_is_no_source_is_remembered_until_it_changes() {
    let layout = Layout::new(1, 1).unwrap();
    let words = memory(layout);
    let shared = SharedPart::new(&words, layout).unwrap();
    let file = source(1, 1).identity;
    assert!(!shared.is_foreign(&file));
    shared.remember_foreign(&file);
    assert!(shared.is_foreign(&file));
    for other in
        [Identity { inode: 2, ..file }, Identity { device: 1, ..file }, Identity { changed_ns: 7, ..file }]
    {
        assert!(!shared.is_foreign(&other));
    }
}

#[test]
fn counters_of_all_stripes_add_up_and_share_no_place() {
    let layout = Layout::new(1, 1).unwrap();
    let words = memory(layout);
    let shared = SharedPart::new(&words, layout).unwrap();
    let levels = (0..8).flat_map(|level| [TableCounter::Opened(level), TableCounter::OpenedBytes(level)]);
    let counters: Vec<TableCounter> =
        TableCounter::NAMED.iter().map(|(counter, _)| *counter).chain(levels).collect();
    for (number, counter) in counters.iter().enumerate() {
        for stripe in 0..20 {
            shared.count(stripe, *counter, number as u64);
        }
    }
    for (number, counter) in counters.iter().enumerate() {
        assert_eq!(shared.total(*counter), 20 * number as u64, "{counter:?}");
    }
    let names: HashSet<&str> = TableCounter::NAMED.iter().map(|(_, name)| *name).collect();
    assert_eq!(names.len(), TableCounter::NAMED.len());
}

#[test]
fn the_bytes_are_where_the_page_says() {
    let layout = Layout::new(100, 2).unwrap();
    let words = memory(layout);
    let mut writer = TableWriter::create(&words, layout, &settings()).unwrap();
    let id = writer.add(&source(0x1234, 100), Some(b"/data/train/a")).unwrap();
    writer.publish(id, &copy(0xab)).unwrap();
    let shared = SharedPart::new(&words, layout).unwrap();
    shared.count(1, TableCounter::Stats, 5);
    shared.mark_stale(RecordId(65));
    shared.wishes().push(1, 2, 3, b"/data/b");

    let file: Vec<u8> = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let u16_at = |at: usize| u16::from_le_bytes(file[at..at + 2].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    assert_eq!(&file[..8], b"FBFTABLE");
    assert_eq!((u32_at(8), u32_at(12)), (2, 1));
    assert_eq!((u64_at(16), u64_at(24)), (file.len() as u64, 3));
    assert_eq!((u64_at(32), u64_at(40), u64_at(48)), (65536, 100, 2));
    assert_eq!((u64_at(56), u64_at(64), u64_at(72)), (2, 2, 1));
    assert_eq!([256, 264, 272, 280].map(u64_at), [0, 9, 77, 0]);
    assert_eq!(u64_at(512), 0);
    assert_eq!(&file[576..598], b"/scratch/forebay-0/v1\0");
    assert_eq!(&file[896..918], b"/dev/shm/forebay-0/v1\0");
    assert_eq!(u64_at(3072), 9);
    assert_eq!(&file[3080..3092], b"/data/train\0");
    let record = 19456;
    // Whole, on the first device, with mode and user.
    assert_eq!((file[record], file[record + 1]), (3, 1));
    assert_eq!((u16_at(record + 2), u32_at(record + 4)), (0o10_0644, u32::MAX));
    assert_eq!((u64_at(record + 8), u64_at(record + 16)), (0x1234, 100));
    assert_eq!(u64_at(record + 24).cast_signed(), -5);
    assert_eq!((u64_at(record + 32), u64_at(record + 40)), (6, 7));
    assert_eq!((u32_at(record + 48), u32_at(record + 52)), (12, 13));
    assert_eq!(u64_at(record + 56), ((1 << 40) - 1) | (8 << 40));
    let hash = path_hash(b"/data/train/a").to_le_bytes();
    assert_eq!(file[record + 64..record + 80], hash);
    // On the second device.
    assert_eq!(u64_at(record + 80), 0xab | (1 << 56) | (2 << 59));
    assert_eq!(u64_at(record + 88), 0xac);
    assert_eq!((u64_at(record + 96), u64_at(record + 104)), (8, 9));
    // 150 slots in each index, after 100 records.
    let index = record + 100 * 112;
    for number in 0..3 {
        let slots = (0..150).map(|slot| u32_at(index + 600 * number + 4 * slot));
        let taken: Vec<u32> = slots.filter(|slot| *slot != 0).collect();
        assert_eq!(taken.len(), 1);
        // Seven bits hold numbers up to 100.
        assert_eq!(taken[0] & 0x7f, 1);
    }
    let part_2 = 65536;
    assert_eq!(u64_at(part_2 + 512 + 13 * 8), 5);
    assert_eq!(file[part_2 + 8192 + 65 / 8], 1 << (65 % 8));
    let ring = part_2 + 8192 + 64 + 131_072;
    assert_eq!(u64_at(ring), 1);
    let entry = ring + 64;
    assert_eq!([0, 8, 16, 24, 32].map(|at| u64_at(entry + at)), [2, 1, 2, 3, 7]);
    assert_eq!(&file[entry + 40..entry + 47], b"/data/b");
    assert_eq!(file.len(), entry + 2 * 512);
}

#[derive(Clone, Debug)]
enum Step {
    Add { inode: u64, bytes: u64, path: Option<u8> },
    Publish(usize),
    Advance(usize, RecordState),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let state = prop_oneof![Just(RecordState::Refused), Just(RecordState::Stale), Just(RecordState::Gone)];
    let step = prop_oneof![
        (0..6_u64, 0..3_u64, proptest::option::of(0..6_u8)).prop_map(|(inode, bytes, path)| Step::Add {
            inode,
            bytes,
            path
        }),
        (0..24_usize).prop_map(Step::Publish),
        (0..24_usize, state).prop_map(|(record, state)| Step::Advance(record, state)),
    ];
    proptest::collection::vec(step, 0..60)
}

/// What a plain list of (source, path, state) says of a file.
fn expected(list: &[(SourceFile, Option<u8>, RecordState)], identity: &Identity) -> CopyStatus {
    let of_file = list.iter().zip(0..).filter(|((known, ..), _)| known.identity.inode == identity.inode);
    let all = of_file.map(|((known, _, state), number)| match state {
        _ if known.identity != *identity => CopyStatus::Changed,
        RecordState::Empty | RecordState::Gone => CopyStatus::Unknown,
        RecordState::Copying => CopyStatus::Copying(RecordId(number)),
        RecordState::Refused => CopyStatus::Refused(RecordId(number)),
        RecordState::Whole => CopyStatus::Whole(RecordId(number)),
        RecordState::Stale => CopyStatus::Stale(RecordId(number)),
    });
    all.max().unwrap_or(CopyStatus::Unknown)
}

proptest! {
    #[test]
    fn a_table_is_a_list_that_one_can_look_files_up_in(steps in steps()) {
        let layout = Layout::new(20, 1).unwrap();
        let words = memory(layout);
        let mut writer = TableWriter::create(&words, layout, &settings()).unwrap();
        let table = Table::open(&words).unwrap();
        let mut list: Vec<(SourceFile, Option<u8>, RecordState)> = Vec::new();
        for step in steps {
            match step {
                Step::Add { inode, bytes, path } => {
                    let text = path.map(|path| [b'/', path]);
                    let added = writer.add(&source(inode, bytes), text.as_ref().map(|path| &path[..]));
                    if list.len() == 20 {
                        prop_assert_eq!(added, Err(TableError::Full));
                    } else {
                        prop_assert_eq!(added, Ok(RecordId(list.len() as u32)));
                        list.push((source(inode, bytes), path, RecordState::Copying));
                    }
                }
                Step::Publish(record) => {
                    let id = RecordId(record as u32);
                    let published = writer.publish(id, &copy(record as u64)).is_ok();
                    let state = list.get(record).map(|known| known.2);
                    prop_assert_eq!(published, state == Some(RecordState::Copying));
                    if published {
                        list[record].2 = RecordState::Whole;
                    }
                }
                Step::Advance(record, state) => {
                    writer.advance(RecordId(record as u32), state);
                    if let Some(known) = list.get_mut(record) {
                        known.2 = known.2.max(state);
                    }
                }
            }
            for (inode, bytes) in (0..7).flat_map(|inode| (0..3).map(move |bytes| (inode, bytes))) {
                let identity = source(inode, bytes).identity;
                prop_assert_eq!(table.records().find(&identity), expected(&list, &identity));
            }
            for path in 0..7 {
                let whole = |known: &&(SourceFile, Option<u8>, RecordState)| {
                    known.1 == Some(path) && known.2 == RecordState::Whole
                };
                let found = table.records().find_path(path_hash(&[b'/', path]));
                let one = list.iter().rfind(whole);
                prop_assert_eq!(found.and_then(|id| table.records().source(id)), one.map(|known| known.0));
            }
        }
        prop_assert_eq!(table.len(), list.len() as u64);
    }

    #[test]
    fn a_full_table_finds_all_its_records(capacity in 1_u32..2000) {
        let layout = Layout::new(capacity, 1).unwrap();
        let words = memory(layout);
        let mut writer = TableWriter::create(&words, layout, &settings()).unwrap();
        for inode in 0..u64::from(capacity) {
            let id = writer.add(&source(inode, 1), None).unwrap();
            writer.publish(id, &copy(inode)).unwrap();
        }
        let table = Table::open(&words).unwrap();
        for inode in 0..u64::from(capacity) {
            prop_assert_eq!(table.records().find(&source(inode, 1).identity), CopyStatus::Whole(RecordId(inode as u32)));
            let found = table.records().source_of(&copy(inode).identity, 1);
            prop_assert_eq!(found, Some(source(inode, 1)));
        }
        prop_assert_eq!(table.records().find(&source(u64::MAX, 1).identity), CopyStatus::Unknown);
    }
}
