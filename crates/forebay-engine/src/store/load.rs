//! Loads the share of a node: reads its chunks once, in the order of the files, in large reads.
//! Chunks that a kept share has are copied from it.
//!
//! Threads take runs of chunks, read them into memory of their own and write them into the share.
//! The share is sealed before anyone maps it.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_host::Draft;
use forebay_io::{Failing, ShardFiles};
use forebay_plan::{ChunkMap, LOAD_CHUNKS, load_threads, ranges_of_chunks};
use forebay_types::{CHUNK_BYTES, Extent};

use crate::error::Error;
use crate::host::Host;
use crate::host::parts_in_threads::{LOADS_SHARE, work_in_threads};
use crate::store::daemon::FoundShare;

/// Where the bytes of a share came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadedBytes {
    /// Read from the files.
    pub(super) source: u64,
    /// Copied from a kept share.
    pub(super) kept: u64,
}

/// Reads `chunks` into sealed memory, one slot each in this order.
pub(super) fn load(
    files: &ShardFiles,
    map: &ChunkMap,
    chunks: &[u64],
    kept: Option<&FoundShare>,
    caller: &dyn Host,
) -> Result<(OwnedFd, LoadedBytes), Error> {
    let draft = Draft::new("forebay-share", (chunks.len() as u64 * CHUNK_BYTES).max(1))?;
    let runs = chunks.len().div_ceil(LOAD_CHUNKS);
    let (from_kept, failing) = (AtomicU64::new(0), Failing::default());
    let all_bytes = chunks.len() as u64 * CHUNK_BYTES;
    let work = |run: usize, memory: &mut Vec<u8>| {
        let slots = run * LOAD_CHUNKS..((run + 1) * LOAD_CHUNKS).min(chunks.len());
        let loaded = load_run(files, &failing, map, chunks, slots, kept, &draft, memory)?;
        from_kept.fetch_add(loaded.kept, Ordering::Relaxed);
        Ok(loaded.source + loaded.kept)
    };
    let bytes = work_in_threads(runs, load_threads(files.is_local()), LOADS_SHARE, all_bytes, caller, work)?;
    let kept = from_kept.into_inner();
    let loaded = LoadedBytes { source: bytes - kept, kept };
    Ok((draft.seal()?, loaded))
}

/// Reads or copies the chunks of some slots.
#[allow(clippy::too_many_arguments)] // all that one thread needs
fn load_run(
    files: &ShardFiles,
    failing: &Failing,
    map: &ChunkMap,
    chunks: &[u64],
    slots: Range<usize>,
    kept: Option<&FoundShare>,
    draft: &Draft,
    bytes: &mut Vec<u8>,
) -> Result<LoadedBytes, Error> {
    let mut total = LoadedBytes::default();
    let (mut from_files, mut offsets) = (Vec::new(), Vec::new());
    for slot in slots {
        let geometry = map.geometry(chunks[slot]).ok_or_else(|| {
            Error::local(format!("chunk {} of the store is not in the files", chunks[slot]))
        })?;
        let offset = slot as u64 * CHUNK_BYTES;
        if let Some(bytes) = kept.and_then(|kept| kept.chunk(chunks[slot], geometry.bytes)) {
            draft.write(offset, bytes)?;
            total.kept += geometry.bytes;
            continue;
        }
        total.source += geometry.bytes;
        from_files.push(geometry);
        offsets.push(offset);
    }
    bytes.resize(total.source as usize, 0);
    let mut rest = &mut bytes[..];
    for Extent { shard, offset, length } in ranges_of_chunks(&from_files) {
        let (into, behind) = std::mem::take(&mut rest).split_at_mut(length as usize);
        rest = behind;
        failing.read(files, false, (shard, offset), &mut [], into)?;
    }
    let mut rest = &bytes[..];
    for (geometry, offset) in from_files.iter().zip(offsets) {
        let (chunk, behind) = rest.split_at(geometry.bytes as usize);
        rest = behind;
        draft.write(offset, chunk)?;
    }
    Ok(total)
}
