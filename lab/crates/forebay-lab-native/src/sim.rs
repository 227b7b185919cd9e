//! Simulated jobs. Jobs and results are JSON; `forebay_lab.simulate` makes them.

use forebay_py::dataset::Dataset;
use forebay_py::errors::wrong_option;
use forebay_sim::{Costs, Error, Job, Places, simulate};
use pyo3::prelude::*;
use serde::de::DeserializeOwned;

fn parsed<T: DeserializeOwned>(py: Python<'_>, what: &str, text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| wrong_option(py, format!("{what}: {error}"), ""))
}

fn refused(py: Python<'_>, error: &Error) -> PyErr {
    let Error::NotModelled(what) = error else { return wrong_option(py, error.to_string(), error.hint()) };
    py.import("forebay_lab.simulate.errors")
        .and_then(|module| module.getattr("NotModelledError")?.call1((what,)))
        .map_or_else(|failure| failure, PyErr::from_value)
}

/// The places of all samples of a dataset; see `lab/python/forebay_lab/_native.pyi`.
#[pyclass(frozen, module = "forebay_lab._native")]
pub(crate) struct SimPlaces(Places);

#[pymethods]
impl SimPlaces {
    #[new]
    fn new(py: Python<'_>, dataset: &str) -> PyResult<Self> {
        let dataset = parsed(py, "simulated dataset", dataset)?;
        py.detach(|| Places::of(&dataset)).map(Self).map_err(|error| refused(py, &error))
    }

    /// The places of a dataset that is there; its index is built where it has none.
    #[staticmethod]
    #[pyo3(signature = (dataset, progress = None))]
    fn of_dataset(py: Python<'_>, dataset: &Dataset, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let index = dataset
            .ask(py, progress, "an index is loaded", |source, caller| Ok(source.index(caller)?.index))?;
        py.detach(|| Places::of_index(index)).map(Self).map_err(|error| refused(py, &error))
    }

    /// Number of samples.
    #[getter]
    fn samples(&self) -> u64 {
        self.0.samples()
    }

    /// Bytes of a sample, the mean where they differ.
    #[getter]
    fn sample_bytes(&self) -> u64 {
        self.0.sample_bytes()
    }

    /// Bytes of all files.
    #[getter]
    fn file_bytes(&self) -> u64 {
        self.0.file_bytes()
    }
}

/// The costs of the machine that jobs without costs are simulated with.
#[pyfunction]
pub(crate) fn sim_costs(py: Python<'_>) -> PyResult<String> {
    serde_json::to_string(&Costs::default()).map_err(|error| wrong_option(py, error.to_string(), ""))
}

/// Simulates a job once for each seed.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "as Python gives them")]
pub(crate) fn sim_run(py: Python<'_>, job: &str, places: &SimPlaces, seeds: Vec<u64>) -> PyResult<String> {
    let job: Job = parsed(py, "simulated job", job)?;
    let found = py.detach(|| simulate(&job, &places.0, &seeds)).map_err(|error| refused(py, &error))?;
    serde_json::to_string(&found).map_err(|error| wrong_option(py, error.to_string(), ""))
}
