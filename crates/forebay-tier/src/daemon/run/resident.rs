//! Reads what is in the page cache, and nothing else: copies follow the reads of programs.
//!
//! mincore(2) tells what is there, but the truth only to those who own or may write a file. For
//! others a read with `RWF_NOWAIT` tells, where the file system takes it. Since Linux 5.10 such a
//! read that fails starts to read ahead, so with `--fetch none` it is not tried. Else nothing is
//! known.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use forebay_plan::Fetch;
use rustix::fs::{Access, access};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::read_all::read_all;

/// How it is found out whether bytes of a file are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residency {
    /// By mincore(2).
    Mincore,
    /// By reads that do not wait. They may bring more into memory.
    NoWait,
    /// It is not.
    Unknown,
}

impl Residency {
    /// The best way for a file.
    pub(super) fn of(file: BorrowedFd<'_>, path: &Path, fetch: Fetch) -> Self {
        match fetch {
            _ if is_told_the_truth(file, path) => Self::Mincore,
            Fetch::None => Self::Unknown,
            Fetch::Follow | Fetch::Whole => Self::NoWait,
        }
    }

    /// Reads `into` from `offset` on if all of it is in memory; else `false`.
    pub(super) fn read(&mut self, file: BorrowedFd<'_>, offset: u64, into: &mut [u8]) -> io::Result<bool> {
        if *self == Self::NoWait {
            match read_without_waiting(file, offset, into) {
                Ok(is_read) => return Ok(is_read),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => *self = Self::Unknown,
                Err(error) => return Err(error.into()),
            }
        }
        if *self == Self::Mincore {
            match is_resident(file, offset, into.len()) {
                Ok(true) => return read_all(file, offset, into).map(|()| true),
                Ok(false) => return Ok(false),
                Err(_) => *self = Self::Unknown,
            }
        }
        Ok(false)
    }
}

fn read_without_waiting(file: BorrowedFd<'_>, offset: u64, into: &mut [u8]) -> Result<bool, Errno> {
    let mut done = 0;
    while done < into.len() {
        let mut parts = [io::IoSliceMut::new(&mut into[done..])];
        match preadv2(file, &mut parts, offset + done as u64, ReadWriteFlags::NOWAIT) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(false),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn is_told_the_truth(file: BorrowedFd<'_>, path: &Path) -> bool {
    let own = rustix::process::geteuid();
    own.is_root()
        || rustix::fs::fstat(file).is_ok_and(|found| found.st_uid == own.as_raw())
        || access(path, Access::WRITE_OK).is_ok()
}

fn is_resident(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<bool> {
    let page = rustix::param::page_size();
    debug_assert!(offset.is_multiple_of(page as u64));
    let mut pages = vec![0_u8; bytes.div_ceil(page)];
    // SAFETY: a new mapping, which nobody else knows, is made and removed; its bytes are not
    // touched.
    unsafe {
        let place: *mut c_void =
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), offset)?;
        let told = libc::mincore(place, bytes, pages.as_mut_ptr());
        munmap(place, bytes)?;
        if told != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(pages.iter().all(|page| page & 1 != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File};
    use std::thread::sleep;
    use std::time::Duration;

    const LOOKED_BYTES: usize = 1 << 16;

    /// Drops a file from the page cache. The kernel keeps pages that something else uses at the
    /// moment.
    fn drop_pages(file: &File) {
        for _ in 0..1000 {
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            if !is_resident(file.as_fd(), 0, LOOKED_BYTES).unwrap() {
                return;
            }
            sleep(Duration::from_millis(1));
        }
        panic!("the kernel keeps the pages");
    }

    #[test]
    fn what_is_in_memory_is_read_and_nothing_else() {
        let place = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
        let path = place.path().join("x");
        let bytes: Vec<u8> = (0..1_u32 << 18).map(|at| (at * 7) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        for way in [Residency::NoWait, Residency::Mincore] {
            let mut into = vec![0; LOOKED_BYTES];
            let mut residency = way;
            fs::read(&path).unwrap();
            assert!(residency.read(file.as_fd(), 1 << 16, &mut into).unwrap());
            assert_eq!(into, bytes[1 << 16..1 << 17]);
            assert_eq!(residency, way);
            drop_pages(&file);
            assert!(!residency.read(file.as_fd(), 0, &mut into).unwrap());
        }
        let mut unknown = Residency::Unknown;
        assert!(!unknown.read(file.as_fd(), 0, &mut [0; 10]).unwrap());
    }

    #[test]
    fn looking_at_an_own_file_brings_nothing_of_it_into_memory() {
        let place = tempfile::tempdir_in(std::env::current_dir().unwrap()).unwrap();
        let path = place.path().join("x");
        fs::write(&path, vec![1; 1 << 18]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        drop_pages(&file);
        for fetch in [Fetch::Follow, Fetch::None, Fetch::Whole] {
            let mut residency = Residency::of(file.as_fd(), &path, fetch);
            assert_eq!(residency, Residency::Mincore);
            for _ in 0..3 {
                assert!(!residency.read(file.as_fd(), 0, &mut vec![0; LOOKED_BYTES]).unwrap());
                sleep(Duration::from_millis(20));
            }
        }
    }
}
