//! Answers large reads from a mapping of the backing file: the kernel copies once, from the page
//! cache to the reader. A buffer in between is a second copy, which took a third of the time of a
//! large reply (docs/results/emulator.md).
//!
//! A mapping keeps the length of the file at its creation; later growth is read instead. Only the
//! kernel accesses the bytes, inside the call that sends them: if another process truncates the
//! file at that moment, this one reply fails.
#![allow(unsafe_code)]
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use memmap2::{Advice, Mmap};

/// Smallest read that is answered from the mapping \[B\]; a smaller one is cheaper to copy.
const MAPPED_BYTES: usize = 64 * 1024;

/// A mapping of an open file, created at the first large read.
#[derive(Debug, Default)]
pub(crate) struct Mapping(OnceLock<Option<Mmap>>);

impl Mapping {
    /// Whether a read is answered from the mapping.
    pub(crate) fn serves(&self, file: impl AsFd, offset: u64, length: usize) -> bool {
        let map = || {
            // SAFETY: the bytes are passed to system calls only, which check each access (see the
            // module header); this process never dereferences them.
            unsafe { Mmap::map(file.as_fd().as_raw_fd()) }.ok()
        };
        length >= MAPPED_BYTES && {
            self.0.get_or_init(map);
            self.bytes(offset, length).is_some()
        }
    }

    /// The bytes of a range inside the mapping, to be passed to system calls only.
    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        self.0.get()?.as_ref()?.get(start..start.checked_add(length)?)
    }

    /// Reads a range into memory, so that sending it does not wait for a disk.
    pub(crate) fn populate(&self, offset: u64, length: usize) {
        if let Some(Some(map)) = self.0.get() {
            // Linux before 5.14 refuses: then the send reads the pages.
            let _ = map.advise_range(Advice::PopulateRead, offset as usize, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE_BYTES: usize = 4 * MAPPED_BYTES;

    fn file() -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        rustix::io::pwrite(&file, &vec![7; FILE_BYTES], 0).unwrap();
        file
    }

    #[test]
    fn only_large_reads_inside_the_file_are_served() {
        let (file, mapping) = (file(), Mapping::default());
        assert!(!mapping.serves(&file, 0, MAPPED_BYTES - 1));
        assert!(mapping.bytes(0, 1).is_none(), "a small read has created the mapping");
        assert!(mapping.serves(&file, 4096, MAPPED_BYTES));
        mapping.populate(4096, MAPPED_BYTES);
        assert_eq!(mapping.bytes(4096, 10), Some(&[7; 10][..]));
        file.set_len(2 * FILE_BYTES as u64).unwrap();
        for (offset, length) in
            [(FILE_BYTES as u64 - 1, MAPPED_BYTES), (u64::MAX, MAPPED_BYTES), (1, usize::MAX)]
        {
            assert!(!mapping.serves(&file, offset, length), "{offset} {length}");
        }
    }

    #[test]
    fn sending_truncated_bytes_is_an_error_and_no_signal() {
        let (file, mapping) = (file(), Mapping::default());
        assert!(mapping.serves(&file, 0, FILE_BYTES));
        file.set_len(0).unwrap();
        mapping.populate(0, FILE_BYTES);
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let sent = rustix::io::write(&writer, mapping.bytes(0, 10).unwrap());
        assert_eq!(sent, Err(rustix::io::Errno::FAULT));
    }
}
