//! Opens what lies beneath a directory, and nothing else, unless the caller follows symbolic links.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// What symbolic links do on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// One anywhere in the name is an error.
    Refused,
    /// They are followed, wherever they lead.
    Followed,
}

/// Opens `name`, which lies beneath the directory `root`, for reading. A symbolic link anywhere in
/// it, and a way out of the directory, are errors (`ELOOP`, `EXDEV`), unless links are followed.
///
/// Before Linux 5.6, and where a sandbox forbids openat2(2), only the last component is kept from
/// being a link.
pub fn open_beneath(
    root: impl AsFd,
    name: &Path,
    flags: OFlags,
    links: Links,
) -> rustix::io::Result<OwnedFd> {
    // NONBLOCK: a FIFO of that name must not hang the open; it means nothing for regular files and
    // directories.
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    if links == Links::Followed {
        return rustix::fs::openat(root, name, flags, Mode::empty());
    }
    let flags = flags | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(&root, name, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::openat(root, name, flags, Mode::empty()),
        answer => answer,
    }
}
