//! `fopen` and its kin: the descriptor of the stream is served before the first byte is read.

use core::ffi::{CStr, c_char, c_int};

use libc::FILE;

use crate::errno;
use crate::libc_functions::libc_call;
use crate::mapped;
use crate::redirect::writes;
use crate::shims::open::truncates_copy;
use crate::shims::{path, refused, unchecked_path};

/// The flags of a mode, as far as they decide what an open may do.
fn flags_of(mode: &CStr) -> c_int {
    let mode = mode.to_bytes();
    let plus = mode.contains(&b'+');
    let close_on_exec = if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    close_on_exec
        | match mode.first() {
            _ if plus => libc::O_RDWR,
            Some(b'r') => libc::O_RDONLY,
            _ => libc::O_WRONLY,
        }
        | if mode.first() == Some(&b'w') { libc::O_TRUNC } else { 0 }
}

/// The copy of a frozen source as a stream, in place of `fopen`.
fn frozen_stream(name: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    let redirect = mapped::frozen()?;
    let (name, kind) = (unchecked_path(name)?, unchecked_path(mode)?);
    // `,ccs=` would convert characters.
    if flags_of(kind) & libc::O_ACCMODE != libc::O_RDONLY || kind.to_bytes().contains(&b',') {
        return None;
    }
    errno::kept(|| {
        let fd = redirect.open_frozen(name, flags_of(kind))?;
        // SAFETY: the descriptor is new, and the mode ends with a zero.
        let stream = unsafe { libc::fdopen(fd, mode) };
        if stream.is_null() {
            // SAFETY: nobody else knows the descriptor.
            unsafe { libc::close(fd) };
            return None;
        }
        Some(stream)
    })
}

/// After a successful `fopen`; returns what the program gets.
fn opened_stream(stream: *mut FILE, name: *const c_char, mode: *const c_char) -> *mut FILE {
    if stream.is_null() {
        return stream;
    }
    let (Some(redirect), Some(name), Some(mode)) = (mapped::newest(), path(name), path(mode)) else {
        return stream;
    };
    let opened = errno::kept(|| {
        // SAFETY: libc has just opened the stream.
        let fd = unsafe { libc::fileno(stream) };
        if fd < 0 { Ok(()) } else { redirect.opened(fd, flags_of(mode), Some(name)) }
    });
    let Err(error) = opened else { return stream };
    // SAFETY: the program has not seen the stream.
    unsafe { libc::fclose(stream) };
    errno::set(error);
    core::ptr::null_mut()
}

/// Whether a copy would be truncated by its path.
fn truncates(name: *const c_char, mode: *const c_char) -> bool {
    !name.is_null() && path(mode).is_some_and(|mode| truncates_copy(libc::AT_FDCWD, name, flags_of(mode)))
}

/// Whether a stream would be opened anew to write into its copy.
fn reopens_copy(stream: *mut FILE, mode: *const c_char) -> bool {
    path(mode).is_some_and(|mode| writes(flags_of(mode))) && {
        // SAFETY: the program hands over a stream.
        let fd = unsafe { libc::fileno(stream) };
        fd >= 0 && mapped::is_copy(fd)
    }
}

fn no_stream() -> *mut FILE {
    refused();
    core::ptr::null_mut()
}

macro_rules! stream_shim {
    ($name:ident($($stream:ident: $type:ty)?), $frozen:expr) => {
        #[cfg_attr(panic = "abort", unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(name: *const c_char, mode: *const c_char $(, $stream: $type)?) -> *mut FILE {
            if $frozen && let Some(stream) = frozen_stream(name, mode) {
                return stream;
            }
            // A stream that cannot be opened anew is closed.
            $(
                if (name.is_null() && reopens_copy($stream, mode)) || truncates(name, mode) {
                    // SAFETY: the program hands over a stream.
                    unsafe { libc::fclose($stream) };
                    return no_stream();
                }
            )?
            if truncates(name, mode) {
                return no_stream();
            }
            let opened =
                libc_call!($name(name => *const c_char, mode => *const c_char $(, $stream => $type)?) -> *mut FILE);
            opened_stream(opened, name, mode)
        }
    };
}

stream_shim!(fopen(), true);
stream_shim!(fopen64(), true);
stream_shim!(freopen(stream: *mut FILE), false);
stream_shim!(freopen64(stream: *mut FILE), false);
