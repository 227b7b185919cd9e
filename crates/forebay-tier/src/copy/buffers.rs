//! Copy buffers: memory that bytes of the source are read into on their way to a level.
//!
//! [`CopyBuffers`] bounds the memory of all copies of a process. It never waits: if too much is in
//! use, the caller reads without a copy. Each buffer is an anonymous mapping of its own, so lengths
//! mix without fragmentation, and pages take memory only after they are written. The pool keeps
//! returned mappings for later buffers of about the same length.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{MapFlags, ProtFlags};

/// Buffers start at a multiple of this [bytes], as `O_DIRECT` needs.
const ALIGN_BYTES: usize = 4096;

/// Mappings are multiples of this [bytes], so that a returned one fits the next request.
const GRAIN_BYTES: usize = 64 << 10;

/// A bounded pool of copy buffers. Its memory is freed with the last buffer.
pub struct CopyBuffers {
    limit_bytes: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Mapped memory of the buffers in use \[bytes\].
    used_bytes: usize,
    /// Mappings that no buffer uses, the oldest first.
    kept: Vec<Mapping>,
}

impl State {
    fn kept_bytes(&self) -> usize {
        self.kept.iter().map(|mapping| mapping.bytes).sum()
    }
}

impl CopyBuffers {
    /// A pool that maps at most `bytes`.
    #[must_use]
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { limit_bytes: bytes, state: Mutex::default() })
    }

    /// A buffer of `bytes`, aligned to 4096; `None` if the pool or the system has no memory for it.
    /// Its bytes are zero or those of an earlier copy.
    #[must_use]
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<CopyBuffer> {
        let needed = bytes.max(1).checked_next_multiple_of(GRAIN_BYTES)?;
        let mut state = self.lock();
        // The smallest that is long enough, but no more than twice as long.
        let fitting = (0..state.kept.len())
            .filter(|place| (needed..=2 * needed).contains(&state.kept[*place].bytes))
            .min_by_key(|place| state.kept[*place].bytes);
        if let Some(place) = fitting {
            let mapping = state.kept.remove(place);
            state.used_bytes += mapping.bytes;
            return Some(CopyBuffer { pool: Arc::clone(self), mapping: Some(mapping), bytes });
        }
        if needed > self.limit_bytes - state.used_bytes {
            return None;
        }
        let mut dropped = Vec::new();
        while needed > self.limit_bytes - state.used_bytes - state.kept_bytes() {
            dropped.push(state.kept.remove(0));
        }
        state.used_bytes += needed;
        drop(state);
        drop(dropped);
        let mapping = Mapping::new(needed);
        if mapping.is_none() {
            self.lock().used_bytes -= needed;
        }
        Some(CopyBuffer { pool: Arc::clone(self), mapping: Some(mapping?), bytes })
    }

    /// Most memory that all buffers together map \[bytes\].
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Memory that is not in use \[bytes\].
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.limit_bytes - self.lock().used_bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of a [`CopyBuffers`]; it returns there when it is dropped.
pub struct CopyBuffer {
    pool: Arc<CopyBuffers>,
    /// `None` only while it is dropped.
    mapping: Option<Mapping>,
    bytes: usize,
}

impl Deref for CopyBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(mapping) = &self.mapping else { return &[] };
        // SAFETY: the mapping has at least `bytes` bytes, zero at first, and only this buffer uses
        // it.
        unsafe { std::slice::from_raw_parts(mapping.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for CopyBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(mapping) = &self.mapping else { return &mut [] };
        // SAFETY: as in `deref`; `self` is borrowed for as long as the slice.
        unsafe { std::slice::from_raw_parts_mut(mapping.start.as_ptr(), self.bytes) }
    }
}

impl Drop for CopyBuffer {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        if let Some(mapping) = self.mapping.take() {
            state.used_bytes -= mapping.bytes;
            state.kept.push(mapping);
        }
    }
}

/// Private anonymous memory.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, and its owner alone accesses it.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives the address only; `CopyBuffer` guards the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(bytes: usize) -> Option<Self> {
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let start = NonNull::new(start.ok()?.cast::<u8>())?;
        debug_assert_eq!(start.as_ptr() as usize % ALIGN_BYTES, 0);
        Some(Self { start, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped these bytes, and no slice of them outlives their buffer.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIB: usize = 1 << 10;

    #[test]
    fn a_pool_refuses_what_is_over_its_limit_and_takes_returned_memory_again() {
        let pool = CopyBuffers::new(256 * KIB);
        let mut one = pool.take(130 * KIB).unwrap();
        assert_eq!((one.len(), pool.free_bytes()), (130 * KIB, 64 * KIB));
        one.fill(7);
        let two = pool.take(64 * KIB).unwrap();
        assert!(pool.take(1).is_none());
        drop(two);
        let address = one.as_ptr();
        drop(one);
        assert_eq!(pool.free_bytes(), 256 * KIB);
        let again = pool.take(150 * KIB).unwrap();
        assert_eq!((again.as_ptr(), again[0], again.len()), (address, 7, 150 * KIB));
        drop(again);
        // What is kept gives way to a longer buffer.
        assert_eq!(pool.take(256 * KIB).unwrap().len(), 256 * KIB);
        assert!(pool.take(257 * KIB).is_none() && pool.take(usize::MAX).is_none());
    }

    #[test]
    fn a_buffer_outlives_its_pool_in_any_thread() {
        let mut buffer = CopyBuffers::new(1 << 20).take(5000).unwrap();
        std::thread::scope(|scope| scope.spawn(|| buffer.fill(1)).join().unwrap());
        assert!(buffer.iter().all(|byte| *byte == 1));
    }

    proptest! {
        #[test]
        fn the_limit_holds_and_buffers_do_not_overlap(
            steps in proptest::collection::vec((any::<bool>(), 1..300 * KIB, any::<prop::sample::Index>()), 1..60),
        ) {
            let pool = CopyBuffers::new(512 * KIB);
            let mut held: Vec<(CopyBuffer, u8)> = Vec::new();
            for (number, (takes, bytes, which)) in steps.into_iter().enumerate() {
                if takes || held.is_empty() {
                    let free = pool.free_bytes();
                    match pool.take(bytes) {
                        Some(mut buffer) => {
                            prop_assert!(buffer.len() == bytes && (buffer.as_ptr() as usize).is_multiple_of(ALIGN_BYTES));
                            buffer.fill(number as u8);
                            held.push((buffer, number as u8));
                        }
                        None => prop_assert!(bytes.next_multiple_of(GRAIN_BYTES) > free),
                    }
                } else {
                    let (buffer, value) = held.swap_remove(which.index(held.len()));
                    prop_assert!(buffer.iter().all(|byte| *byte == value));
                }
                let state = pool.lock();
                prop_assert!(state.used_bytes + state.kept_bytes() <= 512 * KIB);
            }
        }
    }
}
