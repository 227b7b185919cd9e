//! `forebay._native.RunSession`: a run of the tier daemon, for `forebay run`.

use std::path::PathBuf;
use std::time::Duration;

use forebay_engine::{Error, Host};
use forebay_plan::Fetch;
use forebay_plan::options::TierSpec;
use forebay_tier::{DaemonAddress, RunClient, RunOptions, TierError, runs_usage};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pythonize::depythonize;
use serde_json::Value;

use crate::caller::detached;
use crate::dataset::json;
use crate::errors::raise;

fn failed(py: Python<'_>, error: TierError) -> PyErr {
    raise(py, &Error::from(error))
}

/// A run of the tier daemon: programs that map its table get copies of whole files.
#[pyclass(frozen, name = "RunSession", module = "forebay._native")]
pub(crate) struct RunSession {
    client: std::sync::Mutex<Option<RunClient>>,
}

impl RunSession {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&RunClient) -> Result<T, TierError> + Send,
    ) -> PyResult<T> {
        let asked = py.detach(|| {
            let client = self.client.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            client.as_ref().map(ask)
        });
        asked.ok_or_else(|| PyValueError::new_err("the run is closed"))?.map_err(|error| failed(py, error))
    }
}

#[pymethods]
impl RunSession {
    #[new]
    #[allow(clippy::too_many_arguments)] // the shape of a Python signature
    #[pyo3(signature = (*, tiers, sources, frozen, check, fetch, keep, daemon))]
    fn new(
        py: Python<'_>,
        tiers: &Bound<'_, PyAny>,
        sources: Vec<PathBuf>,
        frozen: bool,
        check: bool,
        fetch: &Bound<'_, PyAny>,
        keep: bool,
        daemon: Vec<String>,
    ) -> PyResult<Self> {
        let tiers: Vec<TierSpec> = depythonize(tiers)?;
        let fetch: Fetch = depythonize(fetch)?;
        let options = RunOptions { sources, frozen, check, fetch, keep };
        let open = || RunClient::open(DaemonAddress::of_this_node(daemon)?, tiers, options);
        let client = py.detach(open).map_err(|error| failed(py, error))?;
        Ok(Self { client: std::sync::Mutex::new(Some(client)) })
    }

    /// The file table, for `FOREBAY_TABLE`.
    #[getter]
    fn table(&self, py: Python<'_>) -> PyResult<PathBuf> {
        self.with(py, |client| Ok(client.table()))
    }

    /// What the user should know.
    #[getter]
    fn warnings(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |client| Ok(client.warnings()))
    }

    /// Begins to copy all sources.
    fn stage(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, RunClient::stage)
    }

    /// How far staging is.
    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let facts = self.with(py, RunClient::progress)?;
        json(py, &facts)
    }

    /// What the run has done.
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let facts = detached(py, None, |caller| {
            let client = self.client.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let Some(client) = client.as_ref() else { return Ok(Value::Null) };
            client.summary(&mut || !caller.interrupted()).map_err(Error::from)
        })?;
        py.check_signals()?;
        json(py, &facts)
    }

    /// How often another daemon took the place of one that had died. It counts from then on.
    #[getter]
    fn restarts(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |client| Ok(client.restarts()))
    }

    /// Ends copies under way, at most within `within_s` unless copies are compared.
    fn finish(&self, py: Python<'_>, within_s: f64) -> PyResult<()> {
        let within = Duration::try_from_secs_f64(within_s)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        detached(py, None, |caller| {
            let client = self.client.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let Some(client) = client.as_ref() else { return Ok(()) };
            client.finish(within, &mut || !caller.interrupted()).map_err(Error::from)
        })?;
        py.check_signals()
    }

    /// Leaves the run.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.client.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()));
    }
}

/// What all runs of this user's daemon have done; none without a daemon.
#[pyfunction]
pub(crate) fn run_usage(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    let usage = py.detach(runs_usage).map_err(|error| failed(py, error))?;
    usage.map(|runs| json(py, &runs)).transpose()
}
