//! Whether the sources are as they were when their copies were made.
//!
//! The open descriptors are asked: copies must have the bytes that a read of the source gives. Each
//! shard is looked at while it is used: once in [`LOOK_EVERY`], and at the start of each epoch and
//! once in [`ASK_EVERY`] so that the server of a network file system is asked, too. While a program
//! of this node has a shard open for writing, its copies are neither made nor used: stores through
//! a mapping need not change its times.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_io::ShardFiles;
use forebay_types::ShardId;

use crate::source::identity::SourceState;
use crate::source::open_writers::is_open_for_writing;

/// Interval between two looks at a shard in use.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval between two questions to a server.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// See the module header.
pub struct SourceWatch {
    files: Arc<ShardFiles>,
    /// What each shard was when the loader was made; none where samples have files of their own.
    shards: Vec<Watched>,
    warnings: Mutex<Vec<String>>,
    made: Instant,
}

struct Watched {
    state: SourceState,
    /// Its copies must not be used.
    is_changed: AtomicBool,
    /// Its last change is long enough ago that the next one has another time.
    is_settled: AtomicBool,
    /// A program of this node has it open for writing.
    is_written: AtomicBool,
    /// The user was told of that.
    is_told: AtomicBool,
    /// One more than the last epoch at whose start it was looked at.
    epoch: AtomicU64,
    /// When it was last looked at, and its server was last asked [ms after the watch was made].
    looked_ms: AtomicU64,
    asked_ms: AtomicU64,
}

impl Watched {
    fn is_usable(&self) -> bool {
        !self.is_changed.load(Ordering::Relaxed) && !self.is_written.load(Ordering::Relaxed)
    }
}

impl SourceWatch {
    /// Watches files that are in these states.
    #[must_use]
    pub fn new(files: Arc<ShardFiles>, states: &[SourceState]) -> Self {
        let watched = |state: &SourceState| Watched {
            state: *state,
            is_changed: AtomicBool::new(false),
            is_settled: AtomicBool::new(false),
            is_written: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            looked_ms: AtomicU64::new(0),
            asked_ms: AtomicU64::new(0),
        };
        let shards = if files.are_of_samples() { Vec::new() } else { states.iter().map(watched).collect() };
        Self { files, shards, warnings: Mutex::default(), made: Instant::now() }
    }

    fn watched(&self, shard: ShardId) -> Option<&Watched> {
        self.shards.get(shard.0 as usize)
    }

    /// Whether copies of a shard may be read.
    #[must_use]
    pub fn is_usable(&self, shard: ShardId) -> bool {
        self.watched(shard).is_none_or(Watched::is_usable)
    }

    /// Whether a shard may be copied by a read that begins now. Files of one sample are looked at
    /// after the read.
    #[must_use]
    pub fn is_copyable(&self, shard: ShardId) -> bool {
        let Some(watched) = self.watched(shard) else { return true };
        if !watched.is_usable() {
            return false;
        }
        if !watched.is_settled.load(Ordering::Relaxed) {
            if !watched.state.is_settled(now_ns()) {
                return false;
            }
            watched.is_settled.store(true, Ordering::Relaxed);
        }
        true
    }

    /// Looks at a shard that is about to be read for an epoch: at the start of each, and now and
    /// then.
    pub fn begin_read(&self, shard: ShardId, epoch: u64) {
        let Some(watched) = self.watched(shard) else { return };
        if watched.epoch.load(Ordering::Relaxed) != epoch + 1
            && watched.epoch.swap(epoch + 1, Ordering::Relaxed) != epoch + 1
        {
            self.look(shard, true);
        } else {
            self.look_sometimes(shard);
        }
    }

    /// Looks at a shard in use, unless that was done a moment ago.
    pub fn look_sometimes(&self, shard: ShardId) {
        let Some(watched) = self.watched(shard) else { return };
        let now_ms = self.made.elapsed().as_millis() as u64;
        let is_due = |last: &AtomicU64, every: Duration| {
            let before = last.load(Ordering::Relaxed);
            now_ms.saturating_sub(before) >= every.as_millis() as u64
                && last.compare_exchange(before, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if is_due(&watched.looked_ms, LOOK_EVERY) {
            self.look(shard, is_due(&watched.asked_ms, ASK_EVERY));
        }
    }

    /// Looks at a file after a read that began at `begun_ns`; false if it was or may have been
    /// changed meanwhile.
    #[must_use]
    pub fn is_unchanged(&self, shard: ShardId, begun_ns: i64) -> bool {
        if self.watched(shard).is_some() {
            return self.look(shard, false);
        }
        self.files.times_now(shard, false).is_ok_and(|stat| {
            let state = SourceState::of_times(&stat);
            state.bytes == self.files.bytes(shard) && state.is_settled(begun_ns) && !self.has_writer(shard)
        })
    }

    fn has_writer(&self, shard: ShardId) -> bool {
        self.files.ask(shard, is_open_for_writing).is_ok_and(|answer| answer == Some(true))
    }

    fn look(&self, shard: ShardId, asks_server: bool) -> bool {
        let Some(watched) = self.watched(shard) else { return true };
        let Ok(stat) = self.files.times_now(shard, asks_server) else { return false };
        if SourceState::of_times(&stat) != watched.state {
            if !watched.is_changed.swap(true, Ordering::Relaxed) {
                self.warn(shard, "it was changed: its copies in tiers are not used");
            }
            return false;
        }
        let is_written = self.has_writer(shard);
        watched.is_written.store(is_written, Ordering::Relaxed);
        if is_written && !watched.is_told.swap(true, Ordering::Relaxed) {
            self.warn(
                shard,
                "a program has it open for writing: its copies in tiers are not used until it ends",
            );
        }
        watched.is_usable()
    }

    /// A copy is not what its source has now, though the source's times are the same.
    pub fn differs(&self, shard: ShardId) {
        if let Some(watched) = self.watched(shard)
            && !watched.is_changed.swap(true, Ordering::Relaxed)
        {
            self.warn(shard, "it changes, and its times do not: its copies in tiers are not used");
        }
    }

    fn warn(&self, shard: ShardId, text: &str) {
        let text = format!("{}: {text}", self.files.path(shard).display());
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    /// Takes what should be told to the user.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The clock of files [ns since 1970].
pub(crate) fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_nanos() as i64)
}
