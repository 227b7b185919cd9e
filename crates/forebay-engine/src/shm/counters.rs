//! Counters of a rank, in shared memory so that each rank can sum those of its node.
//!
//! A slot has [`COUNTER_WORDS`] words: the named counters from the front, and a row of columns for
//! each storage level from the back. docs/metrics.md defines them and their sums.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_tier::MAX_LEVELS;

use crate::shm::block_state::{Presence, presence};
use crate::shm::region::{COUNTER_WORDS, DELIVERY_TIMES, RankSlot};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $key:literal),* $(,)?) => {
        /// The counters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter { $($(#[$doc])* $name),* }
        /// The counters and the names they have in `stats()`.
        pub const COUNTER_NAMES: &[(Counter, &str)] = &[$((Counter::$name, $key)),*];
    };
}

counters! {
    /// Batches delivered.
    Steps = "steps",
    /// Samples delivered.
    Samples = "samples",
    /// Record bytes of the samples delivered.
    RequestedBytes = "requested_bytes",
    /// Bytes read from storage or the page cache by system calls of this rank's readers.
    ReadBytes = "read_bytes",
    /// Read requests of this rank's readers.
    Reads = "reads",
    /// Requests that were made again after an interruption or a transient failure.
    Retries = "retries",
    /// Blocks that a reader could not read after all attempts.
    FailedBlocks = "failed_blocks",
    /// Bytes of blocks that were found resident and copied from the mapping.
    MmapBytes = "mmap_bytes",
    /// Bytes read straight into a batch.
    UnstagedBytes = "unstaged_bytes",
    /// Finding the units of samples \[ns\].
    LocateNs = "locate_ns",
    /// Planning \[ns\].
    PlanNs = "plan_ns",
    /// Readers inside read requests \[ns\].
    ReadNs = "read_ns",
    /// Readers decoding units, and gather threads decoding fields \[ns\].
    DecodeNs = "decode_ns",
    /// Gather threads decoding fields \[ns\].
    FieldDecodeNs = "field_decode_ns",
    /// Readers waiting for work or for memory \[ns\].
    ReaderIdleNs = "reader_idle_ns",
    /// Gathering and decoding into batches \[ns\].
    GatherNs = "gather_ns",
    /// Gather threads waiting for blocks \[ns\].
    GatherIdleNs = "gather_idle_ns",
    /// The rank waiting for a batch, without the start-up fill \[ns\].
    ExposedNs = "exposed_ns",
    /// The rank waiting for the first batch of a session \[ns\].
    StartupNs = "startup_ns",
    /// The rank between two batches \[ns\].
    ComputeNs = "compute_ns",
    /// How much later the last rank of the node got the same step \[ns\].
    SkewNs = "skew_ns",
    /// Bad samples that were replaced.
    ReplacedSamples = "replaced_samples",
    /// Batches in private memory, because the user kept all buffers or a batch was too large for
    /// one.
    HeapBatches = "heap_batches",
    /// Batches that the thread of the script filled itself.
    OwnBatches = "own_batches",
    /// Messages to other nodes, which the leader of a node sends for all its ranks.
    MessagesSent = "messages_sent",
    /// Messages from other nodes.
    MessagesReceived = "messages_received",
    /// Read tokens that readers of this rank got, where only some nodes may read at a time.
    StaggerTokens = "stagger_tokens",
    /// Bytes of the cursors that were sent to other nodes.
    CursorBytes = "cursor_bytes",
    /// Pages that were prefetched on a guess, before the cursor arrived.
    GuessedPages = "guessed_pages",
    /// Pages of samples that had been guessed.
    GuessHits = "guess_hits",
    /// Pages of samples that had not been guessed.
    GuessMisses = "guess_misses",
    /// Bytes that this process copied into tiers.
    CopiedBytes = "copied_bytes",
    /// Bytes that were to be copied into a tier and were not, for want of a copy buffer.
    UncopiedBytes = "uncopied_bytes",
    /// Bytes of the node's share in an in-memory store that the store daemon had, of the leader.
    KeptBytes = "kept_bytes",
}

/// Storage level that bytes of samples come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Pages that are resident, copied from a mapping.
    PageCache,
    /// The dataset's own files, read with system calls.
    Source,
    /// This node's share of an in-memory store.
    Share,
    /// The shares of other nodes.
    Peers,
    /// A storage tier, by its place in the user's list.
    Tier(usize),
}

/// Levels that a loader has at most.
const MOST_LEVELS: usize = FIRST_TIER + MAX_LEVELS;

/// Number of the first tier among the levels.
const FIRST_TIER: usize = LEVEL_NAMES.len() + STORE_LEVEL_NAMES.len();

impl Level {
    /// Its place among all levels: first those that every loader has, then the tiers.
    fn number(self) -> usize {
        match self {
            Self::PageCache => 0,
            Self::Source => 1,
            Self::Share => 2,
            Self::Peers => 3,
            Self::Tier(place) => FIRST_TIER + place,
        }
    }

