//! Any bytes as the log of a tier, as they are and with sound checksums: an error, or records that a log could have been
//! written with.
#![no_main]

use std::path::Path;

use forebay_tier::log::replay;
use forebay_tier::{MAX_SLABS, MAX_SLOTS, Record};
use forebay_types::CHUNK_BYTES;
use libfuzzer_sys::fuzz_target;

/// Length of the header of a log, and of what stands before the body of a record.
const HEADER_BYTES: usize = 16;
const FRAME_BYTES: usize = 8;

fn check(record: &Record) {
    let check_place = |slab: u32, slot: u16| assert!(slab < MAX_SLABS && slot < MAX_SLOTS);
    match record {
        Record::Boot { .. }
        | Record::Source { .. }
        | Record::Used { .. }
        | Record::FileRoot { .. }
        | Record::FileRootUsed { .. }
        | Record::FileCopy(_)
        | Record::FileGone { .. }
        | Record::FileTimes { .. } => {}
        Record::Slab { slab, slots } => assert!(*slab < MAX_SLABS && (1..=MAX_SLOTS).contains(slots)),
        Record::SlabGone { slab } => assert!(*slab < MAX_SLABS),
        Record::SlotTaken { slab, slot, .. } | Record::SlotGone { slab, slot } => check_place(*slab, *slot),
        Record::Copy(copy) => {
            check_place(copy.slab, copy.slot);
            assert!((1..=16).contains(&copy.sums.len()));
            assert!(copy.sums.is_sorted_by(|before, after| before.piece < after.piece));
            for sum in &copy.sums {
                assert!(sum.piece < 16 && sum.bytes > 0);
                assert!(u64::from(sum.start) + u64::from(sum.bytes) <= CHUNK_BYTES);
            }
        }
    }
}

fn read(bytes: &[u8]) {
    let mut records = 0;
    let mut each = |record| {
        check(&record);
        records += 1;
    };
    if let Ok((replayed, end)) = replay(bytes, bytes.len() as u64, Path::new("fuzzed"), &mut each) {
        assert_eq!(replayed.records, records);
        assert_eq!(replayed.lost_bytes + end, bytes.len() as u64);
        // What is kept replays as a whole.
        let kept = &bytes[..end as usize];
        let again = replay(kept, end, Path::new("fuzzed"), &mut |_| {}).expect("a log");
        assert_eq!((again.0.records, again.0.lost_bytes, again.1), (records, 0, end));
    }
}

/// Puts a sound checksum before every body, as far as the lengths lead.
fn repaired(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut at = HEADER_BYTES;
    while let Some(length) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied() {
        let start = at + FRAME_BYTES;
        let end = start + u32::from_le_bytes(length) as usize;
        let Some(body) = bytes.get(start..end) else { break };
        let crc = crc32c::crc32c(body);
        bytes[at + 4..start].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    read(&repaired(bytes.to_vec()));
});
