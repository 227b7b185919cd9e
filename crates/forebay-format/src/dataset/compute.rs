//! Indexes that are computed: how another crate makes the index of a dataset without a scan.

use std::fmt;
use std::path::PathBuf;

use super::{Dataset, Progress};
use crate::Error;

/// Computes indexes without a scan, for example from a recipe of how the files were written.
pub trait ComputeIndex: fmt::Debug + Send + Sync {
    /// Computes the index of `dataset`, if it can.
    ///
    /// With `allow_unverified` the recipe need not have been compared with all records of the
    /// files. `progress` is called often; `false` ends the work with [`Error::Interrupted`].
    fn compute_index(
        &self,
        dataset: &Dataset,
        allow_unverified: bool,
        progress: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<Computation, Error>;
}

/// Result of a [`ComputeIndex`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Computation {
    /// The index; `None` where it has to be built.
    pub index: Option<ComputedIndex>,
    /// Why there is none, unless the reason is that there is nothing to compute it from.
    pub obstacle: Option<String>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// An index that was computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputedIndex {
    /// The sidecar.
    pub bytes: Vec<u8>,
    /// Whether the recipe was compared with all records.
    pub verified: bool,
    /// Length of the recipe \[bytes\].
    pub recipe_bytes: u64,
    /// The recipe's file.
    pub path: PathBuf,
}
