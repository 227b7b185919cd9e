//! Reads of one file under the policy of all reads (`retry.rs`).
//!
//! A loader reads many files and knows the place of each byte; it uses [`crate::Reader`]. An index
//! build or a read of a single sample has one file, and may not know where it ends: [`read_most`]
//! reads until the buffer is full or the file ends.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_types::ShardId;

use crate::error::ReadError;
use crate::file::read_at::ReadAt;
use crate::file::span::{At, LevelId, LevelSet};
use crate::read::retry::{Completion, Job, ReadCounters, Target, read_up_to};

/// Reads until `into` is full or the file ends; returns the number of bytes. `path` is the name of
/// the file in errors.
///
/// # Errors
/// After the retries of the policy (`retry.rs`): what was attempted, with offset, length
/// and number of attempts.
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
    fn request(&self, at: At, _left_out: LevelSet, _head: &mut [u8], into: &mut [u8]) -> Completion {
        Completion { level: LevelId::SOURCE, asked: into.len(), result: self.file.pread(at.offset, into) }
    }

    fn copy_failed(&self, _level: LevelId, _at: At, _error: &io::Error) {}

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
