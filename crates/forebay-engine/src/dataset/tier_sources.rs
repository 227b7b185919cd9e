//! A dataset as storage tiers know it: its sources, and how their bytes are cut into chunks.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use forebay_format::{Dataset, Index};
use forebay_io::{SampleFileTable, ShardFiles};
use forebay_plan::ChunkMap;
use forebay_tier::{Source, SourceKey, SourceState, TierError, backing_identity};
use forebay_types::ShardId;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use xxhash_rust::xxh3::xxh3_128;

use crate::host::Host;

/// Concurrent requests for the times of files, each a trip to a server on a network file system.
const THREADS: usize = 16;

/// Files between two reports of progress.
const FILES_AT_ONCE: u64 = 256;

/// How the bytes of a dataset are cut.
pub(crate) fn chunk_map(files: &ShardFiles, index: &Arc<Index>) -> Result<ChunkMap, TierError> {
    if files.are_of_samples() {
        let table = Arc::clone(index);
        return ChunkMap::of_sample_files(
            SampleFileTable::len(&*table),
            Arc::new(move |file| SampleFileTable::file_bytes(&*table, file)),
        )
        .map_err(TierError::io("", "cut the dataset into chunks"));
    }
    let sizes: Vec<u64> = (0..files.len() as u32).map(|shard| files.bytes(ShardId(shard))).collect();
    Ok(ChunkMap::of_files(&sizes))
}

/// The sources of a dataset and what each file is now. Where each sample is a file, all
/// are one source with the last change of any, and each is looked at once; `caller` sees how far
/// that is.
pub(crate) fn sources(
    dataset: &Dataset,
    files: &ShardFiles,
    index: &Arc<Index>,
    map: &ChunkMap,
    caller: &dyn Host,
) -> Result<(Vec<Source>, Vec<SourceState>), TierError> {
    let chunks = map.chunks_of_sources();
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if files.are_of_samples() {
        let Times { digest, bytes, newest_ns } = folder_times(dataset, index, caller)?;
        let paths: Vec<String> =
            dataset.shards().iter().map(|shard| canonical(&shard.path).display().to_string()).collect();
        let state = SourceState { bytes, ..SourceState::default() };
        let path = paths.join(", ");
        let mut fingerprint = digest.to_le_bytes().to_vec();
        let mut backing = Backing::default();
        for shard in dataset.shards() {
            let stat =
                rustix::fs::stat(&shard.path).map_err(TierError::io(&shard.path, "inspect the folder"))?;
            fingerprint.extend(backing.of(stat.st_dev));
        }
        let key = SourceKey::new(Path::new(&path), &state, 0, &fingerprint);
        let newest = SourceState { bytes, modified_ns: newest_ns, changed_ns: newest_ns };
        return Ok((vec![Source { key, path, chunks: map.chunks(), bytes }], vec![newest]));
    }
    let mut states = Vec::with_capacity(files.len());
    let mut backing = Backing::default();
    let mut sources = Vec::with_capacity(files.len());
    for (number, (shard, chunks)) in dataset.shards().iter().zip(chunks).enumerate() {
        let path = canonical(&shard.path);
        let stat = files.stat_now(ShardId(number as u32)).map_err(TierError::io(&path, "inspect"))?;
        let state = SourceState::of(&stat);
        let mut fingerprint = shard.fingerprint.to_le_bytes().to_vec();
        fingerprint.extend(backing.of(stat.st_dev));
        let key = SourceKey::new(&path, &state, stat.st_ino, &fingerprint);
        sources.push(Source { key, path: path.display().to_string(), chunks, bytes: state.bytes });
        states.push(state);
    }
    Ok((sources, states))
}

/// What identifies the images that the devices of a dataset are read from.
#[derive(Default)]
struct Backing(HashMap<u64, Vec<u8>>);

impl Backing {
    fn of(&mut self, device: u64) -> &[u8] {
        self.0.entry(device).or_insert_with(|| backing_identity(device))
    }
}

/// Files of samples.
#[derive(Clone, Copy)]
struct Times {
    /// Of their times, sizes and inodes.
    digest: u128,
    /// Their bytes together.
    bytes: u64,
    /// The last change of any [ns since 1970].
    newest_ns: i64,
}

impl Times {
    const NONE: Self = Self { digest: 0, bytes: 0, newest_ns: i64::MIN };

    /// Files are numbered, so a sum of digests does not depend on which thread meets one first.
    fn and(self, other: Self) -> Self {
        Self {
            digest: self.digest.wrapping_add(other.digest),
            bytes: self.bytes + other.bytes,
            newest_ns: self.newest_ns.max(other.newest_ns),
        }
    }
}

/// Looks at all files of samples.
fn folder_times(dataset: &Dataset, index: &Arc<Index>, caller: &dyn Host) -> Result<Times, TierError> {
    let mut folders = Vec::new();
    for shard in dataset.shards() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&shard.path, flags, Mode::empty())
            .map_err(TierError::io(&shard.path, "open the folder"))?;
        folders.push(folder);
    }
    let table: &dyn SampleFileTable = &**index;
    let count = table.len() as u64;
    let next = AtomicU64::new(0);
    let look = || -> io::Result<Times> {
        let mut all = Times::NONE;
        loop {
            let first = next.fetch_add(FILES_AT_ONCE, Ordering::Relaxed);
            if first >= count || caller.interrupted() {
                return Ok(all);
            }
            for number in first..count.min(first + FILES_AT_ONCE) {
                let file = table.file(ShardId(number as u32))?;
                let wanted = StatxFlags::MTIME | StatxFlags::CTIME | StatxFlags::INO | StatxFlags::SIZE;
                let found =
                    rustix::fs::statx(&folders[file.shard], &file.name, AtFlags::SYMLINK_NOFOLLOW, wanted)?;
                let mut words = Vec::with_capacity(56);
                for word in [number, found.stx_ino, found.stx_size] {
                    words.extend(word.to_le_bytes());
                }
                for time in [found.stx_mtime, found.stx_ctime] {
                    words.extend(time.tv_sec.to_le_bytes());
                    words.extend(time.tv_nsec.to_le_bytes());
                }
                let state = SourceState::of_times(&found);
                let newest_ns = state.modified_ns.max(state.changed_ns);
                all = all.and(Times { digest: xxh3_128(&words), bytes: file.bytes, newest_ns });
            }
        }
    };
    let answers: Vec<io::Result<Times>> = thread::scope(|scope| {
        let threads: Vec<_> = (1..THREADS)
            .take_while(|number| *number as u64 * FILES_AT_ONCE < count)
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, look).ok())
            .collect();
        let own = look();
        let others = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that inspects files panicked")))
        });
        std::iter::once(own).chain(others).collect()
    });
    let mut all = Times::NONE;
    for answer in answers {
        all = all.and(answer.map_err(TierError::io(&dataset.shards()[0].path, "inspect files"))?);
    }
    Ok(all)
}
