//! What the library asks of the kernel.

use core::ffi::{CStr, c_int};

use forebay_table::Identity;

/// A result of a system call; the error is an `errno`.
pub type Result<T> = core::result::Result<T, c_int>;

/// What `fstat` says of a file, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStat {
    pub identity: Identity,
    pub is_regular: bool,
    /// It has no name any more.
    pub is_deleted: bool,
}

/// The system calls of the library. They do not touch `errno`.
pub trait Kernel {
    /// fstat(2).
    fn stat(&self, fd: c_int) -> Result<FileStat>;
    /// stat(2).
    fn stat_path(&self, path: &CStr) -> Result<FileStat>;
    /// open(2), relative to the working directory.
    fn open(&self, path: &CStr, flags: c_int) -> Result<c_int>;
    /// dup3(2): closes `to` and makes it a duplicate of `from`.
    fn duplicate(&self, from: c_int, to: c_int, close_on_exec: bool) -> Result<()>;
    /// close(2).
    fn close(&self, fd: c_int);
    /// The path of an open file, as far as the kernel knows it; its length.
    fn path_of(&self, fd: c_int, into: &mut [u8]) -> Result<usize>;
}
