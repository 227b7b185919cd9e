//! How blocks of a copy are written.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// Why blocks were not copied.
#[derive(Debug)]
pub(super) enum CopyProblem {
    /// The source could not be read.
    Source,
    /// The copy could not be written.
    Target,
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
