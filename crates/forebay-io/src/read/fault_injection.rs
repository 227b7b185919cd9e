//! Test support: a [`FileIo`] that fails on purpose.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_types::ShardId;

use crate::error::ReadError;
use crate::file::shards::ShardFiles;
use crate::file::span::{At, Span};
use crate::read::syscalls::{Fault, FileIo};

type FaultRule = dyn Fn(At, usize) -> Option<Fault> + Send + Sync;

/// Real files whose system calls fail as a test says; for tests only.
///
/// Faults come from a script, one per system call, and after its end from a rule. Pauses are
/// counted, not slept.
pub struct FaultyIo {
    files: Arc<ShardFiles>,
    script: Mutex<VecDeque<Option<Fault>>>,
    rule: Box<FaultRule>,
    ring_refused: Option<i32>,
    calls: AtomicU64,
    reopened: AtomicU64,
    pauses: Mutex<Vec<Duration>>,
}

impl FaultyIo {
    /// Files that do not fail yet.
    #[must_use]
    pub fn new(files: Arc<ShardFiles>) -> Self {
        Self {
            files,
            script: Mutex::default(),
            rule: Box::new(|_, _| None),
            ring_refused: None,
            calls: AtomicU64::new(0),
            reopened: AtomicU64::new(0),
            pauses: Mutex::default(),
        }
    }

    /// Makes the next system calls fail in this order; `None` lets one pass.
    #[must_use]
    pub fn with_script(self, script: impl IntoIterator<Item = Option<Fault>>) -> Self {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).extend(script);
        self
    }

    /// Makes every system call behind the script fail as `rule` says of its place and length.
    #[must_use]
    pub fn with_rule(mut self, rule: impl Fn(At, usize) -> Option<Fault> + Send + Sync + 'static) -> Self {
        self.rule = Box::new(rule);
        self
    }

    /// Refuses to make an `io_uring`, with this error number.
    #[must_use]
    pub fn without_ring(mut self, errno: i32) -> Self {
        self.ring_refused = Some(errno);
        self
    }

    /// Number of system calls that were made or pretended.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// How often a file was opened again.
    pub fn reopened(&self) -> u64 {
        self.reopened.load(Ordering::Relaxed)
    }

    /// The pauses before further attempts.
    pub fn pauses(&self) -> Vec<Duration> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn next(&self, at: At, length: usize) -> Option<Fault> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let scripted = self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        scripted.unwrap_or_else(|| (self.rule)(at, length))
    }
}

impl FileIo for FaultyIo {
    fn files(&self) -> &ShardFiles {
        &self.files
    }

    fn pread(&self, span: &Span<'_>, head: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        match self.next(span.source, head.len() + into.len()) {
            Some(Fault::Short(most)) => {
                let head_bytes = head.len().min(most);
                let into_bytes = into.len().min(most - head_bytes);
                self.files.pread(span, &mut head[..head_bytes], &mut into[..into_bytes])
            }
            Some(Fault::Errno(number)) => Err(io::Error::from_raw_os_error(number)),
            Some(Fault::End) => Ok(0),
            Some(Fault::Stall(time)) => {
                self.pause(time);
                self.files.pread(span, head, into)
            }
            None => self.files.pread(span, head, into),
        }
    }

    fn pretend(&self, at: At, length: usize) -> Option<Fault> {
        self.next(at, length)
    }

    fn may_ring(&self) -> io::Result<()> {
        self.ring_refused.map_or(Ok(()), |number| Err(io::Error::from_raw_os_error(number)))
    }

    fn reopen(&self, shard: ShardId) -> Result<(), ReadError> {
        self.reopened.fetch_add(1, Ordering::Relaxed);
        self.files.reopen(shard)
    }

    fn pause(&self, time: Duration) {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner).push(time);
    }
}
