//! Runs the loop of a daemon until it ends or a signal comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use forebay_host::ThreadError;
use pyo3::prelude::*;

use crate::errors::raise;

/// Interval between two looks for signals.
const INTERVAL: Duration = Duration::from_millis(200);

/// Runs `serve` on a thread until it returns, and `listening` once there is one. A signal whose
/// handler raises sets the thread's flag, and is raised once `serve` has returned.
pub(crate) fn run_until_signal(
    py: Python<'_>,
    name: &str,
    serve: impl FnOnce(&AtomicBool) + Send + 'static,
    listening: impl FnOnce() -> PyResult<()>,
) -> PyResult<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = Builder::new()
        .name(name.into())
        .spawn(move || serve(&stopped))
        .map_err(|error| raise(py, &ThreadError::new("the thread of a daemon", &error).into()))?;
    let mut signal = listening();
    // Signals are Python's: its handlers run in this thread.
    while signal.is_ok() && !thread.is_finished() {
        py.detach(|| std::thread::sleep(INTERVAL));
        signal = py.check_signals();
    }
    stop.store(true, Ordering::Relaxed);
    py.detach(|| thread.join()).ok();
    signal
}
