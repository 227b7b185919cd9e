//! What is asked of a file that is opened: on which file system it lies, and whether it can be read
//! around the page cache.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, StatxFlags};
use rustix::io::DupFlags;

use crate::error::ReadError;
use crate::file::system::FileSystem;

/// Alignment of offsets, lengths and memory for reads around the page cache \[bytes\].
///
/// Every disk and file system of the facts accepts it; what wants more is treated as if it refused
/// `O_DIRECT`.
pub const DIRECT_ALIGN_BYTES: u64 = 4096;

pub(crate) fn open_error(path: &Path, action: &'static str) -> impl Fn(rustix::io::Errno) -> ReadError {
    move |errno| ReadError::Open { path: path.to_owned(), action, source: errno.into() }
}

/// Opens a file for reads around the page cache, or says why not.
pub(crate) fn open_direct(path: &Path, file_system: &FileSystem) -> Result<OwnedFd, String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::DIRECT;
    let descriptor = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
        let source = io::Error::from(errno);
        format!("{} ({}) cannot be opened with O_DIRECT: {source}", path.display(), file_system.name)
    })?;
    // Before Linux 6.1, and on file systems that do not answer, the first read tells (EINVAL).
    if let Ok(answer) = rustix::fs::statx(&descriptor, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && StatxFlags::from_bits_retain(answer.stx_mask).contains(StatxFlags::DIOALIGN)
    {
        let align = u64::from(answer.stx_dio_offset_align.max(answer.stx_dio_mem_align));
        if answer.stx_dio_offset_align == 0 {
            return Err(format!("{} ({}) does not support O_DIRECT", path.display(), file_system.name));
        }
        if align > DIRECT_ALIGN_BYTES {
            return Err(format!(
                "{} ({}) wants O_DIRECT reads aligned to {align} bytes, more than {DIRECT_ALIGN_BYTES}",
                path.display(),
                file_system.name
            ));
        }
    }
    Ok(descriptor)
}

/// Kind of the file system that a descriptor's file lies on.
///
/// # Errors
/// The system cannot tell.
pub fn file_system(descriptor: impl AsFd) -> rustix::io::Result<FileSystem> {
    // The type of f_type differs between architectures; the numbers have 32 bits.
    let magic = u64::from(rustix::fs::fstatfs(descriptor)?.f_type as u32);
    Ok(FileSystem::from_magic(magic))
}

/// Kind of the file system at a path.
pub fn file_system_at(path: &Path) -> Result<FileSystem, ReadError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let descriptor = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(open_error(path, "open"))?;
    file_system(descriptor).map_err(open_error(path, "inspect the file system"))
}

pub(crate) fn replace(new: &OwnedFd, old: &OwnedFd) -> rustix::io::Result<()> {
    use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
    // SAFETY: the number is owned by `old`, which stays its owner; the temporary gives it back
    // below unclosed.
    let mut target = unsafe { OwnedFd::from_raw_fd(old.as_raw_fd()) };
    let answer = rustix::io::dup3(new, &mut target, DupFlags::CLOEXEC);
    let _ = target.into_raw_fd();
    answer
}

pub(crate) fn file_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

pub(crate) fn modified_ns(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
}
