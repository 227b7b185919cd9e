//! The caller's side of long calls: interruption, progress, warnings.

pub(crate) mod offload;
pub(crate) mod warnings;

use std::path::Path;

use forebay_format::OpenOptions;

/// What the engine asks of whoever called it; the bindings answer with Python's signals, callbacks
/// and warnings.
pub trait Host: Sync {
    /// Whether the call should end with [`crate::Error::Interrupted`]; asked at least every 100 ms.
    fn interrupted(&self) -> bool {
        false
    }

    /// Tells how far a long job is: `done` of `all` units of `what`; `all` is 0 as long as nobody
    /// knows. An answer of `false` ends it like `interrupted`.
    fn progress(&self, what: &str, done: u64, all: u64) -> bool {
        let _ = (what, done, all);
        !self.interrupted()
    }

    /// Tells that the work waits for other processes, which is no stall of storage.
    fn waits_for_others(&self) {}

    /// Finds the structure of an HDF5 file, with the fields and the sample axis of `options`;
    /// `None` where the caller cannot, or has noted why it failed.
    fn find_hdf5_structure(&self, path: &Path, options: &OpenOptions) -> Option<Vec<u8>>;

    /// Tells the user something he should know though all goes on.
    fn warn(&self, text: &str) {
        let _ = text;
    }
}

/// A caller who never interrupts and hears nothing.
pub struct NoHost;

impl Host for NoHost {
    fn find_hdf5_structure(&self, _path: &Path, _options: &OpenOptions) -> Option<Vec<u8>> {
        None
    }
}
