//! What a storage can do, measured plainly: the limit that everything else is held against.
//!
//! Each thread has its own descriptor and its own buffer, touched beforehand, and reads whole
//! blocks of one file until the time is up; nothing of the other modules is in the way. Sequential
//! kinds give each thread its own region of the file, `random` visits the blocks in a fixed
//! pseudo-random order, each once per pass. Several passes are made where the time allows, except
//! with `cold`: then the page cache is emptied of the file first and one pass ends it.
//!
//! What it does not do: bytes that are in the page cache come from there unless `cold` or `direct`
//! is asked for, and pages that another process maps or that are not yet written back stay cached
//! even then.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, PoisonError, RwLock};
use std::thread::Builder;
use std::time::{Duration, Instant};

use forebay_host::ThreadError;
use memmap2::{Mmap, MmapMut, MmapOptions};
use rustix::fs::{Advice, FileType, Mode, OFlags};

use crate::error::ReadError;
use crate::file::open::DIRECT_ALIGN_BYTES;
use crate::map::guard::{self, Watch};
use crate::map::mappings::copy_in_order;

/// How to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// pread(2) of block after block.
    Sequential,
    /// pread(2) of blocks in random order, without read-ahead.
    Random,
    /// pread(2) of block after block around the page cache.
    Direct,
    /// Copies of block after block from a mapping.
    Mmap,
}

impl LimitKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Sequential, Self::Random, Self::Direct, Self::Mmap];

    /// The name that users give.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
            Self::Direct => "direct",
            Self::Mmap => "mmap",
        }
    }
}

impl FromStr for LimitKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown kind of measurement: expected one of {names}, found {name:?}")
        })
    }
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// How to read.
    pub kind: LimitKind,
    /// Length of a read \[bytes\].
    pub block_bytes: u64,
    /// Time to measure for \[s\].
    pub seconds: f64,
    /// Threads that read at once.
    pub threads: usize,
    /// Empty the page cache of the file first, and read nothing twice.
    pub cold: bool,
    /// Memory that all threads together read into, walked through block by block \[bytes\]; at
    /// least a block per thread.
    pub pool_bytes: u64,
}

