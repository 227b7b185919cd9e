//! Whether the sources are as they were when their copies were made.
//!
//! The open descriptors are asked: copies must have the bytes that a read of the source gives.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_io::ShardFiles;
use forebay_types::ShardId;

use crate::source::SourceState;

/// See the module header.
pub struct SourceWatch {
    files: Arc<ShardFiles>,
    /// What each shard was when the loader was made; none where samples have files of their own.
    shards: Vec<Watched>,
    warnings: Mutex<Vec<String>>,
}

struct Watched {
    state: SourceState,
    /// Its copies must not be used.
    is_changed: AtomicBool,
    /// Its last change is long enough ago that the next one has another time.
    is_settled: AtomicBool,
    /// One more than the last epoch in which it was looked at.
    looked_at: AtomicU64,
}

impl SourceWatch {
    /// Watches files that are in these states.
    #[must_use]
    pub fn new(files: Arc<ShardFiles>, states: &[SourceState]) -> Self {
        let watched = |state: &SourceState| Watched {
            state: *state,
            is_changed: AtomicBool::new(false),
            is_settled: AtomicBool::new(false),
            looked_at: AtomicU64::new(0),
        };
        let shards = if files.are_of_samples() { Vec::new() } else { states.iter().map(watched).collect() };
        Self { files, shards, warnings: Mutex::default() }
    }

    fn watched(&self, shard: ShardId) -> Option<&Watched> {
        self.shards.get(shard.0 as usize)
    }

    /// Whether copies of a shard may be read.
    #[must_use]
    pub fn is_usable(&self, shard: ShardId) -> bool {
        self.watched(shard).is_none_or(|watched| !watched.is_changed.load(Ordering::Relaxed))
    }

    /// Whether a shard may be copied by a read that begins now. Files of one sample are looked at
    /// after the read.
    #[must_use]
    pub fn is_copyable(&self, shard: ShardId) -> bool {
        let Some(watched) = self.watched(shard) else { return true };
        if watched.is_changed.load(Ordering::Relaxed) {
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

    /// Looks at a shard once in each epoch.
    pub fn begin_epoch(&self, shard: ShardId, epoch: u64) {
        let Some(watched) = self.watched(shard) else { return };
        if watched.looked_at.load(Ordering::Relaxed) != epoch + 1
            && watched.looked_at.swap(epoch + 1, Ordering::Relaxed) != epoch + 1
        {
            self.look(shard, true);
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
            state.bytes == self.files.bytes(shard) && state.is_settled(begun_ns)
        })
    }

    fn look(&self, shard: ShardId, asks_server: bool) -> bool {
        let Some(watched) = self.watched(shard) else { return true };
        let Ok(stat) = self.files.times_now(shard, asks_server) else { return false };
        if SourceState::of_times(&stat) == watched.state {
            return !watched.is_changed.load(Ordering::Relaxed);
        }
        if !watched.is_changed.swap(true, Ordering::Relaxed) {
            let path = self.files.path(shard);
            let text = format!("{}: it was changed: its copies in tiers are not used", path.display());
            self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        }
        false
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
