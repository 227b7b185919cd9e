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
mod open;
mod stat;
mod stream;
mod system_call;

use core::ffi::{CStr, c_char};

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
