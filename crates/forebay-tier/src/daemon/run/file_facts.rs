//! What the daemon finds of a file of a source.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use forebay_table::{Identity, SourceFile};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags, flistxattr, makedev, open, statx};

use crate::source::SourceState;

/// Opens a file to copy it: no link, no pipe, nothing that waits.
pub(super) fn open_source(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(open(path, flags, Mode::empty())?)
}

/// What identifies an open file, and all that `stat` shows of it. The time of its last access is
/// not asked for, as FUSE would ask the server.
pub(super) fn source_file(file: BorrowedFd<'_>) -> io::Result<SourceFile> {
    Ok(of_statx(&statx(file, c"", AtFlags::EMPTY_PATH, wanted())?))
}

/// The same of a name in a directory.
pub(super) fn source_file_at(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<SourceFile> {
    Ok(of_statx(&statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, wanted())?))
}

fn wanted() -> StatxFlags {
    (StatxFlags::BASIC_STATS | StatxFlags::BTIME) - StatxFlags::ATIME
}

fn of_statx(found: &Statx) -> SourceFile {
    let ns = |time: rustix::fs::StatxTimestamp| {
        time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.into())
    };
    let told = StatxFlags::from_bits_retain(found.stx_mask);
    SourceFile {
        identity: Identity {
            device: makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            bytes: found.stx_size,
            modified_ns: ns(found.stx_mtime),
            changed_ns: ns(found.stx_ctime),
        },
        born_ns: told.contains(StatxFlags::BTIME).then(|| ns(found.stx_btime)),
        mode: found.stx_mode.into(),
        user: found.stx_uid,
        group: found.stx_gid,
        links: found.stx_nlink,
        blocks: found.stx_blocks,
        block_bytes: found.stx_blksize.into(),
    }
}

/// Whether it is a plain file.
pub(super) fn is_regular(file: &SourceFile) -> bool {
    FileType::from_raw_mode(file.mode) == FileType::RegularFile
}

/// When its last change was, as copies need it.
pub(super) fn state(file: &SourceFile) -> SourceState {
    let Identity { bytes, modified_ns, changed_ns, .. } = file.identity;
    SourceState { bytes, modified_ns, changed_ns }
}

/// Whether it has attributes that a copy would not show: access lists, and the user's own.
pub(super) fn has_attributes(file: &OwnedFd) -> bool {
    let mut names = [0_u8; 4096];
    match flistxattr(file.as_fd(), &mut names[..]) {
        Ok(length) => names[..length]
            .split(|byte| *byte == 0)
            .any(|name| name.starts_with(b"user.") || name == b"system.posix_acl_access"),
        Err(rustix::io::Errno::RANGE) => true,
        // File systems without attributes.
        Err(_) => false,
    }
}
