//! Makes a tier look as if all chunks of its first source had been copied: `fill_log LEVEL CHUNKS`.
//!
//! `LEVEL` is the `v1` directory of a tier without a daemon, in which a loader has copied something
//! of a source that is all zeros. The slabs are sparse, so the copies take no space.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use forebay_tier::{CopyRecord, Log, MAX_SLOTS, PieceSum, Record};
use forebay_types::{CHUNK_BYTES, PIECE_BYTES, PIECES};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, level, chunks] = arguments.as_slice() else { return Err("expected LEVEL CHUNKS".into()) };
    let (level, chunks) = (Path::new(level), chunks.parse::<u64>()?);
    // The slabs that are there hold a part of the chunks, in an order of their own.
    for slab in std::fs::read_dir(level.join("slabs"))? {
        std::fs::remove_file(slab?.path())?;
    }
    let (mut boot, mut source) = (None, None);
    let mut next_slab = 0;
    let mut keep = |record| match record {
        Record::Boot { .. } => boot = Some(record),
        Record::Source { number: 0, .. } => source = Some(record),
        Record::Slab { slab, .. } | Record::SlabGone { slab } => next_slab = next_slab.max(slab + 1),
        _ => {}
    };
    let (mut log, _) = Log::open(File::open(level)?.as_fd(), level, &mut keep)?;
    let (Some(boot), Some(source)) = (boot, source) else {
        return Err("expected a source in the log".into());
    };
    let crc = crc32c::crc32c(&vec![0; PIECE_BYTES as usize]);
    let sum = |piece: u8| PieceSum {
        piece,
        start: u32::from(piece) * PIECE_BYTES as u32,
        bytes: PIECE_BYTES as u32,
        crc,
    };
    let sums: Vec<PieceSum> = (0..PIECES as u8).map(sum).collect();
    let slots = u64::from(MAX_SLOTS);
    let slab_of = |chunk: u64| next_slab + (chunk / slots) as u32;
    for slab in next_slab..=slab_of(chunks - 1) {
        let file = File::create_new(level.join(format!("slabs/{slab:06}")))?;
        file.set_len(slots * CHUNK_BYTES)?;
    }
    let records = (0..chunks).flat_map(|chunk| {
        let (slab, slot) = (slab_of(chunk), (chunk % slots) as u16);
        let copy = CopyRecord { slab, slot, source: 0, chunk, sums: sums.clone() };
        // As the daemon does for each chunk.
        let new = (slot == 0).then_some(Record::Slab { slab, slots: slots as u16 });
        new.into_iter().chain([Record::SlotTaken { slab, slot, source: 0, chunk }, Record::Copy(copy)])
    });
    log.rewrite(&mut [source, boot].into_iter().chain(records))?;
    Ok(())
}
