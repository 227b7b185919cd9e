//! `forebay._native.limit`: what a storage can do.

use std::path::PathBuf;

use forebay_io::{Limit, LimitKind, measure};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::caller::detached;
use crate::errors::wrong_option;

/// Reads at `path` for `seconds` and returns the figures; see `python/forebay/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (path, *, block_bytes, seconds, kind, threads = 1, cold = false, pool_bytes = 0))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // the shape of a Python signature
pub(crate) fn limit<'py>(
    py: Python<'py>,
    path: PathBuf,
    block_bytes: u64,
    seconds: f64,
    kind: &str,
    threads: usize,
    cold: bool,
    pool_bytes: u64,
) -> PyResult<Bound<'py, PyDict>> {
    let kind: LimitKind = kind.parse().map_err(|message: String| wrong_option(py, message, ""))?;
    let limit = Limit { kind, block_bytes, seconds, threads, cold, pool_bytes };
    let measured = detached(py, None, |_| Ok(measure(&path, &limit)?))?;
    let figures = PyDict::new(py);
    figures.set_item("kind", kind.name())?;
    figures.set_item("path", measured.path.display().to_string())?;
    figures.set_item("block_bytes", block_bytes)?;
    figures.set_item("read_bytes", measured.bytes)?;
    figures.set_item("reads", measured.reads)?;
    figures.set_item("seconds", measured.seconds)?;
    figures.set_item("rate_mib_s", measured.rate_mib_s())?;
    figures.set_item("latency_p50_us", measured.latency_p50_ns as f64 / 1e3)?;
    figures.set_item("latency_p99_us", measured.latency_p99_ns as f64 / 1e3)?;
    Ok(figures)
}
