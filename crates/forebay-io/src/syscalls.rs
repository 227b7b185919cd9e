//! The read seam: everything that asks the kernel for bytes goes through [`FileIo`], one system
//! call at a time.
//!
//! [`ShardFiles`] is the real one; `FaultyIo` (`fault_injection.rs`) stands between in tests.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use forebay_types::ShardId;

use crate::error::ReadError;
use crate::files::ShardFiles;

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

/// Where a read starts, and by which way it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// The file.
    pub shard: ShardId,
    /// First byte [bytes from the start of the file].
    pub offset: u64,
    /// Around the page cache.
    pub direct: bool,
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

    /// Reads bytes at an offset: first into `head`, which may be empty, then into `into`. One
    /// preadv(2).
    fn pread(&self, at: At, head: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        let descriptor = self.files().descriptor(at.shard, at.direct)?;
        if head.is_empty() {
            return Ok(rustix::io::pread(descriptor, into, at.offset)?);
        }
        let mut places = [IoSliceMut::new(head), IoSliceMut::new(into)];
        Ok(rustix::io::preadv(descriptor, &mut places, at.offset)?)
    }

    /// What to pretend about a request of `length` bytes that another way than [`FileIo::pread`]
    /// (`io_uring`) is about to make; always `None` outside tests.
    fn pretend(&self, at: At, length: usize) -> Option<Fault> {
        let _ = (at, length);
        None
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

impl FileIo for ShardFiles {
    fn files(&self) -> &ShardFiles {
        self
    }
}

impl<I: FileIo + ?Sized> FileIo for Arc<I> {
    fn files(&self) -> &ShardFiles {
        (**self).files()
    }

    fn pread(&self, at: At, head: &mut [u8], into: &mut [u8]) -> io::Result<usize> {
        (**self).pread(at, head, into)
    }

    fn pretend(&self, at: At, length: usize) -> Option<Fault> {
        (**self).pretend(at, length)
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
