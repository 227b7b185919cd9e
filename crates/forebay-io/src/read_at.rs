//! One file, or anything else that can be read at an offset, under the policy of all reads.
//!
//! A loader reads many files and knows the place of each byte; it uses [`crate::Reader`]. What builds an index or reads a
//! single sample has one file before it, of which it may not know where it ends: [`read_most`] reads until the buffer is
//! full or the file ends.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_types::ShardId;

use crate::error::ReadError;
use crate::retry::{Job, ReadCounters, Target, read_up_to};
use crate::syscalls::At;

/// Bytes that can be read at an offset, by several threads at once.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// Present length \[bytes\].
    fn bytes(&self) -> io::Result<u64>;

    /// Reads at most `into.len()` bytes from `offset` on; 0 at the end. One system call: [`read_most`] decides what
    /// follows its answer.
    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Announces that these bytes are read soon. Reads nothing else, and may do nothing.
    fn will_need(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }

    /// Opens the file again whose handle went stale.
    fn reopen(&self) -> Result<(), ReadError> {
        Ok(())
    }

    /// Waits before another attempt.
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A file in memory; a short slice is a truncated file.
impl ReadAt for Vec<u8> {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let Some(rest) = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)) else {
            return Ok(0);
        };
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Reads until `into` is full or the file ends; returns the number of bytes. `path` is the name of the file in errors.
///
/// # Errors
/// After the retries of the policy (`retry.rs`): what was attempted, with offset, length and number of attempts.
pub fn read_most(
    file: &dyn ReadAt,
    path: &Path,
    offset: u64,
    into: &mut [u8],
    counters: &mut ReadCounters,
) -> Result<usize, ReadError> {
    let start = At { shard: ShardId(0), offset, direct: false };
    let mut job = Job::unbounded(start, into.len());
    read_up_to(&OneFile { file, path }, &mut job, &mut [], into, counters)?;
    Ok(job.done_bytes())
}

/// One file, whatever its number.
pub(crate) struct OneFile<'a> {
    pub(crate) file: &'a dyn ReadAt,
    pub(crate) path: &'a Path,
}

impl Target for OneFile<'_> {
    fn pread(&self, at: At, _head: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        self.file.pread(at.offset, into)
    }

    fn reopen(&self, _shard: ShardId) -> Result<(), ReadError> {
        self.file.reopen()
    }

    fn pause(&self, time: Duration) {
        self.file.pause(time);
    }

    fn path(&self, _shard: ShardId) -> PathBuf {
        self.path.to_owned()
    }
}
