//! Memory of the caller that a value is written to.

use std::ptr::NonNull;

/// Memory for one value.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a place is an address and a length; `Place::new` says what makes writing there sound, on
// any thread.
unsafe impl Send for Place {}
// SAFETY: as for Send; parts of a place are handed out by an unsafe function alone.
unsafe impl Sync for Place {}

impl Place {
    /// Memory of `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// As long as this place or a copy of it exists, the memory must be allocated, and nothing else
    /// may read or write it. It must be memory that another language's allocator returned, or that
    /// has been written: what it holds is not said, but each byte is some byte.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// Its length \[bytes\].
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The part from `first` on that is `length` bytes long.
    pub(crate) fn part(&self, first: u64, length: u64) -> Self {
        let end = first.checked_add(length).expect("a part of a value");
        assert!(end <= self.bytes as u64, "bytes {first} to {end} of a value of {} bytes", self.bytes);
        // SAFETY: inside the place, by the assertion.
        let start = unsafe { self.start.add(first as usize) };
        Self { start, bytes: length as usize }
    }

    /// The memory.
    ///
    /// # Safety
    /// No other reference to a byte of it may exist meanwhile.
    #[allow(clippy::mut_from_ref)] // it is an address, not the memory
    pub(crate) unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: allocated and not used by others by the contract of `new`, referred to once by
        // that of this function.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}
