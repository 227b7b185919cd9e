//! The functions that replace those of libc.
//!
//! A shim calls the function of libc that it replaces and hands the result on; what is ours stands
//! in [`crate::redirect`]. Variadic functions of libc have a fixed number of arguments here: the
//! calling conventions pass the first ones alike, and a caller that gives fewer is not looked at.

// The profile `preload` exports them; other profiles only compile them.
#![cfg_attr(not(panic = "abort"), allow(dead_code))]
// `__xstat64` and its kin bear the names that libc gave them.
#![allow(clippy::missing_safety_doc)]

mod change;
mod confine;
mod open;
mod stat;
mod stream;
mod system_call;

use core::ffi::{CStr, c_char, c_int};

use crate::errno;
use crate::system_calls::Linux;

/// The smallest page of the machines that we know.
const PAGE_BYTES: usize = 4096;

/// Looks up what the shims call, before a signal handler or a child of `vfork` does.
pub fn find_functions() {
    system_call::find();
}

/// A path that the program handed over, for which libc has succeeded.
fn path<'a>(path: *const c_char) -> Option<&'a CStr> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller of a shim hands over a string, as libc demands.
    Some(unsafe { CStr::from_ptr(path) })
}

/// A path that the program hands over, before libc has seen it. Where the kernel would find that it
/// cannot be read, there is none.
fn unchecked_path<'a>(path: *const c_char) -> Option<&'a CStr> {
    let mut length = 0;
    while length < libc::PATH_MAX as usize {
        let address = path as usize + length;
        if !Linux::is_readable(address) {
            return None;
        }
        let left = PAGE_BYTES - address % PAGE_BYTES;
        // SAFETY: pages are readable as a whole, and the string does not end before this one.
        let page = unsafe { core::slice::from_raw_parts(address as *const u8, left) };
        if let Some(end) = page.iter().position(|byte| *byte == 0) {
            // SAFETY: all of it was just read, up to its zero.
            let bytes = unsafe { core::slice::from_raw_parts(path.cast::<u8>(), length + end + 1) };
            return CStr::from_bytes_with_nul(bytes).ok();
        }
        length += left;
    }
    None
}

/// Zeros in the place of a result that the program hands over, if it may write there.
fn unchecked_result<'a, T>(place: *mut T) -> Option<&'a mut T> {
    let last = (place as usize).wrapping_add(size_of::<T>() - 8);
    // SAFETY: the program wants the result written; it does not reach over more than two pages.
    if !unsafe { Linux::is_writable(place as usize) && Linux::is_writable(last) } {
        return None;
    }
    // SAFETY: it may be written, as was just found out, and zeros are a valid result.
    unsafe {
        place.write_bytes(0, 1);
        Some(&mut *place)
    }
}

/// What a program gets that would change a copy.
fn refused() -> c_int {
    errno::set(libc::EROFS);
    -1
}
