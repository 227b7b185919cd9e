//! Runs the loop of a daemon until it ends or a signal comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use pyo3::prelude::*;

/// Interval between two looks for signals.
const INTERVAL: Duration = Duration::from_millis(200);

/// Runs `serve` on a thread until it returns. A signal whose handler raises sets its flag, and is
/// raised once `serve` has returned.
pub(crate) fn run_until_signal(
    py: Python<'_>,
    name: &str,
    serve: impl FnOnce(&AtomicBool) + Send + 'static,
) -> PyResult<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = Builder::new().name(name.into()).spawn(move || serve(&stopped))?;
    // Signals are Python's: its handlers run in this thread.
    let signal = loop {
        if thread.is_finished() {
            break Ok(());
        }
        py.detach(|| std::thread::sleep(INTERVAL));
        if let Err(signal) = py.check_signals() {
            break Err(signal);
        }
    };
    stop.store(true, Ordering::Relaxed);
    py.detach(|| thread.join()).ok();
    signal
}