impl Default for Limit {
    /// Sequential reads of 1 MiB for a second, by one thread, into one block.
    fn default() -> Self {
        Self {
            kind: LimitKind::Sequential,
            block_bytes: 1 << 20,
            seconds: 1.0,
            threads: 1,
            cold: false,
            pool_bytes: 0,
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The file that was read.
    pub path: PathBuf,
    /// Bytes that were read \[bytes\].
    pub bytes: u64,
    /// Time from the first read to the end of the last \[s\].
    pub seconds: f64,
    /// Number of blocks that were read.
    pub reads: u64,
    /// Time of a read that half of them stay below \[ns\], to 6 %.
    pub latency_p50_ns: u64,
    /// Time of a read that 99 of 100 stay below \[ns\], to 6 %.
    pub latency_p99_ns: u64,
}

impl Measurement {
    /// Bytes per second \[MiB/s\].
    #[must_use]
    pub fn rate_mib_s(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9) / f64::from(1 << 20)
    }
}

/// Measures how fast a file can be read; of a directory, its largest file.
///
/// # Errors
/// A file that cannot be opened or read, is empty, or lies on a file system that refuses
/// `O_DIRECT` for [`LimitKind::Direct`]; blocks of no bytes, or not of whole 4096 bytes for
/// `Direct`; threads that the system refuses.
pub fn measure(path: &Path, limit: &Limit) -> Result<Measurement, ReadError> {
    let path = file_at(path)?;
    let usage = |message: String| Err(ReadError::Usage { path: path.clone(), message });
    if limit.block_bytes == 0 {
        return usage("cannot be measured in blocks of 0 bytes".into());
    }
    if limit.kind == LimitKind::Direct && !limit.block_bytes.is_multiple_of(DIRECT_ALIGN_BYTES) {
        return usage(format!(
            "cannot be read with O_DIRECT in blocks of {} bytes: expected a multiple of {DIRECT_ALIGN_BYTES}",
            limit.block_bytes
        ));
    }
    let (descriptor, file_bytes) = open(&path, false)?;
    if file_bytes == 0 {
        return usage("an empty file cannot be measured".into());
    }
    if limit.cold {
        rustix::fs::fadvise(&descriptor, 0, None, Advice::DontNeed)
            .map_err(|errno| open_error(&path, "drop from the page cache", errno.into()))?;
    }
    let block_bytes = match limit.kind {
        LimitKind::Direct => limit.block_bytes.min(file_bytes.next_multiple_of(DIRECT_ALIGN_BYTES)),
        _ => limit.block_bytes.min(file_bytes),
    };
    let blocks = (file_bytes / block_bytes).max(1);
    let threads = (limit.threads.max(1) as u64).min(blocks);
    let pool_blocks = (limit.pool_bytes / block_bytes / threads).max(1);
    let jobs = (0..threads)
        .map(|number| {
            let (from, end) = match limit.kind {
                LimitKind::Random => (number, blocks),
                _ => (number * blocks / threads, (number + 1) * blocks / threads),
            };
            let stride = if limit.kind == LimitKind::Random { threads } else { 1 };
            Job::new(&path, limit, Walk { from, end, stride, blocks }, block_bytes, file_bytes, pool_blocks)
        })
        .collect::<Result<Vec<_>, _>>()?;

    let time = Duration::try_from_secs_f64(limit.seconds).unwrap_or(Duration::ZERO);
    let mut total: Option<Outcome> = None;
    for outcome in run_all(jobs, time)? {
        let outcome = outcome.map_err(|source| open_error(&path, "read", source))?;
        match &mut total {
            Some(total) => total.add(&outcome),
            None => total = Some(outcome),
        }
    }
    let total = total.expect("there is at least one thread");
    Ok(Measurement {
        bytes: total.bytes,
        seconds: (total.ended - total.begun).as_secs_f64(),
        reads: total.latencies.count,
        latency_p50_ns: total.latencies.quantile(0.5),
        latency_p99_ns: total.latencies.quantile(0.99),
        path,
    })
}

/// Runs all jobs at once, each in a thread of its own. Fewer threads than were asked for would
/// measure something else, so one that cannot be started is an error.
fn run_all(jobs: Vec<Job>, time: Duration) -> Result<Vec<io::Result<Outcome>>, ReadError> {
    let threads = jobs.len();
    let barrier = Barrier::new(threads);
    let given_up = AtomicBool::new(false);
    // Held while threads start: none reaches the barrier before it is known that all will.
    let starting = RwLock::new(());
    std::thread::scope(|scope| {
        let held = starting.write().unwrap_or_else(PoisonError::into_inner);
        let mut handles = Vec::with_capacity(threads);
        for mut job in jobs {
            let (barrier, given_up, starting) = (&barrier, &given_up, &starting);
            let run = move || {
                guard::unblock();
                drop(starting.read());
                if given_up.load(Ordering::Relaxed) {
                    return Err(io::Error::from(io::ErrorKind::Interrupted));
                }
                barrier.wait();
                job.run(time)
            };
            match Builder::new().name("forebay-limit".into()).spawn_scoped(scope, run) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    given_up.store(true, Ordering::Relaxed);
                    let what = format_args!("thread {} of {threads} that read", handles.len() + 1);
                    return Err(ReadError::Threads(ThreadError::new(what, &error)));
                }
            }
        }
        drop(held);
        Ok(handles.into_iter().map(|handle| handle.join().expect("measuring does not panic")).collect())
    })
}

/// The blocks that one thread visits: places `from`, `from + stride`, ... below `end`.
struct Walk {
    from: u64,
    end: u64,
    stride: u64,
    blocks: u64,
}

/// What one thread does.
struct Job {
    kind: LimitKind,
    cold: bool,
    walk: Walk,
    block_bytes: usize,
    file_bytes: u64,
    descriptor: OwnedFd,
    mapping: Option<(Watch, Mmap)>,
    pool: MmapMut,
}

struct Outcome {
    begun: Instant,
    ended: Instant,
    bytes: u64,
    latencies: Latencies,
}