    /// The level with this number.
    fn of(number: usize) -> Self {
        match number {
            0 => Self::PageCache,
            1 => Self::Source,
            2 => Self::Share,
            3 => Self::Peers,
            tier => Self::Tier(tier - FIRST_TIER),
        }
    }
}

/// The levels that every loader has, and the names they have in `stats()`.
pub const LEVEL_NAMES: [(Level, &str); 2] = [(Level::PageCache, "page_cache"), (Level::Source, "source")];

/// The levels that a loader with an in-memory store also has.
pub const STORE_LEVEL_NAMES: [(Level, &str); 2] = [(Level::Share, "share"), (Level::Peers, "peers")];

/// The columns of a level in `stats()`: requests that it answered, their bytes, system calls for
/// them, and requests that it could not answer, which went to the next level or failed.
pub const LEVEL_COLUMNS: [&str; 4] = ["hits", "bytes", "operations", "skipped"];

/// First word of the columns.
const FIRST_LEVEL_WORD: usize = COUNTER_WORDS - MOST_LEVELS * LEVEL_COLUMNS.len();

const _: () = assert!(COUNTER_NAMES.len() <= FIRST_LEVEL_WORD);

/// Results of requests to a level.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LevelCounts {
    pub(crate) hits: u64,
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
    pub(crate) skipped: u64,
}

/// Results of requests to all levels, which one thread collects: threads would contend for the
/// words.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CollectedCounts([LevelCounts; MOST_LEVELS]);

impl CollectedCounts {
    /// Adds a request that a level answered.
    pub(crate) fn hit(&mut self, level: Level, bytes: u64) {
        let counts = &mut self.0[level.number()];
        counts.hits += 1;
        counts.bytes += bytes;
    }

    /// Adds requests that a level could not answer.
    pub(crate) fn skipped(&mut self, level: Level, requests: u64) {
        self.0[level.number()].skipped += requests;
    }

    /// The levels and their results.
    pub(crate) fn levels(&self) -> impl Iterator<Item = (Level, LevelCounts)> {
        self.0.iter().enumerate().map(|(number, counts)| (Level::of(number), *counts))
    }
}

/// Adds to the columns of a level.
pub(crate) fn count_level(slot: &RankSlot, level: Level, counts: LevelCounts) {
    let LevelCounts { hits, bytes, operations, skipped } = counts;
    for (column, amount) in [hits, bytes, operations, skipped].into_iter().enumerate() {
        if amount > 0 {
            slot.counters[level_word(level) + column].fetch_add(amount, Ordering::Relaxed);
        }
    }
}

/// The columns of a level, in the order of [`LEVEL_COLUMNS`].
pub(crate) fn read_level(slot: &RankSlot, level: Level) -> [u64; LEVEL_COLUMNS.len()] {
    std::array::from_fn(|column| slot.counters[level_word(level) + column].load(Ordering::Relaxed))
}

fn level_word(level: Level) -> usize {
    FIRST_LEVEL_WORD + level.number() * LEVEL_COLUMNS.len()
}

/// Adds to a counter of a rank.
pub(crate) fn count(slot: &RankSlot, counter: Counter, amount: u64) {
    slot.counters[counter as usize].fetch_add(amount, Ordering::Relaxed);
}

/// Sets a counter whose value another component maintains.
pub(crate) fn set(slot: &RankSlot, counter: Counter, value: u64) {
    slot.counters[counter as usize].store(value, Ordering::Relaxed);
}

/// Adds the time since `start` to a counter and returns now.
pub(crate) fn count_since(slot: &RankSlot, counter: Counter, start: Instant) -> Instant {
    let now = Instant::now();
    count(slot, counter, now.duration_since(start).as_nanos() as u64);
    now
}

/// All counters of a rank, in the order of [`COUNTER_NAMES`].
pub(crate) fn read(slot: &RankSlot) -> Vec<u64> {
    COUNTER_NAMES
        .iter()
        .map(|(counter, _)| slot.counters[*counter as usize].load(Ordering::Relaxed))
        .collect()
}

/// How many steps ago the skew is measured, so that usually all ranks have passed that step.
const SKEW_LAG: u64 = 8;

