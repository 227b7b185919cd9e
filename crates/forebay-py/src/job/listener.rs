//! `forebay._native.Listener`: where the leader of a node is reached by those of the others.

use std::sync::{Mutex, PoisonError};

use forebay_engine::Error;
use forebay_engine::mesh;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::raise;

/// See `python/forebay/_native.pyi`.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Listener {
    listener: Mutex<Option<mesh::Listener>>,
    endpoint: Vec<u8>,
}

#[pymethods]
impl Listener {
    #[new]
    #[pyo3(signature = (interface = None))]
    fn new(py: Python<'_>, interface: Option<&str>) -> PyResult<Self> {
        let listener = mesh::Listener::new(interface).map_err(|error| raise(py, &Error::from(error)))?;
        let endpoint = listener.endpoint().to_bytes();
        Ok(Self { listener: Mutex::new(Some(listener)), endpoint })
    }

    #[getter]
    fn endpoint<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.endpoint)
    }

    fn close(&self) {
        drop(self.take());
    }
}

impl Listener {
    /// The socket, once.
    pub(crate) fn take(&self) -> Option<mesh::Listener> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
