//! The backing directory, which holds the real files. Files are reached from descriptors of
//! directories, never by a path and never through a link.
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, Timespec, Timestamps};

/// Identifies a file independent of its names: device, inode and, if known, the time of creation,
/// since inode numbers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    device: (u32, u32),
    inode: u64,
    birth: (i64, u32),
}

/// Size and time of modification: differ after a change of the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    size: u64,
    modified: (i64, u32),
}

/// The status of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status(Statx);

impl Status {
    /// Status of `name` in a directory, without following a link. `.` is the directory.
    pub(crate) fn at(directory: impl AsFd, name: &OsStr) -> io::Result<Status> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        Ok(Status(rustix::fs::statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, wanted)?))
    }

    /// Status of an open file.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Status> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        Ok(Status(rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?))
    }

    pub(crate) fn key(&self) -> Key {
        let born = StatxFlags::from_bits_retain(self.0.stx_mask).contains(StatxFlags::BTIME);
        Key {
            device: (self.0.stx_dev_major, self.0.stx_dev_minor),
            inode: self.0.stx_ino,
            birth: if born { (self.0.stx_btime.tv_sec, self.0.stx_btime.tv_nsec) } else { (0, 0) },
        }
    }

    pub(crate) fn version(&self) -> Version {
        Version { size: self.0.stx_size, modified: (self.0.stx_mtime.tv_sec, self.0.stx_mtime.tv_nsec) }
    }

    pub(crate) fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    pub(crate) fn kind(&self) -> FileType {
        kind_of(rustix::fs::FileType::from_raw_mode(self.0.stx_mode.into()))
    }

    /// The attributes for the kernel, under the emulator's inode number.
    pub(crate) fn attributes(&self, inode: u64) -> FileAttr {
        let time = |stamp: rustix::fs::StatxTimestamp| {
            let nanoseconds = Duration::from_nanos(stamp.tv_nsec.into());
            if stamp.tv_sec >= 0 {
                SystemTime::UNIX_EPOCH + Duration::from_secs(stamp.tv_sec as u64) + nanoseconds
            } else {
                SystemTime::UNIX_EPOCH - Duration::from_secs(stamp.tv_sec.unsigned_abs()) + nanoseconds
            }
        };
        FileAttr {
            ino: INodeNo(inode),
            size: self.0.stx_size,
            blocks: self.0.stx_blocks,
            atime: time(self.0.stx_atime),
            mtime: time(self.0.stx_mtime),
            ctime: time(self.0.stx_ctime),
            crtime: SystemTime::UNIX_EPOCH,
            kind: self.kind(),
            perm: self.0.stx_mode & 0o7777,
            nlink: self.0.stx_nlink,
            uid: self.0.stx_uid,
            gid: self.0.stx_gid,
            rdev: rustix::fs::makedev(self.0.stx_rdev_major, self.0.stx_rdev_minor) as u32,
            blksize: self.0.stx_blksize,
            flags: 0,
        }
    }
}

/// Converts the type of a file.
pub(crate) fn kind_of(kind: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as Found;
    match kind {
        Found::Directory => FileType::Directory,
        Found::Symlink => FileType::Symlink,
        Found::Fifo => FileType::NamedPipe,
        Found::Socket => FileType::Socket,
        Found::CharacterDevice => FileType::CharDevice,
        Found::BlockDevice => FileType::BlockDevice,
        Found::RegularFile | Found::Unknown => FileType::RegularFile,
    }
}

/// Opens a directory for `*at` calls. The descriptor survives a rename.
pub(crate) fn open_directory(parent: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

/// Flags for opening the backing file.
///
/// The access mode passes through. `O_DIRECT` concerns the cache of the mount; the backing file
/// should be read from memory. The kernel implements `O_APPEND` and `O_TRUNC`.
pub(crate) fn open_flags(flags: i32) -> OFlags {
    let mode = OFlags::from_bits_retain(flags as u32) & OFlags::RWMODE;
    mode | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK
}

/// Times to set; `None` leaves a time unchanged.
pub(crate) fn timestamps(access: Option<TimeOrNow>, modification: Option<TimeOrNow>) -> Timestamps {
    let one = |time: Option<TimeOrNow>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => Timespec { tv_sec: after.as_secs() as i64, tv_nsec: after.subsec_nanos().into() },
            Err(before) => {
                let before = before.duration();
                // Nanoseconds count forward from the preceding second.
                let borrow = i64::from(before.subsec_nanos() > 0);
                Timespec {
                    tv_sec: -(before.as_secs() as i64) - borrow,
                    tv_nsec: borrow * 1_000_000_000 - i64::from(before.subsec_nanos()),
                }
            }
        },
    };
    Timestamps { last_access: one(access), last_modification: one(modification) }
}

/// The error number for the program.
pub(crate) fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Reads until the buffer is full or the file ends; returns the number of bytes.
pub(crate) fn read_full(file: impl AsFd, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(&file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(filled)
}

/// Writes all bytes.
pub(crate) fn write_full(file: impl AsFd, data: &[u8], offset: u64) -> io::Result<()> {
    let mut written = 0;
    while written < data.len() {
        match rustix::io::pwrite(&file, &data[written..], offset + written as u64) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::EIO)),
            Ok(count) => written += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The I/O error of an error number.
pub(crate) fn error_number(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}
