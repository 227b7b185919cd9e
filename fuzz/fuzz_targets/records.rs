//! Any bytes as a `TFRecord` file, as a `RecordIO` file with its index file, or (the checksums of lengths in order) as both.
#![no_main]

use std::path::Path;
use std::sync::Arc;

use forebay_format::file::Input;
use forebay_format::recordio::{self, IndexFile};
use forebay_format::sidecar::{IndexEntry, PartPiece};
use forebay_format::tfrecord;
use libfuzzer_sys::fuzz_target;

fn input(bytes: &[u8]) -> Input {
    Input::from_source(Path::new("fuzzed"), Arc::new(bytes.to_vec())).expect("a file in memory")
}

fn tfrecords(bytes: &[u8]) {
    let _ = tfrecord::walk(&input(bytes), &|_| true, &mut |entry| {
        let IndexEntry::Plain { start, length, .. } = entry else { panic!("a plain entry") };
        let unit = &bytes[start as usize..(start + 12 + length + 4) as usize];
        let _ = tfrecord::check_record(unit, start, Path::new("fuzzed"));
        Ok(())
    });
}

/// Puts a sound checksum behind every length, as far as they lead.
fn repaired(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while let Some(length) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).copied() {
        let Some(checksum) = bytes.get_mut(at + 8..at + 12) else { break };
        checksum.copy_from_slice(&tfrecord::masked_crc32c(&length).to_le_bytes());
        let end = (at as u64 + 16).checked_add(u64::from_le_bytes(length));
        match end.and_then(|end| usize::try_from(end).ok()) {
            Some(end) => at = end,
            None => break,
        }
    }
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    tfrecords(bytes);
    tfrecords(&repaired(bytes.to_vec()));
    let mut index = IndexFile::parse("fuzzed.idx".into(), bytes).ok();
    let mut end = 0;
    let _ = recordio::walk(&input(bytes), &|_| true, &mut |start, entry| {
        assert!(start >= end);
        let mut extent = |offset: u64, length: u64| {
            assert!(offset >= end);
            end = offset + length;
            assert!(end <= bytes.len() as u64);
        };
        match entry {
            IndexEntry::Plain { start, length, .. } => extent(start + 8, length),
            IndexEntry::Exception(parts) => {
                for piece in &parts[0].pieces {
                    let PartPiece::Extent { offset, length } = piece else { panic!("an extent") };
                    extent(*offset, *length);
                }
            }
        }
        index.as_mut().map_or(Ok(()), |index| index.check_record(start))
    });
});
