//! The library that `forebay run` preloads into programs: an open of a source gets its copy.
//!
//! A program's own open runs first. If it opened a regular file for reading, the library looks the
//! file up in the file table (`forebay-table`) by device, inode, size and times. Where the table
//! has a copy, the library opens that and puts it under the descriptor's number. From there on the
//! kernel does the rest: reads, mappings, `dup`, `fork` and `exec` are not touched. Results of
//! `stat` that show a copy are translated to its source.
//!
//! - [`shims`] are the functions that replace those of libc: thin, C calling convention.
//! - [`redirect`] is what they do, on a [`kernel::Kernel`] that tests replace.
//! - [`stat`] translates results of `stat`.
//! - [`constructor`] runs before the program and maps the table ([`mapped`]).
//!   [`libc_functions`] finds the functions that the shims call.
//!
//! Promises: whatever goes wrong, the program keeps the source. `errno` is as the program's own
//! call left it. No thread, no allocation, no descriptor that stays open, no wait, no thread-local
//! variable, no output.
//!
//! The profile `preload` builds the library without the standard library. Other profiles build the
//! same code with it and export no symbol, for tests and lints.
#![cfg_attr(panic = "abort", no_std)]

mod constructor;
mod errno;
mod kernel;
mod libc_functions;
mod mapped;
mod redirect;
mod shims;
mod stat;
mod system_calls;

/// Nothing here panics on purpose; if it does, the program must not go on.
#[cfg(panic = "abort")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: abort(3) has no conditions.
    unsafe { libc::abort() }
}
