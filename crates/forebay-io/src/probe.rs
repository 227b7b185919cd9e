//! Which accesses work here.

use std::io;

use crate::open::{file_system_at, open_direct};
use crate::uring::Ring;
use crate::{FileSystem, ReadError};

/// Which accesses work at a path; what does not work comes with its reason.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Whether an `io_uring` can be made.
    pub io_uring: Result<(), String>,
    /// Whether files there can be read around the page cache.
    pub direct: Result<(), String>,
    /// Kind of the file system.
    pub file_system: FileSystem,
}

impl Probe {
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

/// Why there is no `io_uring`, in words.
pub(crate) fn ring_refused(error: &io::Error) -> String {
    let reason = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has none".to_owned(),
        Some(libc::EPERM | libc::EACCES) => {
            match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").as_deref().map(str::trim) {
                Ok(setting @ ("1" | "2")) => {
                    format!("forbidden by sysctl kernel.io_uring_disabled = {setting}")
                }
                _ => "forbidden, presumably by the container's system call filter".to_owned(),
            }
        }
        Some(libc::ENOMEM) => "its queues do not fit the limit of locked memory (`ulimit -l`)".to_owned(),
        _ => error.to_string(),
    };
    format!("io_uring is not available: {reason}")
}
