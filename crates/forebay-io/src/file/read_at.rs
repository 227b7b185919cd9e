//! A file, or anything else that can be read at an offset.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::error::ReadError;

/// Bytes that can be read at an offset, by several threads at once.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// Present length \[bytes\].
    fn bytes(&self) -> io::Result<u64>;

    /// Reads at most `into.len()` bytes from `offset` on; 0 at the end. One system call:
    /// [`read_most`](crate::read_most) decides what follows its answer.
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
