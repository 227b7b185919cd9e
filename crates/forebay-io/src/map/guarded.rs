//! A mapped file of which a lost page is no crash: it reads as zeros, and the mapping is lost.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use memmap2::{Mmap, MmapOptions};

use crate::map::guard::Watch;

/// See the module header.
pub struct GuardedMap {
    // Drop order: the watch goes before the mapping.
    watch: Watch,
    memory: Mmap,
}

impl GuardedMap {
    /// Maps the first `bytes` of a file, read-only.
    ///
    /// # Errors
    /// The system refuses the mapping, or `bytes` is 0.
    pub fn new(descriptor: impl AsFd, bytes: usize) -> io::Result<Self> {
        // SAFETY: the mapping is read-only and shared. That another process may change the file is
        // the nature of every reader of a file; a shrinking file is what the watch is for.
        let memory = unsafe { MmapOptions::new().len(bytes).map(descriptor.as_fd().as_raw_fd()) }?;
        Ok(Self { watch: Watch::new(&memory), memory })
    }

    /// Length \[bytes\].
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Bytes of the file; `None` outside the mapping, and once a page was lost. What was made of
    /// them counts only where [`guard::faults`](crate::map::guard::faults) is afterwards what it
    /// was before.
    pub fn bytes(&self, range: Range<usize>) -> Option<&[u8]> {
        if self.is_lost() { None } else { self.memory.get(range) }
    }

    /// Whether a page was lost.
    pub fn is_lost(&self) -> bool {
        self.watch.is_lost()
    }
}
