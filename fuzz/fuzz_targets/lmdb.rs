//! Any bytes as an LMDB file: opened and walked, level by level and with a cursor, or refused.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use forebay_format::lmdb::{Cursor, Database, Value, WalkOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let file_bytes = bytes.len() as u64;
    for name in [None, Some("train")] {
        let Ok(database) = Database::from_source(Arc::new(bytes.to_vec()), Path::new("fuzzed"), name) else {
            continue;
        };
        let options = WalkOptions { threads: 1, memory_bytes: 1 << 20 };
        let header_bytes = u64::from(database.header_bytes());
        let page_bytes = u64::from(database.page_bytes());
        let check = |value| {
            let (offset, length) = match value {
                Value::Inline { offset, length } => (offset, length),
                Value::Big { page, length } => (page * page_bytes + header_bytes, length),
            };
            assert!(offset + length <= file_bytes, "a value within the file");
        };
        let _ = database.walk(&options, &|_, _| true, &mut |record| {
            check(record.value);
            Ok(())
        });
        let pages = |offset: u64, length: u64| {
            usize::try_from(offset)
                .ok()
                .and_then(|start| bytes.get(start..start.checked_add(length as usize)?))
        };
        let mut cursor = Cursor::default();
        while let Ok(Some((_, value))) = cursor.next(&database, &pages) {
            check(value);
        }
    }
});
