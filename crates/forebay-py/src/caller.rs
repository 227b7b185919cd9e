//! Python as the caller of long calls: signals, a progress callback, warnings.

use std::path::Path;
use std::sync::Mutex;

use forebay_engine::{Error, Host};
use forebay_format::{Manifest, OpenOptions};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::log;

/// Asks Python while the interpreter is released; what a callback raises is kept and raised at the
/// end.
pub(crate) struct PythonCaller {
    progress: Option<Py<PyAny>>,
    raised: Mutex<Option<PyErr>>,
}

impl PythonCaller {
    pub(crate) fn new(progress: Option<Py<PyAny>>) -> Self {
        Self { progress, raised: Mutex::new(None) }
    }

    fn keep(&self, error: PyErr) {
        self.raised.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
    }

    fn has_raised(&self) -> bool {
        self.raised.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some()
    }

    /// What a signal handler, a callback or a warning filter raised.
    pub(crate) fn raised(self) -> Option<PyErr> {
        self.raised.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Host for PythonCaller {
    fn interrupted(&self) -> bool {
        if self.has_raised() {
            return true;
        }
        // `None`: the interpreter is shutting down.
        let checked = Python::try_attach(|py| py.check_signals().and_then(|()| log::drain(py)));
        match checked {
            Some(Ok(())) => false,
            Some(Err(error)) => {
                self.keep(error);
                true
            }
            None => true,
        }
    }

    fn progress(&self, what: &str, done: u64, all: u64) -> bool {
        if let Some(progress) = &self.progress {
            match Python::try_attach(|py| progress.call1(py, (what, done, all)).map(drop)) {
                Some(Ok(())) => {}
                Some(Err(error)) => self.keep(error),
                None => return false,
            }
        }
        !self.interrupted()
    }

    fn find_structure(&self, path: &Path, options: &OpenOptions) -> Option<Vec<u8>> {
        let found = Python::try_attach(|py| {
            if let Some(Manifest { path: manifest, reading }) = &options.manifest {
                let arguments = (manifest, path, reading, options.fields.clone());
                return py.import("forebay._formats.manifest")?.call_method1("find", arguments)?.extract();
            }
            let arguments = (path, options.fields.clone(), options.sample_axis.is_file());
            py.import("forebay._formats.hdf5_structure")?
                .call_method1("find", arguments)?
                .extract::<Vec<u8>>()
        })?;
        found.map_err(|error| self.keep(error)).ok()
    }

    fn warn(&self, text: &str) {
        let warned =
            Python::try_attach(|py| py.import("forebay._warn")?.call_method1("warn", (text,)).map(drop));
        if let Some(Err(error)) = warned {
            self.keep(error);
        }
    }
}

/// Runs a call that may wait without the interpreter; what Python raised meanwhile goes before the
/// engine's own error.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    call: impl Send + FnOnce(&PythonCaller) -> Result<T, Error>,
) -> PyResult<T> {
    detached_keeping(py, progress, call, |_| Ok(()))
}

/// As [`detached`]; `keep` sees a result before any exception is raised, which would lose it
/// otherwise: a filter may turn a warning into an error.
pub(crate) fn detached_keeping<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    call: impl Send + FnOnce(&PythonCaller) -> Result<T, Error>,
    keep: impl FnOnce(&mut T) -> PyResult<()>,
) -> PyResult<T> {
    // Before the call: an exception of a log handler after it would lose its result.
    log::drain(py)?;
    let caller = PythonCaller::new(progress);
    let mut result = py.detach(|| call(&caller));
    if let Ok(value) = &mut result {
        keep(value)?;
    }
    if let Some(raised) = caller.raised() {
        return Err(raised);
    }
    result.map_err(|error| match log::drain(py) {
        Ok(()) => raise(py, &error),
        Err(raised) => raised,
    })
}
