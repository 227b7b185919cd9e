//! Calls that change files: by path they reach the source; through a descriptor of a copy they
//! fail.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{gid_t, mode_t, off_t, size_t, timespec, timeval, uid_t, utimbuf};

use crate::libc_functions::libc_call;
use crate::mapped::{self, is_copy, is_path_of_copy};
use crate::shims::{path, refused};

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

/// `truncate`: by path, which may be one of a copy.
macro_rules! truncate_shim {
    ($name:ident) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(name: *const c_char, length: off_t) -> c_int {
            if is_path_of_copy(libc::AT_FDCWD, name, 0) {
                return refused();
            }
            changed(libc_call!($name(name => *const c_char, length => off_t) -> c_int), name)
        }
    };
}

/// Changes by path. `flags` as for fstatat(2).
macro_rules! path_shim {
    ($name:ident(path $(, $argument:ident: $type:ty)*), $flags:expr) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(name: *const c_char $(, $argument: $type)*) -> c_int {
            if is_path_of_copy(libc::AT_FDCWD, name, $flags) {
                return refused();
            }
            libc_call!($name(name => *const c_char $(, $argument => $type)*) -> c_int)
        }
    };
}

/// Changes by path below a directory; without a path the descriptor is that of the file.
macro_rules! at_shim {
    ($name:ident(directory, path $(, $argument:ident: $type:ty)*), $flags:expr) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(directory: c_int, name: *const c_char $(, $argument: $type)*) -> c_int {
            let refuses =
                if name.is_null() { is_copy(directory) } else { is_path_of_copy(directory, name, $flags) };
            if refuses {
                return refused();
            }
            libc_call!($name(directory => c_int, name => *const c_char $(, $argument => $type)*) -> c_int)
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

const FOLLOW: c_int = 0;
const NO_FOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;
/// What fstatat(2) knows of the flags of other calls.
const FLAGS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

truncate_shim!(truncate);
truncate_shim!(truncate64);
descriptor_shim!(fchmod(fd, mode: mode_t));
descriptor_shim!(fchown(fd, user: uid_t, group: gid_t));
descriptor_shim!(futimens(fd, times: *const timespec));
descriptor_shim!(futimes(fd, times: *const timeval));
descriptor_shim!(fsetxattr(fd, name: *const c_char, value: *const c_void, length: size_t, flags: c_int));
descriptor_shim!(fremovexattr(fd, name: *const c_char));
path_shim!(chmod(path, mode: mode_t), FOLLOW);
path_shim!(chown(path, user: uid_t, group: gid_t), FOLLOW);
path_shim!(lchown(path, user: uid_t, group: gid_t), NO_FOLLOW);
path_shim!(utime(path, times: *const utimbuf), FOLLOW);
path_shim!(utimes(path, times: *const timeval), FOLLOW);
path_shim!(lutimes(path, times: *const timeval), NO_FOLLOW);
path_shim!(
    setxattr(path, name_of_attribute: *const c_char, value: *const c_void, length: size_t, flags: c_int),
    FOLLOW
);
path_shim!(
    lsetxattr(path, name_of_attribute: *const c_char, value: *const c_void, length: size_t, flags: c_int),
    NO_FOLLOW
);
path_shim!(removexattr(path, name_of_attribute: *const c_char), FOLLOW);
path_shim!(lremovexattr(path, name_of_attribute: *const c_char), NO_FOLLOW);
at_shim!(fchmodat(directory, path, mode: mode_t, flags: c_int), flags & FLAGS);
at_shim!(fchownat(directory, path, user: uid_t, group: gid_t, flags: c_int), flags & FLAGS);
at_shim!(futimesat(directory, path, times: *const timeval), FOLLOW);
at_shim!(utimensat(directory, path, times: *const timespec, flags: c_int), flags & FLAGS);

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
