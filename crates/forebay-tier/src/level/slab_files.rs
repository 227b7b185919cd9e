//! Slabs as files in a directory: `slabs/000017`.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Advice, AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::level::storage::LevelStorage;

/// Magic numbers of file systems in memory (statfs(2)): tmpfs and ramfs.
const MEMORY_MAGIC: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The slab files of a directory.
pub struct SlabFiles {
    directory: OwnedFd,
    is_memory: bool,
    open: Mutex<HashMap<(u32, Use), Arc<OwnedFd>>>,
}

/// What a descriptor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Use {
    Read,
    Direct,
    Write,
}

impl SlabFiles {
    /// The slab files of an open directory.
    ///
    /// # Errors
    /// Its file system cannot be asked.
    pub fn new(directory: OwnedFd) -> io::Result<Self> {
        let magic = rustix::fs::fstatfs(&directory)?.f_type as u64;
        Ok(Self { directory, is_memory: MEMORY_MAGIC.contains(&magic), open: Mutex::default() })
    }

    fn descriptor(&self, slab: u32, purpose: Use) -> io::Result<Arc<OwnedFd>> {
        let lock = || self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = lock().get(&(slab, purpose)) {
            return Ok(Arc::clone(held));
        }
        let flags = match purpose {
            Use::Read => OFlags::RDONLY,
            Use::Direct => OFlags::RDONLY | OFlags::DIRECT,
            Use::Write => OFlags::RDWR,
        };
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = Arc::new(rustix::fs::openat(&self.directory, name(slab), flags, Mode::empty())?);
        Ok(Arc::clone(lock().entry((slab, purpose)).or_insert(opened)))
    }

    fn forget(&self, slab: u32) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|(number, _), _| *number != slab);
    }
}

/// The name of a slab's file.
fn name(slab: u32) -> String {
    format!("{slab:06}")
}

impl LevelStorage for SlabFiles {
    fn slabs(&self) -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.directory)? {
            let entry = entry?;
            let number = entry.file_name().to_str().ok().and_then(|text| text.parse().ok());
            found.extend(number.filter(|number| name(*number).as_bytes() == entry.file_name().to_bytes()));
        }
        found.sort_unstable();
        Ok(found)
    }

    fn create(&self, slab: u32) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = rustix::fs::openat(&self.directory, name(slab), flags, Mode::RUSR | Mode::WUSR)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert((slab, Use::Write), Arc::new(opened));
        Ok(())
    }

    fn allocate(&self, slab: u32, bytes: u64) -> io::Result<()> {
        let file = self.descriptor(slab, Use::Write)?;
        loop {
            return match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                Ok(()) => Ok(()),
                Err(Errno::INTR) => continue,
                // Some file systems cannot reserve: then a write may find no space.
                Err(Errno::OPNOTSUPP) => {
                    if (rustix::fs::fstat(&file)?.st_size as u64) < bytes {
                        rustix::fs::ftruncate(&file, bytes)?;
                    }
                    Ok(())
                }
                Err(error) => Err(error.into()),
            };
        }
    }

    fn taken_bytes(&self, slab: u32) -> io::Result<u64> {
        let stat = rustix::fs::statat(&self.directory, name(slab), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(stat.st_blocks as u64 * 512)
    }

    fn remove(&self, slab: u32) -> io::Result<()> {
        self.forget(slab);
        Ok(rustix::fs::unlinkat(&self.directory, name(slab), AtFlags::empty())?)
    }

    fn open(&self, slab: u32, direct: bool) -> io::Result<Arc<OwnedFd>> {
        self.descriptor(slab, if direct { Use::Direct } else { Use::Read })
    }

    fn write(&self, slab: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.descriptor(slab, Use::Write)?;
        if (rustix::fs::fstat(&file)?.st_size as u64) < offset + bytes.len() as u64 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the slab was truncated"));
        }
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&file, &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn start_flush(&self, slab: u32, offset: u64, bytes: u64) -> io::Result<()> {
        let file = self.descriptor(slab, Use::Write)?;
        sync_file_range(&file, offset, bytes, libc::SYNC_FILE_RANGE_WRITE)
    }

    fn finish_flush(&self, slab: u32, offset: u64, bytes: u64) -> io::Result<()> {
        let file = self.descriptor(slab, Use::Write)?;
        let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        sync_file_range(&file, offset, bytes, wait)?;
        if let Some(length) = NonZeroU64::new(bytes) {
            // Some network file systems refuse advice.
            let _ = rustix::fs::fadvise(&file, offset, Some(length), Advice::DontNeed);
        }
        Ok(())
    }

    fn is_memory(&self) -> bool {
        self.is_memory
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let found = rustix::fs::fstatvfs(&self.directory)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

/// The system call, which rustix does not have. A file system without it is none the worse.
fn sync_file_range(file: &OwnedFd, offset: u64, bytes: u64, flags: libc::c_uint) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open; the call touches no memory of this process.
        let answer = unsafe {
            libc::sync_file_range(file.as_raw_fd(), offset as libc::off64_t, bytes as libc::off64_t, flags)
        };
        if answer == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL | libc::ESPIPE) => return Ok(()),
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_files_that_keep_what_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory.path(), flags, Mode::empty()).unwrap();
        let slabs = SlabFiles::new(opened).unwrap();
        std::fs::write(directory.path().join("17"), "not a slab").unwrap();
        slabs.create(17).unwrap();
        slabs.allocate(17, 1 << 20).unwrap();
        assert!(slabs.taken_bytes(17).unwrap() >= 1 << 20);
        slabs.write(17, 70_000, b"bytes").unwrap();
        slabs.start_flush(17, 0, 1 << 20).unwrap();
        slabs.finish_flush(17, 0, 1 << 20).unwrap();
        let mut found = [0; 5];
        rustix::io::pread(slabs.open(17, false).unwrap(), &mut found, 70_000).unwrap();
        assert_eq!((&found, slabs.slabs().unwrap()), (b"bytes", vec![17]));
        assert_eq!(slabs.create(17).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        slabs.remove(17).unwrap();
        assert!(slabs.slabs().unwrap().is_empty());
        assert!(slabs.write(17, 0, b"x").is_err() && slabs.free_bytes().unwrap() > 0);
    }
}
