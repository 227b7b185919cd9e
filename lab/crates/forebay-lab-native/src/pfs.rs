//! The emulated parallel file system. Configurations and answers are JSON; `forebay_lab.pfs` makes
//! them.

use forebay_host::ThreadError;
use forebay_model::virtual_time::{self, Scenario};
use forebay_model::{Error, Spec};
use forebay_pfs::{Configuration, EmulatorError};
use forebay_py::errors::{raise, storage, wrong_option};
use pyo3::prelude::*;

/// A message whose last line may be a hint, as an option error.
fn refused(py: Python<'_>, text: &str) -> PyErr {
    match text.split_once("\nhint: ") {
        Some((message, hint)) => wrong_option(py, message, hint),
        None => wrong_option(py, text, ""),
    }
}

fn wrong_model(py: Python<'_>, error: &Error) -> PyErr {
    refused(py, &error.to_string())
}

fn parsed<T: serde::de::DeserializeOwned>(py: Python<'_>, what: &str, text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| wrong_option(py, format!("{what}: {error}"), ""))
}

fn checked(py: Python<'_>, text: &str) -> PyResult<Spec> {
    let spec: Spec = parsed(py, "file system specification", text)?;
    spec.check().map_err(|error| wrong_model(py, &error))?;
    Ok(spec)
}

fn printed(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| wrong_option(py, error.to_string(), ""))
}

/// Serves until told to end; see `lab/python/forebay_lab/_native.pyi`.
#[pyfunction]
pub(crate) fn pfs_serve(py: Python<'_>, configuration: &str) -> PyResult<()> {
    let configuration: Configuration = parsed(py, "configuration of the emulator", configuration)?;
    py.detach(|| forebay_pfs::serve(&configuration)).map_err(|error| match &error {
        EmulatorError::Thread { what, source } => raise(py, &ThreadError::new(what, source).into()),
        EmulatorError::Io { path, source, .. } => storage(py, &error.text(), source, path),
        _ => refused(py, &error.text()),
    })
}

/// The specification of a preset or of a TOML text, with some fields changed.
#[pyfunction]
#[pyo3(signature = (preset, toml, toml_path, overrides))]
pub(crate) fn pfs_spec(
    py: Python<'_>,
    preset: Option<&str>,
    toml: Option<&str>,
    toml_path: Option<&str>,
    overrides: &str,
) -> PyResult<String> {
    let spec = match (preset, toml) {
        (Some(preset), None) => Spec::preset(preset),
        (None, Some(toml)) => Spec::from_toml(toml, toml_path.unwrap_or("given as text")),
        _ => return Err(wrong_option(py, "either a preset or a TOML text is needed, and not both", "")),
    };
    let changed = spec.and_then(|spec| spec.overridden(overrides));
    printed(py, &changed.map_err(|error| wrong_model(py, &error))?)
}

/// Names of all presets that imitate something; `none`, which costs nothing, is not among them.
#[pyfunction]
pub(crate) fn pfs_presets() -> Vec<&'static str> {
    Spec::preset_names().to_vec()
}

/// Factor by which a small machine must stretch model time.
#[pyfunction]
pub(crate) fn pfs_suggested_time_scale(py: Python<'_>, spec: &str) -> PyResult<f64> {
    Ok(checked(py, spec)?.suggested_time_scale())
}

/// The most that large sequential reads of one file can reach from so many nodes, in bytes per
/// second.
#[pyfunction]
pub(crate) fn pfs_limit(py: Python<'_>, spec: &str, nodes: u32) -> PyResult<f64> {
    Ok(checked(py, spec)?.limit_bytes_per_second(nodes))
}

/// What the model makes of a scenario, in virtual time.
#[pyfunction]
pub(crate) fn pfs_predict(py: Python<'_>, spec: &str, scenario: &str) -> PyResult<String> {
    let spec = checked(py, spec)?;
    let scenario: Scenario = parsed(py, "scenario", scenario)?;
    let outcome = py.detach(|| virtual_time::run(&spec, &scenario));
    printed(py, &outcome.map_err(|error| wrong_model(py, &error))?)
}
