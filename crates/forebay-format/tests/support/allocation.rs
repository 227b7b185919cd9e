//! Tells how much memory a piece of code takes at once: allocations bounded by the size of a
//! hostile file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with a note of the largest request of each thread.
struct Noting;

impl Noting {
    fn note(bytes: usize) {
        // A thread that ends has no note any more.
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(bytes)));
    }
}

// SAFETY: every call goes to the system's allocator as it came; the note is a thread-local word
// without a destructor, which allocates nothing.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller keeps the contract of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::note(bytes);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static NOTING: Noting = Noting;

/// Does something, and tells the largest allocation that this thread made meanwhile \[bytes\].
pub fn largest_allocation<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LARGEST.set(0);
    let result = work();
    (result, LARGEST.get())
}
