//! Which accesses work here.

use crate::file::open::{file_system_at, open_direct};
use crate::read::uring::{Ring, ring_refused};
use crate::{FileSystem, ReadError};

/// Which accesses work at a path; what does not work comes with its reason.
#[derive(Clone, Debug)]
pub struct AccessProbe {
    /// Whether an `io_uring` can be made.
    pub io_uring: Result<(), String>,
    /// Whether files there can be read around the page cache.
    pub direct: Result<(), String>,
    /// Kind of the file system.
    pub file_system: FileSystem,
}

impl AccessProbe {
    /// Asks the kernel and the file system of the file at `path`; nothing is read.
    ///
    /// # Errors
    /// The path leads to nothing that can be inspected.
    pub fn at(path: &std::path::Path) -> Result<Self, ReadError> {
        let file_system = file_system_at(path)?;
        let direct = open_direct(path, &file_system).map(drop);
        Ok(Self { io_uring: probe_io_uring(), direct, file_system })
    }
}

/// Whether an `io_uring` can be made here and now; else why not.
pub fn probe_io_uring() -> Result<(), String> {
    Ring::new(1).map(drop).map_err(|error| ring_refused(&error))
}
