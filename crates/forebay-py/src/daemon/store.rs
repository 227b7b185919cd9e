//! `forebay._native.*_store`: the daemon that keeps shares of in-memory stores.

use std::time::Duration;

use forebay_engine::{Error, StoreDaemon, StoreDaemonError, stop_store as stop, store_status as status};
use pyo3::prelude::*;

use crate::daemon::thread::run_until_signal;
use crate::errors::raise;

fn failed(py: Python<'_>, error: StoreDaemonError) -> PyErr {
    raise(py, &Error::from(error))
}

/// Serves until nothing was used for `idle_s`; calls `listening` when loaders can come, with false
/// if this user has a daemon on this node, and returns then.
#[pyfunction]
pub(crate) fn serve_store(
    py: Python<'_>,
    memory_bytes: Option<u64>,
    idle_s: f64,
    listening: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let memory_bytes = memory_bytes.unwrap_or_else(StoreDaemon::default_memory_bytes);
    let started = StoreDaemon::start(memory_bytes, Duration::from_secs_f64(idle_s));
    let daemon = started.map_err(|error| failed(py, error))?;
    let tell = |is_first: bool| listening.call1((is_first,)).map(drop);
    let Some(daemon) = daemon else { return tell(false) };
    run_until_signal(py, "forebay-store", move |stop| daemon.run(stop), || tell(true))
}

/// What the running daemon holds, as JSON; none without a daemon.
#[pyfunction]
pub(crate) fn store_status(py: Python<'_>) -> PyResult<Option<String>> {
    py.detach(status).map_err(|error| failed(py, error))
}

/// Ends the daemon; returns its process id and how many processes use its shares, none without a
/// daemon.
#[pyfunction]
pub(crate) fn stop_store(py: Python<'_>) -> PyResult<Option<(i32, u32)>> {
    py.detach(stop).map_err(|error| failed(py, error))
}
