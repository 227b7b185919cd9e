//! Loads the share of a node: reads its chunks once, in the order of the files, in large reads.
//! Chunks that a kept share has are copied from it.
//!
//! Threads take runs of chunks, read them into memory of their own and write them into the share.
//! The share is sealed before anyone maps it.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_host::Draft;
use forebay_io::{At, Failing, ShardFiles};
use forebay_plan::{ChunkMap, Geometry, LOAD_CHUNKS, load_threads};
use forebay_types::CHUNK_BYTES;

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
        bytes.resize(geometry.bytes as usize, 0);
        read_chunk(files, failing, &geometry, bytes)?;
        draft.write(offset, bytes)?;
        total.source += geometry.bytes;
    }
    Ok(total)
}

fn read_chunk(
    files: &ShardFiles,
    failing: &Failing,
    geometry: &Geometry,
    bytes: &mut [u8],
) -> Result<(), Error> {
    let mut parts = Vec::new();
    geometry.files_of(&(0..geometry.bytes), |shard, offset, length| parts.push((shard, offset, length)));
    let mut rest = bytes;
    for (shard, offset, length) in parts {
        let (into, behind) = std::mem::take(&mut rest).split_at_mut(length as usize);
        rest = behind;
        let at = At { shard, offset, direct: false };
        failing.read(files, false, (at.shard, at.offset), &mut [], into)?;
    }
    Ok(())
}