impl Outcome {
    fn add(&mut self, other: &Self) {
        self.begun = self.begun.min(other.begun);
        self.ended = self.ended.max(other.ended);
        self.bytes += other.bytes;
        self.latencies.add(&other.latencies);
    }
}

impl Job {
    fn new(
        path: &Path,
        limit: &Limit,
        walk: Walk,
        block_bytes: u64,
        file_bytes: u64,
        pool_blocks: u64,
    ) -> Result<Self, ReadError> {
        let (descriptor, _) = open(path, limit.kind == LimitKind::Direct)?;
        let map_error = |bytes| move |source| ReadError::Map { path: path.to_owned(), bytes, source };
        let mapping = match limit.kind {
            LimitKind::Mmap => {
                // SAFETY: read-only and shared; what is copied from it is not interpreted, and
                // counts only where no page was lost meanwhile.
                let mapping =
                    unsafe { MmapOptions::new().len(file_bytes as usize).map(descriptor.as_raw_fd()) };
                let mapping = mapping.map_err(map_error(file_bytes))?;
                Some((Watch::new(&mapping), mapping))
            }
            LimitKind::Random => {
                // May be refused (some network file systems); then read-ahead is part of what is
                // measured.
                let _ = rustix::fs::fadvise(&descriptor, 0, None, Advice::Random);
                None
            }
            LimitKind::Sequential | LimitKind::Direct => None,
        };
        let pool_bytes = block_bytes * pool_blocks;
        let mut pool = MmapMut::map_anon(pool_bytes as usize).map_err(map_error(pool_bytes))?;
        pool.fill(1);
        Ok(Self {
            kind: limit.kind,
            cold: limit.cold,
            walk,
            block_bytes: block_bytes as usize,
            file_bytes,
            descriptor,
            mapping,
            pool,
        })
    }

    fn run(&mut self, time: Duration) -> io::Result<Outcome> {
        let begun = Instant::now();
        let mut last = begun;
        let mut bytes = 0;
        let mut latencies = Latencies::default();
        let mut pool_at = 0;
        let scatter = Scatter::new(self.walk.blocks);
        'passes: loop {
            let mut place = self.walk.from;
            while place < self.walk.end {
                let block = if self.kind == LimitKind::Random { scatter.at(place) } else { place };
                bytes += self.read(block * self.block_bytes as u64, pool_at)?;
                let now = Instant::now();
                latencies.record((now - last).as_nanos() as u64);
                last = now;
                if now - begun >= time {
                    break 'passes;
                }
                pool_at += self.block_bytes;
                if pool_at == self.pool.len() {
                    pool_at = 0;
                }
                place += self.walk.stride;
            }
            if self.cold {
                break;
            }
        }
        Ok(Outcome { begun, ended: last, bytes, latencies })
    }

    fn read(&mut self, offset: u64, pool_at: usize) -> io::Result<u64> {
        let into = &mut self.pool[pool_at..pool_at + self.block_bytes];
        if let Some((watch, mapping)) = &self.mapping {
            copy_in_order(&mapping[offset as usize..offset as usize + into.len()], into);
            if watch.is_lost() {
                let lost = "a page of the file was lost: it became shorter or cannot be read";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, lost));
            }
            return Ok(into.len() as u64);
        }
        let wanted = (self.file_bytes - offset).min(into.len() as u64) as usize;
        let mut done = 0;
        while done < wanted {
            match rustix::io::pread(&self.descriptor, &mut into[done..], offset + done as u64) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter")),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(done as u64)
    }
}

/// A fixed permutation of `0 .. blocks` that looks random: invertible mixing of the bits of a
/// number below the next power of two, applied again while the result is not below `blocks`.
struct Scatter {
    blocks: u64,
    mask: u64,
    shift: u32,
}

impl Scatter {
    fn new(blocks: u64) -> Self {
        let mask = blocks.next_power_of_two() - 1;
        Self { blocks, mask, shift: (mask.count_ones() / 2).max(1) }
    }

