//! `forebay._native.*sidecar*`: the index sidecars in the user's cache directory.

use std::path::PathBuf;

use forebay_format::{CachePolicy, describe_sidecar as describe};
use pyo3::prelude::*;

/// The user's cache directory; none if no variable names one.
#[pyfunction]
pub(crate) fn sidecar_directory() -> Option<PathBuf> {
    CachePolicy::from_environment().directory().map(PathBuf::from)
}

/// What a sidecar is of, as JSON; none for a file that is no sound sidecar.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // the binding hands paths over by value
pub(crate) fn describe_sidecar(path: PathBuf) -> Option<String> {
    describe(&path).map(|description| description.to_string())
}
