//! The error number of libc.

use core::ffi::c_int;

/// `errno` of this thread.
pub fn get() -> c_int {
    // SAFETY: libc returns the place of this thread's `errno`, always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` of this thread.
pub fn set(errno: c_int) {
    // SAFETY: libc returns the place of this thread's `errno`, always valid.
    unsafe { *libc::__errno_location() = errno }
}

/// Runs something without a trace in `errno`.
pub fn kept<T>(work: impl FnOnce() -> T) -> T {
    let before = get();
    let result = work();
    set(before);
    result
}
