//! One data file, opened once for all that read it: the index build, single samples, and the
//! readers of loaders.
//!
//! It is opened read-only and must be a regular file. Its size and last change are remembered, so
//! that it is known whether a path still leads to the same file. A second descriptor, for reads
//! around the page cache, is opened where it is first asked for. A descriptor that goes stale
//! (ESTALE: an NFS server restarted, for example) is replaced under its own number by `dup3`, which
//! is atomic: readers in other threads use the old file or the new one, never none.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{Advice, FileType, Mode, OFlags, Stat};

use crate::error::ReadError;
use crate::file::open::{file_bytes, modified_ns, open_direct, open_error, replace};
use crate::file::read_at::ReadAt;
use crate::file::system::FileSystem;

/// See the module header.
pub struct DataFile {
    path: PathBuf,
    stat: Stat,
    buffered: OwnedFd,
    direct: OnceLock<OwnedFd>,
    reopening: Mutex<()>,
}

impl DataFile {
    /// Opens the file at a path.
    ///
    /// # Errors
    /// A path that cannot be opened, or leads to no regular file.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        // NONBLOCK: a FIFO of that name must not hang the open; it means nothing for regular files.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let descriptor =
            rustix::fs::open(path, flags, Mode::empty()).map_err(open_error(path, "open for reading"))?;
        Self::from_descriptor(descriptor, path)
    }

    /// Takes an open file; `path` is where it was found.
    ///
    /// # Errors
    /// A descriptor of anything but a regular file.
    pub fn from_descriptor(buffered: OwnedFd, path: &Path) -> Result<Self, ReadError> {
        let stat = rustix::fs::fstat(&buffered).map_err(open_error(path, "inspect"))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Err(ReadError::NoFile { path: path.to_owned(), found: format!("{kind:?}") });
        }
        Ok(Self { path: path.to_owned(), stat, buffered, direct: OnceLock::new(), reopening: Mutex::new(()) })
    }

    /// Where it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size when it was opened \[bytes\].
    pub fn bytes_when_opened(&self) -> u64 {
        file_bytes(&self.stat)
    }

    /// Whether its path still leads to this very file, of the same size and last change.
    #[must_use]
    pub fn is_at_its_path(&self) -> bool {
        rustix::fs::stat(&self.path).is_ok_and(|now| {
            (now.st_dev, now.st_ino) == (self.stat.st_dev, self.stat.st_ino) && self.is_as_opened(&now)
        })
    }

    /// Asks the kernel to fetch what is asked for and nothing beyond it, or to read ahead as it
    /// does by itself. It may do nothing: some network file systems refuse advice.
    pub fn read_ahead(&self, wanted: bool) {
        let advice = if wanted { Advice::Normal } else { Advice::Random };
        let _ = rustix::fs::fadvise(&self.buffered, 0, None, advice);
    }

    pub(crate) fn stat(&self) -> &Stat {
        &self.stat
    }

    pub(crate) fn buffered(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }

    /// The descriptor for reads around the page cache, if it was opened.
    pub(crate) fn direct(&self) -> Option<BorrowedFd<'_>> {
        self.direct.get().map(AsFd::as_fd)
    }

    /// Opens the file for reads around the page cache, unless it is open so, or says why not.
    pub(crate) fn open_direct(&self, file_system: &FileSystem) -> Result<(), String> {
        if self.direct.get().is_none() {
            let descriptor = open_direct(&self.path, file_system)?;
            let _ = self.direct.set(descriptor);
        }
        Ok(())
    }

    /// Opens the path again under the same descriptor numbers; it must lead to a file of the same
    /// size and last change.
    pub(crate) fn reopen_as(&self, file_system: &FileSystem) -> Result<(), ReadError> {
        let _one_at_a_time = self.reopening.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = Self::open(&self.path)?;
        if !self.is_as_opened(&opened.stat) {
            return Err(ReadError::Replaced {
                path: self.path.clone(),
                expected_bytes: file_bytes(&self.stat),
                expected_ns: modified_ns(&self.stat),
                found_bytes: file_bytes(&opened.stat),
                found_ns: modified_ns(&opened.stat),
            });
        }
        let fail = || open_error(&self.path, "replace the stale descriptor");
        replace(&opened.buffered, &self.buffered).map_err(fail())?;
        if let Some(descriptor) = self.direct.get() {
            // Without O_DIRECT the descriptor serves as well, through the page cache.
            let direct = open_direct(&self.path, file_system).unwrap_or(opened.buffered);
            replace(&direct, descriptor).map_err(fail())?;
        }
        Ok(())
    }

    fn is_as_opened(&self, now: &Stat) -> bool {
        (file_bytes(now), modified_ns(now)) == (file_bytes(&self.stat), modified_ns(&self.stat))
    }
}

impl ReadAt for DataFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(file_bytes(&rustix::fs::fstat(&self.buffered)?))
    }

    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::pread(&self.buffered, into, offset)?)
    }

    fn will_need(&self, offset: u64, length: u64) {
        if let Some(length) = NonZeroU64::new(length) {
            let _ = rustix::fs::fadvise(&self.buffered, offset, Some(length), Advice::WillNeed);
        }
    }

    fn reopen(&self) -> Result<(), ReadError> {
        let kind =
            crate::file::open::file_system(&self.buffered).unwrap_or_else(|_| FileSystem::from_magic(0));
        self.reopen_as(&kind)
    }
}

impl fmt::Debug for DataFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("DataFile").field(&self.path).finish()
    }
}
