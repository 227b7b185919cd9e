//! Where the bytes come from: a file, or anything else that can be read at an offset.
//!
//! [`DataFile`] opens for reading only and never maps: a mapped file that shrinks kills the process, a `pread` of one
//! comes back short. The kernel's own read-ahead is switched off, because the walk knows exactly which pages it wants
//! and says so ([`ReadAt::will_need`]); anything read beyond them would be wasted on shared storage. [`Input`] is what the
//! formats read through: it knows the name and the size of its file, counts, and puts both into its errors.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, FileType, Mode, OFlags};

use crate::Error;

/// Bytes that can be read at an offset, by several threads at once.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// Present length \[bytes\].
    fn bytes(&self) -> io::Result<u64>;

    /// Reads at most `into.len()` bytes from `offset` on; 0 at the end.
    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Announces that these bytes are read soon. Reads nothing else, and may do nothing.
    fn will_need(&self, offset: u64, length: u64) {
        let _ = (offset, length);
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
        Self::of(fd, path)
    }

    /// Takes an open file, which must be a regular one.
    pub(crate) fn of(fd: OwnedFd, path: &Path) -> Result<Self, Error> {
        let io = |action: &str, errno: rustix::io::Errno| Error::Io {
            action: action.to_owned(),
            path: path.to_owned(),
            offset: None,
            source: errno.into(),
        };
        let kind =
            FileType::from_raw_mode(rustix::fs::fstat(&fd).map_err(|errno| io("inspect", errno))?.st_mode);
        if kind != FileType::RegularFile {
            return Err(Error::Unsupported {
                path: path.to_owned(),
                what: "a data file that is not a regular file".to_owned(),
                found: format!("{kind:?}"),
                hint: "name a data file, or the directory of an LMDB database".to_owned(),
            });
        }
        // Advice may be refused (some network file systems); reading works without.
        let _ = rustix::fs::fadvise(&fd, 0, None, Advice::Random);
        Ok(Self { fd })
    }
}

impl ReadAt for DataFile {
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

/// A data file that a format reads, with its name, its size when it was opened, and what reading has cost.
#[derive(Debug)]
pub struct Input {
    path: PathBuf,
    source: Arc<dyn ReadAt>,
    bytes: u64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl Input {
    /// Opens a regular file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::from_source(path, Arc::new(DataFile::open(path)?))
    }

    /// Takes `source` for the file at `path`.
    pub fn from_source(path: &Path, source: Arc<dyn ReadAt>) -> Result<Self, Error> {
        let bytes = source.bytes().map_err(|source| Error::Io {
            action: "inspect".to_owned(),
            path: path.to_owned(),
            offset: None,
            source,
        })?;
        let (reads, read_bytes) = Default::default();
        Ok(Self { path: path.to_owned(), source, bytes, reads, read_bytes })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size when it was opened \[bytes\].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is read, by readers that count for themselves.
    pub(crate) fn source(&self) -> &Arc<dyn ReadAt> {
        &self.source
    }

    /// Number of reads so far.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Bytes read so far.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// The same file, read through what `wrap` makes of its source.
    #[must_use]
    pub(crate) fn read_through(&self, wrap: impl FnOnce(Arc<dyn ReadAt>) -> Arc<dyn ReadAt>) -> Self {
        let (path, source) = (self.path.clone(), wrap(Arc::clone(&self.source)));
        let (reads, read_bytes) = Default::default();
        Self { path, source, bytes: self.bytes, reads, read_bytes }
    }

    /// Announces that these bytes are read soon.
    pub fn will_need(&self, offset: u64, length: u64) {
        self.source.will_need(offset, length);
    }

    /// Reads until `into` is full or the file ends; returns the number of bytes.
    pub fn read_most(&self, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < into.len() {
            let at = offset.saturating_add(done as u64);
            match self.source.pread(at, &mut into[done..]) {
                Ok(0) => break,
                Ok(count) => {
                    self.reads.fetch_add(1, Ordering::Relaxed);
                    self.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                    done += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let action = format!("read {} bytes", into.len() - done);
                    return Err(Error::Io { action, path: self.path.clone(), offset: Some(at), source });
                }
            }
        }
        Ok(done)
    }

    /// Reads exactly `into.len()` bytes of `what`; a file that ends before is [`Error::Corrupt`].
    pub fn read(&self, offset: u64, into: &mut [u8], what: &str) -> Result<(), Error> {
        let count = self.read_most(offset, into)?;
        if count == into.len() {
            return Ok(());
        }
        let expected = format!("{} bytes", into.len());
        Err(self.corrupt(offset, what, expected, format!("the end of the file after {count}")))
    }

    /// The bytes contradict the format.
    #[allow(clippy::needless_pass_by_value, reason = "callers pass numbers and texts alike")]
    pub fn corrupt(
        &self,
        offset: u64,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> Error {
        let (expected, found) = (expected.to_string(), found.to_string());
        Error::Corrupt { path: self.path.clone(), offset, what: what.into(), expected, found }
    }

    /// The file is sound but of a kind that is not read; `hint` is the way out.
    pub fn unsupported(
        &self,
        what: impl Into<String>,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Error {
        Error::Unsupported {
            path: self.path.clone(),
            what: what.into(),
            found: found.into(),
            hint: hint.into(),
        }
    }

    /// [`Error::Modified`] where the file has another size than when it was opened.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        let bytes = self.source.bytes().map_err(|source| Error::Io {
            action: "inspect".to_owned(),
            path: self.path.clone(),
            offset: None,
            source,
        })?;
        if bytes == self.bytes {
            return Ok(());
        }
        let (expected, found) = (format!("{} bytes", self.bytes), format!("{bytes} bytes"));
        Err(Error::Modified { path: self.path.clone(), what: "size".to_owned(), expected, found })
    }
}
