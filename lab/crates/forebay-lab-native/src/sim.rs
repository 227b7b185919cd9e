//! Simulated jobs. Jobs and results are JSON; `forebay_lab.simulate` makes them.

use forebay_py::errors::wrong_option;
use forebay_sim::{Costs, Job, simulate};
use pyo3::prelude::*;

/// Simulates a job once for each seed; see `lab/python/forebay_lab/_native.pyi`.
#[pyfunction]
pub(crate) fn sim_run(py: Python<'_>, job: &str, seeds: Vec<u64>) -> PyResult<String> {
    let job: Job =
        serde_json::from_str(job).map_err(|error| wrong_option(py, format!("simulated job: {error}"), ""))?;
    let found = py.detach(|| simulate(&job, &seeds));
    let found = found.map_err(|error| wrong_option(py, error.to_string(), error.hint()))?;
    serde_json::to_string(&found).map_err(|error| wrong_option(py, error.to_string(), ""))
}

/// The costs that a simulation assumes by default.
#[pyfunction]
pub(crate) fn sim_costs(py: Python<'_>) -> PyResult<String> {
    serde_json::to_string(&Costs::default()).map_err(|error| wrong_option(py, error.to_string(), ""))
}
