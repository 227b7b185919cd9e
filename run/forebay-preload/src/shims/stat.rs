//! `stat` and its kin, also under the names of older versions of libc.

use core::ffi::{c_char, c_int, c_uint};

use libc::{stat as Stat, statx as Statx};

use crate::errno;
use crate::libc_functions::libc_call;
use crate::mapped;
use crate::shims::{unchecked_path, unchecked_result};

/// After a `stat`: shows the source in place of its copy.
fn translated(result: c_int, found: *mut Stat) -> c_int {
    if result == 0 {
        // SAFETY: libc has filled what the program handed over.
        let found = unsafe { &mut *found };
        mapped::all().any(|redirect| redirect.translate(found));
    }
    result
}

/// Fills the `stat` of a frozen source, which nobody asks.
fn frozen(name: *const c_char, found: *mut Stat) -> Option<c_int> {
    let source = mapped::frozen()?.stat_frozen(unchecked_path(name)?)?;
    let found = unchecked_result(found)?;
    crate::stat::show(&source, found);
    (found.st_atime, found.st_atime_nsec) = (found.st_mtime, found.st_mtime_nsec);
    Some(0)
}

/// Shows the source in a result of `statx`.
pub fn translated_statx(result: c_int, found: *mut Statx) -> c_int {
    if result == 0 {
        // SAFETY: the kernel has filled what the program handed over.
        let found = unsafe { &mut *found };
        mapped::all().any(|redirect| redirect.translate_statx(found));
    }
    result
}

macro_rules! path_shim {
    ($name:ident($($before:ident: $type:ty),*)) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($before: $type,)* name: *const c_char, found: *mut Stat) -> c_int {
            if let Some(result) = frozen(name, found) {
                return result;
            }
            translated(libc_call!($name($($before => $type,)* name => *const c_char, found => *mut Stat) -> c_int), found)
        }
    };
}

macro_rules! descriptor_shim {
    ($name:ident($($before:ident: $type:ty),*)) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($before: $type,)* fd: c_int, found: *mut Stat) -> c_int {
            translated(libc_call!($name($($before => $type,)* fd => c_int, found => *mut Stat) -> c_int), found)
        }
    };
}

macro_rules! at_shim {
    ($name:ident($($before:ident: $type:ty),*)) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            $($before: $type,)* directory: c_int, name: *const c_char, found: *mut Stat, flags: c_int,
        ) -> c_int {
            if let Some(result) = frozen(name, found) {
                return result;
            }
            let result = libc_call!($name(
                $($before => $type,)* directory => c_int, name => *const c_char, found => *mut Stat, flags => c_int
            ) -> c_int);
            translated(result, found)
        }
    };
}

path_shim!(stat());
path_shim!(stat64());
path_shim!(lstat());
path_shim!(lstat64());
path_shim!(__xstat(version: c_int));
path_shim!(__xstat64(version: c_int));
path_shim!(__lxstat(version: c_int));
path_shim!(__lxstat64(version: c_int));
descriptor_shim!(fstat());
descriptor_shim!(fstat64());
descriptor_shim!(__fxstat(version: c_int));
descriptor_shim!(__fxstat64(version: c_int));
at_shim!(fstatat());
at_shim!(fstatat64());
at_shim!(__fxstatat(version: c_int));
at_shim!(__fxstatat64(version: c_int));

/// Fills the `statx` of a frozen source, which nobody asks.
fn frozen_statx(name: *const c_char, found: *mut Statx) -> Option<c_int> {
    let source = mapped::frozen()?.stat_frozen(unchecked_path(name)?)?;
    let found = unchecked_result(found)?;
    found.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    crate::stat::show_in_statx(&source, found);
    found.stx_atime = found.stx_mtime;
    Some(0)
}

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn statx(
    directory: c_int,
    name: *const c_char,
    flags: c_int,
    mask: c_uint,
    found: *mut Statx,
) -> c_int {
    if let Some(result) = frozen_statx(name, found) {
        return result;
    }
    let result = libc_call!(statx(
        directory => c_int, name => *const c_char, flags => c_int, mask => c_uint, found => *mut Statx
    ) -> c_int);
    errno::kept(|| translated_statx(result, found))
}

/// Whether a frozen source can be read is known: the daemon has read it as this user.
fn frozen_access(name: *const c_char, mode: c_int) -> bool {
    let Some(redirect) = mapped::frozen().filter(|_| mode & (libc::W_OK | libc::X_OK) == 0) else {
        return false;
    };
    unchecked_path(name).is_some_and(|name| redirect.stat_frozen(name).is_some())
}

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn access(name: *const c_char, mode: c_int) -> c_int {
    if frozen_access(name, mode) {
        return 0;
    }
    libc_call!(access(name => *const c_char, mode => c_int) -> c_int)
}

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn faccessat(
    directory: c_int,
    name: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    if frozen_access(name, mode) {
        return 0;
    }
    libc_call!(faccessat(
        directory => c_int, name => *const c_char, mode => c_int, flags => c_int
    ) -> c_int)
}
