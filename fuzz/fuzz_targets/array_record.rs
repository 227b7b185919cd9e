//! Any bytes as an `ArrayRecord` file: as they are, and with hashes of headers that fit, as far as
//! the chunks of the first block lead.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use forebay_format::array_record;
use forebay_format::file::Input;
use forebay_format::sidecar::{IndexEntry, PartPiece};
use libfuzzer_sys::fuzz_target;

fn read(bytes: &[u8]) {
    let input = Input::from_source(Path::new("fuzzed"), Arc::new(bytes.to_vec())).expect("a file in memory");
    let _ = array_record::walk(&input, &|_| true, &mut |entry, _| {
        let check = |start: u64, length: u64| {
            let end = start.checked_add(length);
            assert!(end.is_some_and(|end| end <= bytes.len() as u64), "an extent within the file");
        };
        match entry {
            IndexEntry::Plain { start, length, .. } => check(start, length),
            IndexEntry::Exception(parts) => {
                for piece in &parts[0].pieces {
                    let PartPiece::Extent { offset, length } = piece else { panic!("an extent") };
                    check(*offset, *length);
                }
            }
        }
        Ok(())
    });
}

fn repaired(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = 64;
    while let Some(header) = bytes.get(at..at + 40).filter(|_| at < (1 << 16) - 40) {
        let hash = array_record::header_hash(&header[8..]);
        let data_bytes = u64::from_le_bytes(*header[8..].first_chunk().expect("8 bytes"));
        bytes[at..at + 8].copy_from_slice(&hash.to_le_bytes());
        let end = (at as u64 + 40).checked_add(data_bytes);
        match end.and_then(|end| usize::try_from(end).ok()) {
            Some(end) => at = end,
            None => break,
        }
    }
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    read(&repaired(bytes.to_vec()));
});
