//! What follows an answer of the kernel: the one retry policy of all accesses.
//!
//! | answer | what follows |
//! |---|---|
//! | fewer bytes than asked for | go on behind them (around the page cache: from the last aligned byte) |
//! | EINTR | the same request again |
//! | EIO, EAGAIN | again after 10 ms and after 100 ms, then the error |
//! | ESTALE | the path is opened again, once per transfer; it must be the same file still |
//! | a sample's own file cannot be opened, or has another size | error |
//! | EINVAL around the page cache | the rest goes through the page cache, from then on everything |
//! | end of file too early | error: truncated; where it is not known how long the file is: less than was asked for |
//! | anything else | error |
//!
//! Any progress makes the count of failures start again. What lies where a read was tried in vain
//! is tried once, without a pause (`failing.rs`): the storage has had its time to recover.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use forebay_types::ShardId;

use crate::error::ReadError;
use crate::files::ShardFiles;
use crate::open::DIRECT_ALIGN_BYTES;
use crate::syscalls::{At, FileIo};

/// Pauses before another attempt after a failure: a path that fails over needs a moment, a broken
/// disk will not heal.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];

/// Largest request \[bytes\]: Linux answers at most 2 GiB less a page, and `io_uring` counts in 32
/// bits.
const MAX_REQUEST_BYTES: usize = 1 << 30;

/// What reading has cost a reader so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// Requests that the kernel answered with bytes: system calls, or submissions of an `io_uring`.
    pub reads: u64,
    /// Bytes they brought \[bytes\].
    pub read_bytes: u64,
    /// Requests that had to be made again or continued, for whatever reason.
    pub retries: u64,
    /// Time inside [`crate::Reader::fill`] \[ns\].
    pub io_ns: u64,
}

/// How often a transfer is tried that meets EIO or EAGAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// After each of the pauses.
    All,
    /// Once: what lies around it was tried in vain.
    Once,
}

/// What a transfer reads: the files of a data set, or one file.
pub(crate) trait Target {
    /// [`FileIo::pread`].
    fn pread(&self, at: At, head: &mut [u8], into: &mut [u8]) -> io::Result<usize>;
    /// Opens a file again whose handle went stale.
    fn reopen(&self, shard: ShardId) -> Result<(), ReadError>;
    /// Waits before another attempt.
    fn pause(&self, time: Duration);
    /// The name of a file, for errors.
    fn path(&self, shard: ShardId) -> PathBuf;
}

impl<I: FileIo + ?Sized> Target for I {
    fn pread(&self, at: At, head: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        FileIo::pread(self, at, head, into)
    }

    fn reopen(&self, shard: ShardId) -> Result<(), ReadError> {
        FileIo::reopen(self, shard)
    }

    fn pause(&self, time: Duration) {
        FileIo::pause(self, time);
    }

    fn path(&self, shard: ShardId) -> PathBuf {
        self.files().path(shard)
    }
}

/// What to do next about a transfer.
#[derive(Debug)]
pub(crate) enum Next {
    /// It is complete.
    Done,
    /// The file ends before it is complete.
    Ended,
    /// Make another request.
    Again,
    /// Make another request after a pause.
    After(Duration),
    /// It failed.
    Failed(ReadError),
}

/// A transfer under way.
#[derive(Debug)]
pub(crate) struct Job {
    start: At,
    /// Bytes that must come \[bytes\].
    wanted: usize,
    /// Bytes of memory that may be written; more than `wanted` only behind the end of the file.
    room: usize,
    done: usize,
    attempts: u32,
    failures: u32,
    reopened: bool,
    refused: bool,
    patience: Patience,
}

impl Job {
    /// Starts a transfer of `room` bytes; `padded` allows the last of them to lie behind the end of
    /// the file, up to the next aligned offset.
    pub(crate) fn new(files: &ShardFiles, start: At, room: usize, padded: bool) -> Result<Self, ReadError> {
        let bytes = files.bytes(start.shard);
        let limit = if padded { bytes.next_multiple_of(DIRECT_ALIGN_BYTES) } else { bytes };
        if start.offset.checked_add(room as u64).is_none_or(|end| end > limit) || start.offset > bytes {
            return Err(ReadError::Beyond {
                path: files.path(start.shard),
                offset: start.offset,
                length: room as u64,
                bytes,
            });
        }
        let wanted = (bytes - start.offset).min(room as u64) as usize;
        Ok(Self { wanted, ..Self::unbounded(start, room) })
    }

    /// Starts a transfer of `room` bytes from a file that may end before them.
    pub(crate) fn unbounded(start: At, room: usize) -> Self {
        Self {
            start,
            wanted: room,
            room,
            done: 0,
            attempts: 0,
            failures: 0,
            reopened: false,
            refused: false,
            patience: Patience::All,
        }
    }

    /// The same with this patience.
    pub(crate) fn with(self, patience: Patience) -> Self {
        Self { patience, ..self }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done >= self.wanted
    }

