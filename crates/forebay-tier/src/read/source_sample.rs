//! Whether copies that earlier jobs have made are the bytes of their sources now, by a sample.
//!
//! Size and times may say that a source is the same when it is not: another image is mounted at its
//! place, or a program changed it through a mapping.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use forebay_io::ShardFiles;
use forebay_plan::{ChunkMap, Geometry};
use forebay_types::{CHUNK_BYTES, ChunkId, PIECE_BYTES, Pieces};

use crate::client::{Attached, TierClient};
use crate::read::tiered_files::good_pieces;
use crate::read_all::read_all;
use crate::source::sampled::{BLOCK_BYTES, pick, sample_blocks};
use crate::source::watch::now_ns;
use crate::table::entry::{ChunkEntry, SlotId};

/// Blocks of a dataset, at most, but one for each source.
const MAX_BLOCKS: u64 = 512;

/// Concurrent reads, each a trip to a server on a network file system.
const THREADS: usize = 16;

/// A chunk of a source that has a copy.
struct Copied {
    source: usize,
    chunk: ChunkId,
    /// Chooses a block in it.
    seed: u64,
}

/// Numbers of the sources whose copies are not their bytes, in order, as far as a sample of a block
/// in each 8 MiB shows. `go_on` says whether to read further.
pub fn differing_sources(
    client: &TierClient,
    files: &ShardFiles,
    map: &ChunkMap,
    go_on: &(dyn Fn() -> bool + Sync),
) -> Vec<usize> {
    let attached = client.attached();
    let sample = sample_of(&attached, map, now_ns() as u64);
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    let look = || {
        while let Some(copied) = sample.get(next.fetch_add(1, Ordering::Relaxed))
            && go_on()
        {
            if differs(client, &attached, files, map, copied) {
                found.lock().unwrap_or_else(PoisonError::into_inner).push(copied.source);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..THREADS.min(sample.len() / 4) {
            // Without threads the others do the work.
            let _ = thread::Builder::new().spawn_scoped(scope, look);
        }
        look();
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_unstable();
    found.dedup();
    found
}

fn sample_of(attached: &Attached, map: &ChunkMap, seed: u64) -> Vec<Copied> {
    let mut copied: Vec<Vec<ChunkId>> = Vec::new();
    let mut first = 0;
    for chunks in map.chunks_of_sources() {
        let here = (first..first + chunks).map(ChunkId);
        copied.push(here.filter(|chunk| attached.table.get(*chunk) != ChunkEntry::Absent).collect());
        first += chunks;
    }
    let blocks = |chunks: &Vec<ChunkId>| sample_blocks(chunks.len() as u64 * CHUNK_BYTES);
    let most = if copied.iter().map(blocks).sum::<u64>() > MAX_BLOCKS { 1 } else { u64::MAX };
    let of_source = |(source, chunks): (usize, &Vec<ChunkId>)| {
        let blocks = blocks(chunks).min(most);
        let chunks = chunks.clone();
        (0..blocks).map(move |number| {
            let seed = seed.wrapping_add(source as u64 * MAX_BLOCKS + number);
            Copied { source, chunk: chunks[pick(seed, 0, chunks.len() as u64) as usize], seed }
        })
    };
    copied.iter().enumerate().flat_map(of_source).collect()
}

/// Whether a block of a copy differs from its source. What cannot be read says nothing.
fn differs(
    client: &TierClient,
    attached: &Attached,
    files: &ShardFiles,
    map: &ChunkMap,
    copied: &Copied,
) -> bool {
    let (ChunkEntry::Present { at, pieces } | ChunkEntry::Unverified { at, pieces }) =
        attached.table.get(copied.chunk)
    else {
        return false;
    };
    let (Some(geometry), Some(place)) = (map.geometry(copied.chunk.0), attached.place_of(at.level)) else {
        return false;
    };
    let chosen = pick(copied.seed, 1, u64::from(pieces.count()));
    let Some(piece) = pieces.iter().nth(chosen as usize) else { return false };
    let all = geometry.bytes_of(&(piece..piece + 1));
    let blocks = (all.end - all.start).div_ceil(BLOCK_BYTES).clamp(1, PIECE_BYTES);
    let start = all.start + pick(copied.seed, 2, blocks) * BLOCK_BYTES;
    let range = start..(start + BLOCK_BYTES).min(all.end);
    let Some(source) = source_bytes(files, &geometry, &range) else { return false };
    let mut copy = vec![0; source.len()];
    let storage = &*attached.storages[place];
    let slot = SlotId { level: place as u8, ..at };
    if storage.read(slot.slab, u64::from(slot.slot) * CHUNK_BYTES + range.start, &mut copy).is_err() {
        return false;
    }
    // A copy that was damaged on its tier is found by its checksum when it is used.
    let is_sound = || {
        let Ok(unverified) = client.sums(&[copied.chunk]) else { return false };
        let known = unverified.iter().find(|found| found.chunk == copied.chunk);
        known.is_none_or(|found| {
            good_pieces(storage, slot, &found.sums, &mut Vec::new()).contains(Pieces(1 << piece))
        })
    };
    copy != source && is_sound()
}

/// Bytes of the source of a range of a chunk; none if they cannot be read.
pub(crate) fn source_bytes(
    files: &ShardFiles,
    geometry: &Geometry,
    range: &std::ops::Range<u64>,
) -> Option<Vec<u8>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let mut rest = &mut bytes[..];
    let mut is_read = true;
    geometry.files_of(range, |shard, offset, length| {
        let (into, behind) = std::mem::take(&mut rest).split_at_mut(length as usize);
        rest = behind;
        is_read &= files.ask(shard, |file| read_all(file, offset, into)).is_ok_and(|read| read.is_ok());
    });
    is_read.then_some(bytes)
}
