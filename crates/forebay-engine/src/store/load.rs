//! Loads the share of a node: reads its chunks once, in the order of the files, in large reads.
//! Chunks that a kept share has are copied from it.
//!
//! Threads take runs of chunks, read them into memory of their own and write them into the share.
//! The share is sealed before anyone maps it.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_host::Draft;
use forebay_io::{At, Failing, ShardFiles};
use forebay_tier::{CHUNK_BYTES, ChunkMap, Geometry};

use crate::error::Error;
use crate::host::Host;
use crate::store::daemon::Found;

/// Chunks that a thread reads at a time: large reads reach all servers of a striped file.
const RUN_CHUNKS: usize = 8;

/// Threads that read from storage of other nodes, and from local storage.
const NETWORK_THREADS: usize = 8;
const LOCAL_THREADS: usize = 2;

/// Interval between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

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
    kept: Option<&Found>,
    caller: &dyn Host,
) -> Result<(OwnedFd, LoadedBytes), Error> {
    let draft = Draft::new("forebay-share", (chunks.len() as u64 * CHUNK_BYTES).max(1))?;
    let threads = if files.is_local() { LOCAL_THREADS } else { NETWORK_THREADS };
    let runs = chunks.len().div_ceil(RUN_CHUNKS);
    let next = AtomicUsize::new(0);
    let (from_source, from_kept) = (AtomicU64::new(0), AtomicU64::new(0));
    let (stopped, failing) = (AtomicBool::new(false), Failing::default());
    let failure: Mutex<Option<Error>> = Mutex::default();
    let work = || {
        let mut bytes = Vec::new();
        while !stopped.load(Ordering::Relaxed) {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= runs {
                return;
            }
            let slots = run * RUN_CHUNKS..((run + 1) * RUN_CHUNKS).min(chunks.len());
            let read = load_run(files, &failing, map, chunks, slots, kept, &draft, &mut bytes);
            match read {
                Ok(read) => {
                    from_source.fetch_add(read.source, Ordering::Relaxed);
                    from_kept.fetch_add(read.kept, Ordering::Relaxed);
                }
                Err(error) => {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    stopped.store(true, Ordering::Relaxed);
                    return;
                }
            }
        }
    };
    let all = chunks.len() as u64 * CHUNK_BYTES;
    let is_interrupted = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads.min(runs))
            .map_while(|number| {
                let thread = std::thread::Builder::new().name(format!("forebay-load-{number}"));
                thread.spawn_scoped(scope, work).ok()
            })
            .collect();
        if started.is_empty() {
            work();
        }
        let mut is_interrupted = false;
        while started.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(PROGRESS_INTERVAL);
            let read = from_source.load(Ordering::Relaxed) + from_kept.load(Ordering::Relaxed);
            if !caller.progress("load the share of this node", read.min(all), all) {
                is_interrupted = true;
                stopped.store(true, Ordering::Relaxed);
            }
        }
        is_interrupted
    });
    if is_interrupted {
        return Err(Error::Interrupted);
    }
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let loaded = LoadedBytes { source: from_source.into_inner(), kept: from_kept.into_inner() };
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
    kept: Option<&Found>,
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