/// The clock that all processes of a node share \[ns\].
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Records that a rank got its next batch, and counts the skew of the step [`SKEW_LAG`] before it.
///
/// Ranks that are further apart than [`DELIVERY_TIMES`] steps are left out: they do not train
/// together.
pub(crate) fn record_delivery(slots: &[RankSlot], local_rank: usize) {
    let own = &slots[local_rank];
    let number = own.delivered.load(Ordering::Relaxed);
    own.delivery_times[(number % DELIVERY_TIMES as u64) as usize].store(monotonic_ns(), Ordering::Relaxed);
    own.delivered.store(number + 1, Ordering::Release);
    let Some(past) = number.checked_sub(SKEW_LAG) else { return };
    let at = |slot: &RankSlot| -> Option<u64> {
        let delivered = slot.delivered.load(Ordering::Acquire);
        let stored = past < delivered && delivered < past + DELIVERY_TIMES as u64;
        stored.then(|| slot.delivery_times[(past % DELIVERY_TIMES as u64) as usize].load(Ordering::Relaxed))
    };
    let latest = slots.iter().filter(|slot| presence(&slot.left) == Presence::Here).map(at).max();
    if slots.iter().all(|slot| at(slot).is_some())
        && let (Some(Some(latest)), Some(mine)) = (latest, at(own))
    {
        count(own, Counter::SkewNs, latest.saturating_sub(mine));
    }
}

/// Bytes that one process got, by epoch: read-ahead counts for the epoch that needs it.
#[derive(Debug, Default)]
pub(crate) struct EpochReads {
    cells: [EpochCell; EPOCHS],
}

const EPOCHS: usize = 4;

#[derive(Debug, Default)]
struct EpochCell {
    epoch: AtomicU64,
    /// Bytes that the readers read from the source.
    read: AtomicU64,
    /// Bytes that each level delivered, to readers and gather threads.
    levels: [AtomicU64; MOST_LEVELS],
}

impl EpochReads {
    /// Adds bytes that a reader read.
    pub(crate) fn add(&self, epoch: u64, bytes: u64) {
        self.cell(epoch).read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds bytes that a level delivered.
    pub(crate) fn add_level(&self, epoch: u64, level: Level, bytes: u64) {
        if bytes > 0 {
            self.cell(epoch).levels[level.number()].fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn cell(&self, epoch: u64) -> &EpochCell {
        let cell = &self.cells[(epoch % EPOCHS as u64) as usize];
        if cell.epoch.swap(epoch, Ordering::Relaxed) != epoch {
            cell.read.store(0, Ordering::Relaxed);
            cell.levels.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
        }
        cell
    }

    /// (epoch, bytes that the readers read) of the last epochs with reads.
    pub(crate) fn all(&self) -> Vec<(u64, u64)> {
        let read = |cell: &EpochCell| cell.read.load(Ordering::Relaxed);
        self.sorted(|cell| Some(read(cell)).filter(|bytes| *bytes > 0))
    }

    /// (epoch, bytes of each of these levels) of the last epochs that a level delivered bytes for.
    pub(crate) fn levels(&self, levels: &[Level]) -> Vec<(u64, Vec<u64>)> {
        let bytes = |cell: &EpochCell| -> Vec<u64> {
            levels.iter().map(|level| cell.levels[level.number()].load(Ordering::Relaxed)).collect()
        };
        self.sorted(|cell| Some(bytes(cell)).filter(|bytes| bytes.iter().any(|bytes| *bytes > 0)))
    }

    fn sorted<T: Ord>(&self, value: impl Fn(&EpochCell) -> Option<T>) -> Vec<(u64, T)> {
        let epoch = |cell: &EpochCell| cell.epoch.load(Ordering::Relaxed);
        let mut all: Vec<_> =
            self.cells.iter().filter_map(|cell| Some((epoch(cell), value(cell)?))).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collected_counts_are_those_of_each_level() {
        let mut counts = CollectedCounts::default();
        let last = Level::Tier(MAX_LEVELS - 1);
        counts.hit(Level::Share, 5);
        counts.hit(Level::Share, 2);
        counts.hit(last, 1);
        counts.skipped(Level::PageCache, 3);
        let found: Vec<_> =
            counts.levels().map(|(level, one)| (level, one.hits, one.bytes, one.skipped)).collect();
        assert_eq!(found.len(), MOST_LEVELS);
        assert_eq!(
            found.into_iter().filter(|one| (one.1, one.3) != (0, 0)).collect::<Vec<_>>(),
            [(Level::PageCache, 0, 0, 3), (Level::Share, 2, 7, 0), (last, 1, 1, 0)]
        );
    }

    #[test]
    fn reads_are_counted_by_epoch_and_new_epochs_replace_old_ones() {
        let reads = EpochReads::default();
        for epoch in 0..6 {
            reads.add(epoch, 10 + epoch);
            reads.add(epoch, 1);
            if epoch != 4 {
                reads.add_level(epoch, Level::Tier(MAX_LEVELS - 1), 7 * epoch);
            }
        }
        assert_eq!(reads.all(), [(2, 13), (3, 14), (4, 15), (5, 16)]);
        let levels = [Level::Source, Level::Tier(MAX_LEVELS - 1)];
        assert_eq!(reads.levels(&levels), [(2, vec![0, 14]), (3, vec![0, 21]), (5, vec![0, 35])]);
    }
}
