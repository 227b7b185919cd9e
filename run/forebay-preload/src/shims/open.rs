//! `open` and its kin.

use core::ffi::{c_char, c_int};

use libc::mode_t;

use crate::errno;
use crate::libc_functions::libc_call;
use crate::mapped;
use crate::shims::{path, refused, unchecked_path};

/// Flags of `creat`.
const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

/// After a successful open; returns what the program gets.
pub fn opened(fd: c_int, name: *const c_char, flags: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    let Some(redirect) = mapped::newest() else { return fd };
    match errno::kept(|| redirect.opened(fd, flags, path(name))) {
        Ok(()) => fd,
        Err(error) => {
            // SAFETY: the program has not seen the descriptor.
            unsafe { libc::close(fd) };
            errno::set(error);
            -1
        }
    }
}

/// The copy of a frozen source, opened in its place.
fn frozen(name: *const c_char, flags: c_int) -> Option<c_int> {
    let redirect = mapped::frozen()?;
    errno::kept(|| redirect.open_frozen(unchecked_path(name)?, flags))
}

/// Whether an open would truncate a copy. Other opens that may write are seen when they succeed.
pub fn truncates_copy(directory: c_int, name: *const c_char, flags: c_int) -> bool {
    flags & libc::O_TRUNC != 0 && flags & libc::O_PATH == 0 && mapped::is_path_of_copy(directory, name, 0)
}

/// The directory of an open, if it has one.
fn directory_of(given: &[c_int]) -> c_int {
    given.first().copied().unwrap_or(libc::AT_FDCWD)
}

macro_rules! open_shim {
    ($name:ident($($before:ident: $type:ty,)* ; $($after:ident: $mode:ty)?)) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($before: $type,)* name: *const c_char, flags: c_int $(, $after: $mode)?) -> c_int {
            if let Some(fd) = frozen(name, flags) {
                return fd;
            }
            if truncates_copy(directory_of(&[$($before),*]), name, flags) {
                return refused();
            }
            let fd = libc_call!($name($($before => $type,)* name => *const c_char, flags => c_int $(, $after => $mode)?) -> c_int);
            opened(fd, name, flags)
        }
    };
}

open_shim!(open(; mode: mode_t));
open_shim!(open64(; mode: mode_t));
open_shim!(__open_2(;));
open_shim!(__open64_2(;));
open_shim!(openat(directory: c_int, ; mode: mode_t));
open_shim!(openat64(directory: c_int, ; mode: mode_t));
open_shim!(__openat_2(directory: c_int, ;));
open_shim!(__openat64_2(directory: c_int, ;));

macro_rules! creat_shim {
    ($name:ident) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(name: *const c_char, mode: mode_t) -> c_int {
            if truncates_copy(libc::AT_FDCWD, name, CREAT) {
                return refused();
            }
            opened(libc_call!($name(name => *const c_char, mode => mode_t) -> c_int), name, CREAT)
        }
    };
}

creat_shim!(creat);
creat_shim!(creat64);
