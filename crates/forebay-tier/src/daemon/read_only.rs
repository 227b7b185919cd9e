//! A directory as programs see it through which nothing can be changed, not even by root.
//!
//! Copies have mode 0400, which keeps their owner from writing, but not root. So a daemon with the
//! right to mount opens a clone of the level's mount, makes that read-only, and lets programs open
//! copies through the daemon's descriptor: `/proc/PID/fd/N/files/…`. The kernel then refuses all
//! changes through descriptors of copies, and through `/proc/self/fd`, with `EROFS`. The clone is
//! attached nowhere: it is gone with the daemon, however that ends.
//!
//! Daemons without that right, as those of users are, let programs open copies where they are.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{fstat, stat};

/// See the module header.
#[derive(Debug)]
pub(super) struct ReadOnlyView {
    _mount: OwnedFd,
    path: PathBuf,
}

impl ReadOnlyView {
    /// # Errors
    /// This process may not mount, the kernel is older than 5.12, or there is no `/proc`.
    pub(super) fn of(directory: BorrowedFd<'_>) -> io::Result<Self> {
        let mount = clone_mount(directory)?;
        make_read_only(mount.as_fd())?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), mount.as_raw_fd()));
        let (found, expected) = (stat(&path)?, fstat(directory)?);
        if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { _mount: mount, path })
    }

    /// Where programs find the directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn clone_mount(directory: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_EMPTY_PATH as libc::c_uint;
    // SAFETY: the path ends with a zero.
    let fd = unsafe { libc::syscall(libc::SYS_open_tree, directory.as_raw_fd(), c"".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn make_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    let attributes =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let (fd, flags, bytes) = (mount.as_raw_fd(), libc::AT_EMPTY_PATH, size_of_val(&attributes));
    // SAFETY: the path ends with a zero, and the kernel reads as many bytes as the struct has.
    let result = unsafe {
        libc::syscall(libc::SYS_mount_setattr, fd, c"".as_ptr(), flags, &raw const attributes, bytes)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};

    use super::*;

    #[test]
    fn nobody_changes_a_file_through_the_view_and_it_shows_what_is_new() {
        let place = tempfile::tempdir().unwrap();
        let directory = File::open(place.path()).unwrap();
        let view = match ReadOnlyView::of(directory.as_fd()) {
            Ok(view) => view,
            Err(error) => return eprintln!("skipped: no right to mount: {error}"),
        };
        fs::write(place.path().join("copy"), "right").unwrap();
        let path = view.path().join("copy");
        let file = File::open(&path).unwrap();
        let reopened = format!("/proc/self/fd/{}", file.as_raw_fd());
        let is_refused = |result: io::Result<()>| result.unwrap_err().raw_os_error() == Some(libc::EROFS);
        assert!(is_refused(OpenOptions::new().write(true).truncate(true).open(&reopened).map(drop)));
        assert!(is_refused(OpenOptions::new().write(true).open(&path).map(drop)));
        assert!(is_refused(fs::set_permissions(&reopened, fs::metadata(&path).unwrap().permissions())));
        assert!(is_refused(file.set_modified(std::time::SystemTime::now())));
        assert!(is_refused(fs::remove_file(&path)));
        assert_eq!(fs::read_to_string(&path).unwrap(), "right");
        fs::remove_file(place.path().join("copy")).unwrap();
        assert!(!path.exists());
    }
}
