//! Reads a range of a file whole.

use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

/// Reads all of `into` from `offset` on.
///
/// # Errors
/// Those of the system; a file that is shorter.
pub(crate) fn read_all(file: impl AsFd, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(&file, &mut into[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
