//! Reads, with one policy for errors and short answers.
//!
//! - `syscalls` is the seam at which a read is one system call; `fault_injection` fails there on
//!   purpose.
//! - `retry`: what follows an answer of the kernel. `uring`: reads through an `io_uring`.
//! - `reader` completes many transfers, `one_file` one read. `failing` remembers where storage
//!   failed.

pub(crate) mod failing;
pub(crate) mod fault_injection;
pub(crate) mod one_file;
pub(crate) mod reader;
pub(crate) mod retry;
pub(crate) mod syscalls;
pub(crate) mod uring;
