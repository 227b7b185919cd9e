//! Where the bytes come from: a file, or anything else that can be read at an offset.
//!
//! [`DataFile`] opens for reading only and never maps: a mapped file that shrinks kills the process, a `pread` of one
//! comes back short. The kernel's own read-ahead is switched off, because the walk knows exactly which pages it wants
//! and says so ([`Source::will_need`]); anything read beyond them would be wasted on shared storage.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, FileType, Mode, OFlags};

use super::fault::{Fault, Trouble};
use crate::Error;

/// Bytes that can be read at an offset, by several threads at once.
pub trait Source: Send + Sync + fmt::Debug {
    /// Present length \[bytes\].
    fn bytes(&self) -> io::Result<u64>;

    /// Reads at most `into.len()` bytes from `offset` on; 0 at the end.
    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Announces that these bytes are read soon. Reads nothing else, and may do nothing.
    fn will_need(&self, offset: u64, length: u64) {
        let _ = (offset, length);
    }
}

/// A database in memory; a short slice is a truncated file.
impl Source for Vec<u8> {
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

/// A data file, open for reading.
#[derive(Debug)]
pub struct DataFile {
    fd: OwnedFd,
}

impl DataFile {
    /// Opens a regular file read-only.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |action: &str, errno: rustix::io::Errno| Error::Io {
            action: action.to_owned(),
            path: path.to_owned(),
            offset: None,
            source: errno.into(),
        };
        // NONBLOCK: a FIFO of that name must not hang the open; it means nothing for regular files.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| io("open for reading", errno))?;
        let kind =
            FileType::from_raw_mode(rustix::fs::fstat(&fd).map_err(|errno| io("inspect", errno))?.st_mode);
        if kind != FileType::RegularFile {
            return Err(Error::Unsupported {
                path: path.to_owned(),
                what: "an LMDB data file that is not a regular file".to_owned(),
                found: format!("{kind:?}"),
                hint: "name the directory or the data file of an LMDB database".to_owned(),
            });
        }
        // Advice may be refused (some network file systems); reading works without.
        let _ = rustix::fs::fadvise(&fd, 0, None, Advice::Random);
        Ok(Self { fd })
    }
}

impl Source for DataFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(u64::try_from(rustix::fs::fstat(&self.fd)?.st_size).unwrap_or(0))
    }

    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::pread(&self.fd, into, offset)?)
    }

    fn will_need(&self, offset: u64, length: u64) {
        if let Some(length) = NonZeroU64::new(length) {
            let _ = rustix::fs::fadvise(&self.fd, offset, Some(length), Advice::WillNeed);
        }
    }
}

/// What reading has cost so far.
#[derive(Debug, Default)]
pub(super) struct Meter {
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl Meter {
    /// Number of reads.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Bytes that were read.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }
}

/// Reads until `into` is full or the source ends; interrupted reads are repeated.
pub(super) fn read_most(
    source: &dyn Source,
    offset: u64,
    into: &mut [u8],
    meter: &Meter,
) -> Result<usize, Trouble> {
    let mut done = 0;
    while done < into.len() {
        match source.pread(offset + done as u64, &mut into[done..]) {
            Ok(0) => break,
            Ok(count) => {
                meter.reads.fetch_add(1, Ordering::Relaxed);
                meter.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                done += count;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                let length = (into.len() - done) as u64;
                return Err(Trouble::Io { offset: offset + done as u64, length, source });
            }
        }
    }
    Ok(done)
}

/// Reads exactly `into.len()` bytes; a source that ends before that is truncated.
pub(super) fn read_all(
    source: &dyn Source,
    offset: u64,
    into: &mut [u8],
    meter: &Meter,
) -> Result<(), Trouble> {
    let count = read_most(source, offset, into, meter)?;
    if count == into.len() {
        return Ok(());
    }
    let expected = format!("{} bytes", into.len());
    let found = format!("the end of the file after {count} bytes");
    Err(Fault::new(offset, "LMDB pages", expected, found).into())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Answers each read with the next of a list of outcomes.
    #[derive(Debug)]
    struct Script(Mutex<Vec<io::Result<usize>>>);

    impl Source for Script {
        fn bytes(&self) -> io::Result<u64> {
            Ok(1 << 20)
        }

        fn pread(&self, _offset: u64, into: &mut [u8]) -> io::Result<usize> {
            let count = self.0.lock().expect("not poisoned").remove(0)?;
            into[..count].fill(7);
            Ok(count)
        }
    }

    fn script(outcomes: Vec<io::Result<usize>>) -> Script {
        Script(Mutex::new(outcomes))
    }

    #[test]
    fn short_and_interrupted_reads_are_completed() {
        let source = script(vec![Ok(3), Err(io::ErrorKind::Interrupted.into()), Ok(1), Ok(4)]);
        let meter = Meter::default();
        let mut bytes = [0; 8];
        read_all(&source, 100, &mut bytes, &meter).expect("all bytes");
        assert_eq!(bytes, [7; 8]);
        assert_eq!((meter.reads(), meter.read_bytes()), (3, 8));
    }

    #[test]
    fn the_end_of_the_file_is_reported_with_its_offset() {
        let source = script(vec![Ok(3), Ok(0)]);
        let trouble = read_all(&source, 100, &mut [0; 8], &Meter::default()).expect_err("truncated");
        assert_eq!(
            trouble.at(Path::new("x.mdb")).to_string(),
            "x.mdb: LMDB pages at offset 100: expected 8 bytes, found the end of the file after 3 bytes"
        );
    }

    #[test]
    fn a_failing_read_is_reported_with_its_offset() {
        let source = script(vec![Ok(3), Err(io::Error::from_raw_os_error(5))]);
        let trouble = read_all(&source, 100, &mut [0; 8], &Meter::default()).expect_err("EIO");
        assert_eq!(
            trouble.at(Path::new("x.mdb")).to_string(),
            "x.mdb: cannot read 5 bytes at offset 103: Input/output error (os error 5)"
        );
    }
}
