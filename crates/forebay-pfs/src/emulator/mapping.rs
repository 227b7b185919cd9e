//! Large reads are answered out of a mapping of the backing file: the kernel copies once, from the page cache to where the reader wants
//! the bytes. Reading them into a buffer first is a second copy, and was a third of what a large reply cost (docs/results/emulator.md).
//!
//! A mapping has the length that the file had when it was made; what has grown since is read. Nothing here touches the bytes: the kernel
//! does, inside the call that sends them, so that a file which somebody else cuts off in that moment is an error of this one reply.
#![allow(unsafe_code)]
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;

use memmap2::{Advice, Mmap};

/// Reads from this size on are answered out of the mapping; smaller ones cost less to copy than to map.
const MAPPED_BYTES: usize = 64 * 1024;

/// A mapping of an open file, made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Mapping(OnceLock<Option<Mmap>>);

impl Mapping {
    /// Whether a read is answered out of the mapping.
    pub(crate) fn serves(&self, file: impl AsFd, offset: u64, length: usize) -> bool {
        let map = || {
            // SAFETY: the bytes are handed to system calls only, which check every access (see above); nobody here reads them or keeps
            // a copy that must not change.
            unsafe { Mmap::map(file.as_fd().as_raw_fd()) }.ok()
        };
        length >= MAPPED_BYTES && {
            self.0.get_or_init(map);
            self.bytes(offset, length).is_some()
        }
    }

    /// The bytes of a range that the mapping serves, or of a part of it; to be handed to system calls only.
    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        self.0.get()?.as_ref()?.get(start..start.checked_add(length)?)
    }

    /// Brings a range into memory, so that sending it waits for no disk.
    pub(crate) fn populate(&self, offset: u64, length: usize) {
        if let Some(Some(map)) = self.0.get() {
            // Refused before Linux 5.14; then sending does it.
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
    fn large_reads_inside_the_file_are_served_and_no_others() {
        let (file, mapping) = (file(), Mapping::default());
        assert!(!mapping.serves(&file, 0, MAPPED_BYTES - 1));
        assert!(mapping.bytes(0, 1).is_none(), "nothing is mapped for small reads");
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
    fn sending_bytes_that_were_cut_off_is_an_error_and_no_signal() {
        let (file, mapping) = (file(), Mapping::default());
        assert!(mapping.serves(&file, 0, FILE_BYTES));
        file.set_len(0).unwrap();
        mapping.populate(0, FILE_BYTES);
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let sent = rustix::io::write(&writer, mapping.bytes(0, 10).unwrap());
        assert_eq!(sent, Err(rustix::io::Errno::FAULT));
    }
}
