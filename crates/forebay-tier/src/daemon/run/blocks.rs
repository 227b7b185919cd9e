//! The blocks in which a copy is made.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// Size of a block \[bytes\].
pub(super) const BLOCK_BYTES: u64 = 1 << 20;

/// Why blocks were not copied.
#[derive(Debug)]
pub(super) enum CopyProblem {
    /// The source could not be read.
    Source,
    /// The copy could not be written.
    Target,
}

/// Offset and length of a block in a file of so many bytes.
pub(super) fn extent(block: u32, bytes: u64) -> (u64, usize) {
    let offset = u64::from(block) * BLOCK_BYTES;
    (offset, BLOCK_BYTES.min(bytes - offset) as usize)
}

/// Writes all of `bytes` from `offset` on.
pub(super) fn write_all(file: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(file, &bytes[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
