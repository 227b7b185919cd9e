//! The read seam: everything that asks the kernel for bytes goes through [`FileIo`], one system
//! call at a time.
//!
//! A request is first answered by a [`Span`]: the open file that has the bytes, or the first of
//! them. [`ShardFiles`] has the source only; `FaultyIo` (`fault_injection.rs`) stands between in
//! tests.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_types::ShardId;

use crate::error::ReadError;
use crate::file::shards::ShardFiles;
use crate::file::span::{At, LevelId, LevelSet, Span};

/// Bytes to fetch.
#[derive(Debug)]
pub struct Transfer<'a> {
    /// The file.
    pub shard: ShardId,
    /// First byte [bytes from the start of the file].
    pub offset: u64,
    /// Where they go; its length is the length of the read.
    pub into: &'a mut [u8],
}

/// What a test pretends that the kernel did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// At most so many bytes come.
    Short(usize),
    /// An error, by number.
    Errno(i32),
    /// The file ends here.
    End,
    /// The answer takes so long.
    Stall(Duration),
}

/// One system call.
///
/// Short and interrupted answers are passed on as they are: `retry.rs` decides what follows.
pub trait FileIo: Send + Sync {
    /// The files.
    fn files(&self) -> &ShardFiles;

    /// The file to read the `length` bytes at `at` from, or the first of them; never one of a level
    /// in `left_out`.
    ///
    /// # Errors
    /// Where a file of the source cannot be opened. A level that cannot answer is passed over.
    fn span(&self, at: At, length: usize, left_out: LevelSet) -> io::Result<Span<'_>> {
        let _ = left_out;
        self.files().source_span(at, length)
    }

    /// Learns that a copy did not have the bytes that its span promised; the read goes on at the
    /// levels below.
    fn copy_failed(&self, level: LevelId, at: At, error: &io::Error) {
        let _ = (level, at, error);
    }

    /// Reads the first bytes of a span: first into `head`, which may be empty, then into `into`;
    /// together these are no longer than the span. One preadv(2).
    fn pread(&self, span: &Span<'_>, head: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        pread_span(span, head, into)
    }

    /// What to pretend about a request of `length` bytes that another way than [`FileIo::pread`]
    /// (`io_uring`) is about to make; always `None` outside tests.
    fn pretend(&self, at: At, length: usize) -> Option<Fault> {
        let _ = (at, length);
        None
    }

    /// Learns how long a request took that another way than [`FileIo::pread`] (`io_uring`) made of
    /// a level, and how many bytes came. Requests that are under way together share the time.
    fn answered(&self, level: LevelId, bytes: usize, took: Duration) {
        let _ = (level, bytes, took);
    }

    /// Whether an `io_uring` may be made; only tests say no.
    fn may_ring(&self) -> io::Result<()> {
        Ok(())
    }

    /// Present size of a file \[bytes\].
    fn present_bytes(&self, shard: ShardId) -> io::Result<u64> {
        self.files().present_bytes(shard)
    }

    /// Opens a file again whose handle went stale.
    fn reopen(&self, shard: ShardId) -> Result<(), ReadError> {
        self.files().reopen(shard)
    }

    /// Waits before another attempt.
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Reads the first bytes of a span, first into `head`, then into `into`, by one system call.
///
/// # Errors
/// Those of the system.
pub fn pread_span(span: &Span<'_>, head: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
    let descriptor = span.descriptor.as_fd();
    if head.is_empty() {
        return Ok(rustix::io::pread(descriptor, into, span.offset)?);
    }
    let mut places = [IoSliceMut::new(head), IoSliceMut::new(into)];
    Ok(rustix::io::preadv(descriptor, &mut places, span.offset)?)
}

impl FileIo for ShardFiles {
    fn files(&self) -> &ShardFiles {
        self
    }
}

impl<I: FileIo + ?Sized> FileIo for Arc<I> {
    fn files(&self) -> &ShardFiles {
        (**self).files()
    }

    fn span(&self, at: At, length: usize, left_out: LevelSet) -> io::Result<Span<'_>> {
        (**self).span(at, length, left_out)
    }

    fn copy_failed(&self, level: LevelId, at: At, error: &io::Error) {
        (**self).copy_failed(level, at, error);
    }

    fn pread(&self, span: &Span<'_>, head: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        (**self).pread(span, head, into)
    }

    fn pretend(&self, at: At, length: usize) -> Option<Fault> {
        (**self).pretend(at, length)
    }

    fn answered(&self, level: LevelId, bytes: usize, took: Duration) {
        (**self).answered(level, bytes, took);
    }

    fn may_ring(&self) -> io::Result<()> {
        (**self).may_ring()
    }

    fn present_bytes(&self, shard: ShardId) -> io::Result<u64> {
        (**self).present_bytes(shard)
    }

    fn reopen(&self, shard: ShardId) -> Result<(), ReadError> {
        (**self).reopen(shard)
    }

    fn pause(&self, time: Duration) {
        (**self).pause(time);
    }
}
