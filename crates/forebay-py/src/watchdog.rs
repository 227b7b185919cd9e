//! A watch over a call that holds the interpreter and cannot be given up: `MPI_Init`, above all.

use std::io::{self, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Says one text on standard error when a block has lasted, and another, after which the process ends, when it has lasted too long.
///
/// A thread without Python does it, as the block may hold the interpreter. Nothing happens when the block ends before.
#[pyclass(module = "forebay._native", frozen)]
pub(crate) struct Watchdog {
    warn_after: Duration,
    end_after: Duration,
    warning: String,
    end: String,
    watched: Mutex<Option<Sender<()>>>,
}

/// Whether anybody listens does not matter.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

#[pymethods]
impl Watchdog {
    #[new]
    fn new(warn_after_s: f64, warning: String, end_after_s: f64, end: String) -> PyResult<Self> {
        let span = |seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
        };
        let (warn_after, end_after) = (span(warn_after_s)?, span(end_after_s)?);
        Ok(Self { warn_after, end_after, warning, end, watched: Mutex::default() })
    }

    fn __enter__(&self) {
        let (sender, receiver) = channel::<()>();
        let (warn_after, end_after) = (self.warn_after, self.end_after);
        let (warning, end) = (self.warning.clone(), self.end.clone());
        let lasts = move |span| receiver.recv_timeout(span) == Err(RecvTimeoutError::Timeout);
        let watch = move || {
            if !lasts(warn_after.min(end_after)) {
                return;
            }
            say(&warning);
            if lasts(end_after.saturating_sub(warn_after)) {
                say(&end);
                // SAFETY: ends the process as it is; handlers of a library that has not finished its start are left out.
                unsafe { libc::_exit(1) }
            }
        };
        // Without a thread nobody watches, and the block runs all the same.
        let thread = thread::Builder::new().name("forebay-watchdog".to_owned()).spawn(watch);
        *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok().map(|_| sender);
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
