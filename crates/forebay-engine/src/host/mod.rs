//! The interface to the calling program: interruption, progress, warnings.

pub(crate) mod offload;
pub(crate) mod parts_in_threads;
pub(crate) mod warnings;

use std::path::Path;

use forebay_format::OpenOptions;

/// Callbacks of the engine to its caller; the bindings implement them with Python's signals,
/// callbacks and warnings.
pub trait Host: Sync {
    /// Whether the call should end with [`crate::Error::Interrupted`]; called at least every
    /// 100 ms.
    fn interrupted(&self) -> bool {
        false
    }

    /// Reports the progress of long work: `done` of `all` units of `what`; `all` is 0 while it is
    /// unknown. Returning `false` ends the work like `interrupted`.
    fn progress(&self, what: &str, done: u64, all: u64) -> bool {
        let _ = (what, done, all);
        !self.interrupted()
    }

    /// Reports that the work waits for other processes, which is no stall of storage.
    fn waits_for_others(&self) {}

    /// Finds the structure of an HDF5 file, with the fields and the sample axis of `options`, or
    /// what their manifest lists; `None` if the caller cannot, or has recorded why it failed.
    fn find_structure(&self, path: &Path, options: &OpenOptions) -> Option<Vec<u8>>;

    /// Shows the user a warning.
    fn warn(&self, text: &str) {
        let _ = text;
    }
}

/// A caller that never interrupts and ignores reports.
pub struct NoHost;

impl Host for NoHost {
    fn find_structure(&self, _path: &Path, _options: &OpenOptions) -> Option<Vec<u8>> {
        None
    }
}
