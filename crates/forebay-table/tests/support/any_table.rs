//! Any bytes as a file table: an error, or a table that answers. For the fuzz target and the tests.

use std::sync::atomic::AtomicU64;

use forebay_table::{
    CopyIdentity, Identity, Next, RecordId, SharedPart, Table, TableCounter, TableError, WORD_BYTES,
    path_hash,
};

/// A table of which only the first bytes were stored: zeros up to the length that its header says.
pub fn expanded(bytes: &[u8]) -> Vec<u8> {
    const MAX_BYTES: u64 = 1 << 20;
    let mut bytes = bytes.to_vec();
    if let Some(length) = bytes.get(16..).and_then(|rest| rest.first_chunk::<8>()) {
        let length = u64::from_le_bytes(*length).min(MAX_BYTES) as usize;
        bytes.resize(length.max(bytes.len()), 0);
    }
    bytes
}

/// Reads everything that a program would; returns the number of records that answer.
pub fn read(bytes: &[u8]) -> Result<usize, TableError> {
    let chunks = bytes.chunks_exact(WORD_BYTES);
    let words: Vec<AtomicU64> =
        chunks.map(|word| AtomicU64::new(u64::from_le_bytes(word.try_into().unwrap()))).collect();
    let table = Table::open(&words)?;
    let shared = SharedPart::new(&words, table.layout());
    let records = table.records();
    let mut answering = 0;
    // A few records beyond the last one, too.
    for id in (0..table.layout().capacity().min(100) + 2).map(RecordId) {
        let Some(source) = records.source(id) else { continue };
        answering += 1;
        let _ = records.find(&source.identity);
        assert!(records.of_file(source.identity.device, source.identity.inode).count() <= 512);
        if let Some(copy) = records.copy(id) {
            assert!(copy.number < 1 << 56);
            if let Some(path) = table.path_of(&copy) {
                let (end, path) = path.with_zero().split_last().unwrap();
                assert!(*end == 0 && !path.contains(&0) && path.len() <= 255 + 7 + 16);
            }
            let _ = records.source_of(&copy.identity, source.identity.bytes);
            assert!(records.of_copy(copy.identity.device, copy.identity.inode).count() <= 512);
        }
        if let Some(shared) = &shared {
            shared.mark_stale(id);
            let _ = shared.is_stale(id);
        }
    }
    let _ = records.find(&Identity::default());
    let _ = records.source_of(&CopyIdentity::default(), 0);
    let _ = records.find_path(path_hash(b"/data/a"));
    for level in 0..=u8::MAX {
        let _ = table.level_state(level);
    }
    let _ = table.is_source_path(1, b"/data/a");
    if let Some(shared) = shared {
        shared.count(3, TableCounter::Programs, 1);
        let _ = shared.total(TableCounter::Programs);
        let _ = shared.stale().take(100).count();
        shared.remember_foreign(&Identity::default());
        assert!(shared.is_foreign(&Identity::default()));
        let ring = shared.wishes();
        ring.push(1, 2, 3, b"/data/a");
        let mut ticket = 0;
        for _ in 0..20 {
            match ring.read(ticket) {
                Next::Wish(wish) => assert!(wish.path().len() <= 472),
                Next::Lost(next) => {
                    assert!(next > ticket);
                    ticket = next;
                    continue;
                }
                Next::Empty => break,
                Next::Unfinished => {}
            }
            ticket += 1;
        }
    }
    Ok(answering)
}
