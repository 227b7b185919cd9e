//! Opens what lies beneath a directory, and nothing else: no symbolic link is followed on the way.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens `name`, which lies beneath the directory `root`, for reading. A symbolic link anywhere in
/// it, and a way out of the directory, are errors (`ELOOP`, `EXDEV`).
///
/// Before Linux 5.6, and where a sandbox forbids openat2(2), only the last component is kept from
/// being a link.
pub fn open_beneath(root: impl AsFd, name: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    // NONBLOCK: a FIFO of that name must not hang the open; it means nothing for regular files and
    // directories.
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(&root, name, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(root, name, flags, Mode::empty()),
        answer => answer,
    }
}
