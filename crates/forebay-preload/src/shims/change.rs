//! Calls that change files: by path they reach the source; through a descriptor of a copy they
//! fail.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{gid_t, mode_t, off_t, size_t, timespec, uid_t};

use crate::errno;
use crate::libc_functions::libc_call;
use crate::mapped;
use crate::shims::path;

/// After a change by path: the copy is not served any more.
fn changed(result: c_int, name: *const c_char) -> c_int {
    if result == 0
        && let (Some(redirect), Some(name)) = (mapped::newest(), path(name))
    {
        redirect.changed(name);
    }
    result
}

/// After a path was made to name something else.
fn renamed(result: c_int, names: &[*const c_char]) -> c_int {
    if result == 0
        && let Some(redirect) = mapped::newest()
    {
        names.iter().filter_map(|name| path(*name)).for_each(|name| redirect.renamed(name));
    }
    result
}

/// Whether a descriptor is one of a copy, which the program must not change: it means the source.
fn is_copy(fd: c_int) -> bool {
    mapped::all().any(|redirect| redirect.is_copy(fd))
}

fn refused() -> c_int {
    errno::set(libc::EROFS);
    -1
}

macro_rules! changed_shim {
    ($name:ident(path $(, $argument:ident: $type:ty)*)) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(name: *const c_char $(, $argument: $type)*) -> c_int {
            changed(libc_call!($name(name => *const c_char $(, $argument => $type)*) -> c_int), name)
        }
    };
}

macro_rules! descriptor_shim {
    ($name:ident(fd $(, $argument:ident: $type:ty)*)) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(fd: c_int $(, $argument: $type)*) -> c_int {
            if is_copy(fd) {
                return refused();
            }
            libc_call!($name(fd => c_int $(, $argument => $type)*) -> c_int)
        }
    };
}

changed_shim!(truncate(path, length: off_t));
changed_shim!(truncate64(path, length: off_t));
descriptor_shim!(fchmod(fd, mode: mode_t));
descriptor_shim!(fchown(fd, user: uid_t, group: gid_t));
descriptor_shim!(futimens(fd, times: *const timespec));
descriptor_shim!(fsetxattr(fd, name: *const c_char, value: *const c_void, length: size_t, flags: c_int));
descriptor_shim!(fremovexattr(fd, name: *const c_char));

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn utimensat(
    directory: c_int,
    name: *const c_char,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    // Without a path the descriptor is that of the file.
    if name.is_null() && is_copy(directory) {
        return refused();
    }
    libc_call!(utimensat(
        directory => c_int, name => *const c_char, times => *const timespec, flags => c_int
    ) -> c_int)
}

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    renamed(libc_call!(rename(from => *const c_char, to => *const c_char) -> c_int), &[from, to])
}

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn renameat(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
) -> c_int {
    let result = libc_call!(renameat(
        from_directory => c_int, from => *const c_char, to_directory => c_int, to => *const c_char
    ) -> c_int);
    renamed(result, &[from, to])
}

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn renameat2(
    from_directory: c_int,
    from: *const c_char,
    to_directory: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    let result = libc_call!(renameat2(
        from_directory => c_int, from => *const c_char, to_directory => c_int, to => *const c_char,
        flags => c_uint
    ) -> c_int);
    renamed(result, &[from, to])
}

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn unlink(name: *const c_char) -> c_int {
    renamed(libc_call!(unlink(name => *const c_char) -> c_int), &[name])
}

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn unlinkat(directory: c_int, name: *const c_char, flags: c_int) -> c_int {
    let result = libc_call!(unlinkat(directory => c_int, name => *const c_char, flags => c_int) -> c_int);
    renamed(result, &[name])
}

#[cfg_attr(panic = "abort", unsafe(no_mangle))]
pub unsafe extern "C" fn remove(name: *const c_char) -> c_int {
    renamed(libc_call!(remove(name => *const c_char) -> c_int), &[name])
}
