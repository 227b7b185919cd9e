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
//! | a copy fails or ends too early | the levels below; this read leaves the copy's level out |
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
use crate::file::open::DIRECT_ALIGN_BYTES;
use crate::file::shards::ShardFiles;
use crate::file::span::{At, LevelId, LevelSet, MAX_COPY_LEVELS};
use crate::read::syscalls::FileIo;

/// Pauses before another attempt after a failure: a path that fails over needs a moment, a broken
/// disk will not heal.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];

/// Largest request \[bytes\]: Linux answers at most 2 GiB less a page, and `io_uring` counts in 32
/// bits.
const MAX_REQUEST_BYTES: usize = 1 << 30;

/// What reading has cost a reader so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// Requests to the source that the kernel answered with bytes: system calls, or submissions of
    /// an `io_uring`.
    pub reads: u64,
    /// Bytes they brought \[bytes\].
    pub read_bytes: u64,
    /// Requests that had to be made again or continued, for whatever reason.
    pub retries: u64,
    /// Time inside [`crate::Reader::fill`] \[ns\].
    pub io_ns: u64,
    /// The same of each level of copies, the nearest first.
    pub copies: [CopyCounters; MAX_COPY_LEVELS],
}

/// What reading from one level of copies has come to so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounters {
    /// Requests that the kernel answered with bytes.
    pub reads: u64,
    /// Bytes they brought \[bytes\].
    pub read_bytes: u64,
    /// Requests that failed, so that the levels below were asked.
    pub failures: u64,
}

/// How one request ended.
pub(crate) struct Completion {
    /// The level that was asked.
    pub(crate) level: LevelId,
    /// How many bytes it was asked for \[bytes\].
    pub(crate) asked: usize,
    /// How many came.
    pub(crate) result: io::Result<usize>,
}

/// Whether a transfer is retried after EIO or EAGAIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retries {
    /// After each of the pauses.
    AfterPauses,
    /// Never: a read nearby failed after its retries.
    Never,
}

/// What a transfer reads: the files of a dataset, or one file.
pub(crate) trait Target {
    /// Makes one request for bytes at `at`, of a level that is not in `left_out`.
    fn request(&self, at: At, left_out: LevelSet, head: &mut [u8], into: &mut [u8]) -> Completion;
    /// [`FileIo::copy_failed`].
    fn copy_failed(&self, level: LevelId, at: At, error: &io::Error);
    /// Opens a file again whose handle went stale.
    fn reopen(&self, shard: ShardId) -> Result<(), ReadError>;
    /// Waits before another attempt.
    fn pause(&self, time: Duration);
    /// The name of a file, for errors.
    fn path(&self, shard: ShardId) -> PathBuf;
}

impl<I: FileIo + ?Sized> Target for I {
    fn request(&self, at: At, left_out: LevelSet, head: &mut [u8], into: &mut [u8]) -> Completion {
        let length = head.len() + into.len();
        match self.span(at, length, left_out) {
            Err(error) => Completion { level: LevelId::SOURCE, asked: length, result: Err(error) },
            Ok(span) => {
                let asked = span.length.min(length);
                let split = head.len().min(asked);
                let result = FileIo::pread(self, &span, &mut head[..split], &mut into[..asked - split]);
                Completion { level: span.level, asked, result }
            }
        }
    }

    fn copy_failed(&self, level: LevelId, at: At, error: &io::Error) {
        FileIo::copy_failed(self, level, at, error);
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
    left_out: LevelSet,
    retries: Retries,
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
            left_out: LevelSet::default(),
            retries: Retries::AfterPauses,
        }
    }

    /// The same transfer with this limit of retries.
    pub(crate) fn with(self, retries: Retries) -> Self {
        Self { retries, ..self }
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

    /// Levels that failed this transfer.
    pub(crate) fn left_out(&self) -> LevelSet {
        self.left_out
    }

    /// Takes the completion of a request for [`Job::range`] at [`Job::at`].
    pub(crate) fn settle(
        &mut self,
        io: &(impl Target + ?Sized),
        completion: Completion,
        counters: &mut ReadCounters,
    ) -> Next {
        if let Some(number) = completion.level.copy_number() {
            return self.settle_copy(io, completion, &mut counters.copies[number]);
        }
        self.attempts = self.attempts.saturating_add(1);
        let error = match completion.result {
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
                if self.start.direct && !self.align(count) {
                    // Less than one aligned unit came: only the page cache can give the rest.
                    self.start.direct = false;
                }
                counters.retries += u64::from(count < completion.asked);
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
                let pauses: &[Duration] = if self.retries == Retries::AfterPauses { &PAUSES } else { &[] };
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
            known: self.retries == Retries::Never,
            source: error,
        })
    }

    /// Takes the completion of a request to a copy: what is wrong with it is no error, as the
    /// levels below have the same bytes.
    fn settle_copy(
        &mut self,
        io: &(impl Target + ?Sized),
        Completion { level, result, .. }: Completion,
        counters: &mut CopyCounters,
    ) -> Next {
        let error = match result {
            Ok(count) if count > 0 => {
                counters.reads += 1;
                counters.read_bytes += count as u64;
                self.done += count;
                if self.is_done() {
                    return Next::Done;
                }
                if self.start.direct && !self.align(count) {
                    // The source cannot go on there: it reads the whole unit.
                    self.done -= count;
                    self.left_out.insert(level);
                }
                return Next::Again;
            }
            Ok(_) => io::ErrorKind::UnexpectedEof.into(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Next::Again,
            Err(error) => error,
        };
        counters.failures += 1;
        self.left_out.insert(level);
        let (at, path) = (self.at(), io.path(self.start.shard));
        tracing::info!(path = %path.display(), offset = at.offset, ?level, %error, "a copy cannot be read");
        io.copy_failed(level, at, &error);
        Next::Again
    }

    /// Goes back to the last aligned byte of the `count` that have just come; false where there is
    /// none among them.
    fn align(&mut self, count: usize) -> bool {
        let aligned = self.done - self.done % DIRECT_ALIGN_BYTES as usize;
        let is_among = self.done - count < aligned;
        if is_among {
            self.done = aligned;
        }
        is_among
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
        let left_out = job.left_out();
        let completion = if from >= head.len() {
            io.request(job.at(), left_out, &mut [], &mut into[from - head.len()..end - head.len()])
        } else {
            let split = head.len().min(end);
            io.request(job.at(), left_out, &mut head[from..split], &mut into[..end - split])
        };
        match job.settle(io, completion, counters) {
            Next::Done | Next::Again => {}
            Next::After(pause) => io.pause(pause),
            Next::Ended => break,
            Next::Failed(error) => return Err(error),
        }
    }
    Ok(())
}