    /// Bytes that have come \[bytes\].
    pub(crate) fn done_bytes(&self) -> usize {
        self.done
    }

    /// Where the next request starts.
    pub(crate) fn at(&self) -> At {
        At { offset: self.start.offset.saturating_add(self.done as u64), ..self.start }
    }

    /// The part of the memory that the next request fills: first byte, and the one behind its last.
    pub(crate) fn range(&self) -> (usize, usize) {
        let end = if self.start.direct { self.room } else { self.wanted };
        (self.done, end.min(self.done + MAX_REQUEST_BYTES))
    }

    /// Whether the file system refused to read around the page cache.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused
    }

    /// Takes the kernel's answer to a request for [`Job::range`] at [`Job::at`].
    pub(crate) fn settle(
        &mut self,
        io: &(impl Target + ?Sized),
        answer: io::Result<usize>,
        counters: &mut ReadCounters,
    ) -> Next {
        self.attempts = self.attempts.saturating_add(1);
        let error = match answer {
            Ok(0) => return Next::Ended,
            Ok(count) => {
                counters.reads += 1;
                counters.read_bytes += count as u64;
                self.failures = 0;
                self.done += count;
                if self.is_done() {
                    return Next::Done;
                }
                self.attempts = 0;
                if self.start.direct {
                    let aligned = self.done - self.done % DIRECT_ALIGN_BYTES as usize;
                    // Less than one aligned unit came: only the page cache can give the rest.
                    self.start.direct = self.done - count < aligned;
                    self.done = if self.start.direct { aligned } else { self.done };
                }
                counters.retries += 1;
                return Next::Again;
            }
            // A file that is opened when it is read could not be opened, and that will not pass.
            Err(error) => match error.downcast::<ReadError>() {
                Ok(error) => return Next::Failed(error),
                Err(error) => error,
            },
        };
        let again = match error.raw_os_error() {
            // Not by its number: a `ReadAt` that is no file may have none.
            _ if error.kind() == io::ErrorKind::Interrupted => Some(Next::Again),
            Some(libc::EIO | libc::EAGAIN) => {
                let pauses: &[Duration] = if self.patience == Patience::All { &PAUSES } else { &[] };
                let pause = pauses.get(self.failures as usize);
                self.failures += 1;
                pause.map(|pause| Next::After(*pause))
            }
            Some(libc::ESTALE) if !self.reopened => {
                self.reopened = true;
                if let Err(error) = io.reopen(self.start.shard) {
                    return Next::Failed(error);
                }
                Some(Next::Again)
            }
            Some(libc::EINVAL) if self.start.direct => {
                self.start.direct = false;
                self.refused = true;
                Some(Next::Again)
            }
            _ => None,
        };
        if let Some(again) = again {
            counters.retries += 1;
            let path = io.path(self.start.shard);
            let (attempt, offset) = (self.attempts, self.at().offset);
            tracing::debug!(path = %path.display(), offset, attempt, %error, "a read is tried again");
            return again;
        }
        Next::Failed(ReadError::Io {
            path: io.path(self.start.shard),
            offset: self.at().offset,
            length: (self.wanted - self.done) as u64,
            attempts: self.attempts,
            known: self.patience == Patience::Once,
            source: error,
        })
    }

    /// The error about a file that ends too early.
    pub(crate) fn truncated(&self, io: &dyn FileIo) -> ReadError {
        let (files, shard, offset) = (io.files(), self.start.shard, self.at().offset);
        ReadError::Truncated {
            path: files.path(shard),
            offset,
            length: (self.wanted - self.done) as u64,
            expected: files.bytes(shard),
            found: io.present_bytes(shard).unwrap_or(offset),
        }
    }
}

/// Reads a transfer to its end with system calls: first into `head`, then into `into`. A file that
/// ends before is an error.
pub(crate) fn read_through(
    io: &dyn FileIo,
    job: &mut Job,
    head: &mut [u8],
    into: &mut [u8],
    counters: &mut ReadCounters,
) -> Result<(), ReadError> {
    read_up_to(io, job, head, into, counters)?;
    if job.is_done() { Ok(()) } else { Err(job.truncated(io)) }
}

/// The one loop of all reads: ends when the transfer is complete, or the file ends.
pub(crate) fn read_up_to(
    io: &(impl Target + ?Sized),
    job: &mut Job,
    head: &mut [u8],
    into: &mut [u8],
    counters: &mut ReadCounters,
) -> Result<(), ReadError> {
    while !job.is_done() {
        let (from, end) = job.range();
        let answer = if from >= head.len() {
            io.pread(job.at(), &mut [], &mut into[from - head.len()..end - head.len()])
        } else {
            let split = head.len().min(end);
            io.pread(job.at(), &mut head[from..split], &mut into[..end - split])
        };
        match job.settle(io, answer, counters) {
            Next::Done | Next::Again => {}
            Next::After(pause) => io.pause(pause),
            Next::Ended => break,
            Next::Failed(error) => return Err(error),
        }
    }
    Ok(())
}
