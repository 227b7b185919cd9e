//! `forebay._native.runtime_directory`: the private directory for sockets of this user.

use std::path::PathBuf;

use forebay_host as host;
use pyo3::prelude::*;

use crate::errors::raise;

/// The directory; `make` creates it if needed, and checks that no other user can write to it.
#[pyfunction]
#[pyo3(signature = (*, make))]
pub(crate) fn runtime_directory(py: Python<'_>, make: bool) -> PyResult<PathBuf> {
    let found = if make { host::runtime_directory() } else { host::runtime_directory_path() };
    found.map_err(|error| raise(py, &error.into()))
}