    fn at(&self, place: u64) -> u64 {
        // Odd multipliers (of splitmix64) and xor-shifts are invertible modulo a power of two.
        let mut block = place;
        loop {
            for factor in [0xBF58_476D_1CE4_E5B9_u64, 0x94D0_49BB_1331_11EB, 0x9E37_79B9_7F4A_7C15] {
                block = block.wrapping_add(0x632B_E59B).wrapping_mul(factor) & self.mask;
                block ^= block >> self.shift;
            }
            if block < self.blocks {
                return block;
            }
        }
    }
}

/// Counts of latencies, in 16 steps per power of two.
struct Latencies {
    count: u64,
    counts: Box<[u64; 64 * 16]>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { count: 0, counts: Box::new([0; 64 * 16]) }
    }
}

impl Latencies {
    fn record(&mut self, ns: u64) {
        let ns = ns.max(16);
        let power = ns.ilog2();
        let step = (ns >> (power - 4)) & 15;
        self.counts[power as usize * 16 + step as usize] += 1;
        self.count += 1;
    }

    fn add(&mut self, other: &Self) {
        self.count += other.count;
        for (own, other) in self.counts.iter_mut().zip(other.counts.iter()) {
            *own += other;
        }
    }

    /// Middle of the step that holds the quantile \[ns\].
    fn quantile(&self, quantile: f64) -> u64 {
        let wanted = (self.count as f64 * quantile).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                let power = place / 16;
                let low = (1 << power) + ((place as u64 % 16) << power >> 4);
                return low + (1_u64 << power >> 5);
            }
        }
        0
    }
}

fn file_at(path: &Path) -> Result<PathBuf, ReadError> {
    let inspect = |source| open_error(path, "inspect", source);
    if !std::fs::metadata(path).map_err(inspect)?.is_dir() {
        return Ok(path.to_owned());
    }
    let mut largest: Option<(u64, PathBuf)> = None;
    // A folder of images has its files in folders of classes. No link is followed below the first.
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).map_err(inspect)? {
            let entry = entry.map_err(inspect)?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(entry.path());
                continue;
            }
            let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
            if metadata.is_file() && largest.as_ref().is_none_or(|(bytes, _)| metadata.len() > *bytes) {
                largest = Some((metadata.len(), entry.path()));
            }
        }
    }
    largest.map(|(_, file)| file).ok_or_else(|| ReadError::Usage {
        path: path.to_owned(),
        message: "a directory without files cannot be measured".into(),
    })
}

fn open(path: &Path, direct: bool) -> Result<(OwnedFd, u64), ReadError> {
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    if direct {
        flags |= OFlags::DIRECT;
    }
    let action = if direct { "open with O_DIRECT" } else { "open for reading" };
    let error = |errno: rustix::io::Errno| open_error(path, action, errno.into());
    let descriptor = rustix::fs::open(path, flags, Mode::empty()).map_err(error)?;
    let stat = rustix::fs::fstat(&descriptor).map_err(error)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let message = "only a regular file, or a directory of them, can be measured".to_owned();
        return Err(ReadError::Usage { path: path.to_owned(), message });
    }
    Ok((descriptor, u64::try_from(stat.st_size).unwrap_or(0)))
}

fn open_error(path: &Path, action: &'static str, source: io::Error) -> ReadError {
    ReadError::Open { path: path.to_owned(), action, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_visited_once_per_pass_in_no_simple_order() {
        for blocks in [1, 2, 3, 5, 64, 1000, 4097] {
            let scatter = Scatter::new(blocks);
            let order: Vec<u64> = (0..blocks).map(|place| scatter.at(place)).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..blocks).collect::<Vec<_>>());
            let neighbours = order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() as u64;
            assert!(blocks < 64 || neighbours * 16 < blocks, "{neighbours} of {blocks} follow each other");
        }
    }

    #[test]
    fn quantiles_are_right_to_six_percent() {
        let mut latencies = Latencies::default();
        for ns in 1..=10_000 {
            latencies.record(ns * 100);
        }
        for (quantile, exact) in [(0.5, 500_000.0), (0.99, 990_000.0)] {
            let found = latencies.quantile(quantile) as f64;
            assert!((found / exact - 1.0).abs() < 0.0625, "{quantile}: {found}");
        }
    }
}
