//! Where storage fails: parts of files of which a read failed after all its attempts.
//!
//! A bad stretch of a disk holds hundreds of samples. The first read that fails there has waited
//! for the storage to recover (`retry.rs`); the others are tried once each, without a pause, so
//! that those that can be read are delivered and the rest costs no more than its requests. A part
//! is remembered for a minute: then the storage is given the time to recover again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use forebay_types::ShardId;

use crate::error::ReadError;
use crate::file::read_at::ReadAt;
use crate::file::span::At;
use crate::read::one_file::OneFile;
use crate::read::retry::{Job, ReadCounters, Retries, read_through, read_up_to};
use crate::read::syscalls::FileIo;

/// Length of a part \[bytes\]: the usual read of a reader.
const PART_BYTES: u64 = 1 << 20;

/// How long a part is remembered \[ns\].
const LIFE_NS: u64 = 60_000_000_000;

/// Parts that are remembered at most; beyond, all are forgotten: so much has failed that a pause
/// each is the least of it.
const MAX_PARTS: usize = 4096;

/// The parts of the files that failed, as far as this process knows.
#[derive(Debug)]
pub struct Failing {
    is_any: AtomicBool,
    /// When each was found to fail [ns since `origin`].
    parts: Mutex<HashMap<(ShardId, u64), u64>>,
    origin: Instant,
}

impl Default for Failing {
    fn default() -> Self {
        Self { is_any: AtomicBool::new(false), parts: Mutex::default(), origin: Instant::now() }
    }
}

impl Failing {
    /// Reads a header and a payload that follow each other in a file to two places, in one request
    /// where that works, under the policy of all reads (`retry.rs`); `head` may be empty. Returns
    /// what it cost.
    ///
    /// It is tried once, without a pause, where `failed` says that its block was tried in vain, and
    /// where a read nearby was.
    ///
    /// # Errors
    /// Like [`crate::Reader::fill`].
    pub fn read(
        &self,
        io: &dyn FileIo,
        failed: bool,
        (shard, offset): (ShardId, u64),
        head: &mut [u8],
        into: &mut [u8],
    ) -> Result<ReadCounters, ReadError> {
        let begun = Instant::now();
        let length = (head.len() + into.len()) as u64;
        let retries = if failed { Retries::Never } else { self.retries(shard, offset, length) };
        let mut counters = ReadCounters::default();
        let at = At { shard, offset, direct: false };
        let mut job = Job::new(io.files(), at, head.len() + into.len(), false)?.with(retries);
        let read = read_through(io, &mut job, head, into, &mut counters);
        self.remember(shard, &read);
        counters.io_ns = begun.elapsed().as_nanos() as u64;
        read.map(|()| counters)
    }

    /// Like [`read_most`](crate::read_most), of the file with this number; tried once, without a
    /// pause, where a read nearby was tried in vain.
    ///
    /// # Errors
    /// As there.
    pub fn read_most(
        &self,
        file: &dyn ReadAt,
        path: &Path,
        (shard, offset): (ShardId, u64),
        into: &mut [u8],
        counters: &mut ReadCounters,
    ) -> Result<usize, ReadError> {
        let start = At { shard, offset, direct: false };
        let mut job = Job::unbounded(start, into.len()).with(self.retries(shard, offset, into.len() as u64));
        let read = read_up_to(&OneFile { file, path }, &mut job, &mut [], into, counters);
        self.remember(shard, &read);
        read.map(|()| job.done_bytes())
    }

    fn retries(&self, shard: ShardId, offset: u64, length: u64) -> Retries {
        if self.knows(shard, offset, length) { Retries::Never } else { Retries::AfterPauses }
    }

    fn remember(&self, shard: ShardId, read: &Result<(), ReadError>) {
        if let Err(ReadError::Io { offset, .. }) = read {
            self.note(shard, *offset);
        }
    }

    /// Whether a part that the range touches failed within the last minute.
    fn knows(&self, shard: ShardId, offset: u64, length: u64) -> bool {
        if !self.is_any.load(Ordering::Relaxed) {
            return false;
        }
        let now = self.now_ns();
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let last = offset.saturating_add(length.max(1) - 1) / PART_BYTES;
        (offset / PART_BYTES..=last)
            .any(|part| parts.get(&(shard, part)).is_some_and(|found| now - found < LIFE_NS))
    }

    fn note(&self, shard: ShardId, offset: u64) {
        let now = self.now_ns();
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.len() >= MAX_PARTS {
            parts.clear();
        }
        let found = parts.entry((shard, offset / PART_BYTES)).or_insert(now);
        // Once a minute the storage is given its time again.
        if now - *found >= LIFE_NS {
            *found = now;
        }
        self.is_any.store(true, Ordering::Relaxed);
    }

    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}
