//! Whether a program of this node may be changing a file, also through a mapping.
//!
//! Times of a file say little of a mapping: a page that is dirty takes further stores without a new
//! time, on `tmpfs` for as long as it is mapped. The kernel grants a read lease (`F_SETLEASE`) only
//! if no program has the file open for writing, and a mapping keeps its file open. The lease is
//! given back at once.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Of fcntl(2), which libc does not have.
const F_SETSIG: libc::c_int = 10;

/// File systems whose servers grant leases, and refuse some without a writer: NFS and SMB.
const LEASES_OF_SERVERS: [i64; 4] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42];

/// Whether another description of a file is open for writing; `None` where the system does not say:
/// for files of other users, and on file systems without leases of this node, such as NFS. The
/// descriptor must be open for reading only.
#[must_use]
pub fn is_open_for_writing(file: BorrowedFd<'_>) -> Option<bool> {
    if rustix::fs::fstatfs(file).is_ok_and(|found| LEASES_OF_SERVERS.contains(&found.f_type)) {
        return None;
    }
    let file = file.as_raw_fd();
    // A program that opens the file for writing just now waits until the lease is given back. The
    // kernel tells the holder by a signal: the default would end the process, this one is ignored.
    // SAFETY: the calls take an open descriptor and numbers.
    let answer = unsafe {
        libc::fcntl(file, F_SETSIG, libc::SIGURG);
        libc::fcntl(file, libc::F_SETLEASE, libc::F_RDLCK)
    };
    if answer == 0 {
        // SAFETY: as above.
        unsafe { libc::fcntl(file, libc::F_SETLEASE, libc::F_UNLCK) };
        return Some(false);
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    (error == Some(libc::EAGAIN)).then_some(true)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_file_is_being_written_while_it_is_open_or_mapped_for_writing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, [1; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        let Some(found) = is_open_for_writing(file.as_fd()) else { return };
        assert!(!found);
        let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert_eq!(is_open_for_writing(file.as_fd()), Some(true));
        // SAFETY: no other code has this file.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                4096,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &writer,
                0,
            )
            .unwrap()
        };
        drop(writer);
        assert_eq!(is_open_for_writing(file.as_fd()), Some(true));
        // SAFETY: it was mapped above, and nobody uses it.
        unsafe { rustix::mm::munmap(map, 4096).unwrap() };
        assert_eq!(is_open_for_writing(file.as_fd()), Some(false));
        // The lease was given back: a writer need not wait.
        drop(OpenOptions::new().write(true).open(&path).unwrap());
    }
}
