//! Recipes of datasets: what `forebay recipe` does with them.

use std::path::{Path, PathBuf};

use forebay_engine::{Built, Error, ErrorDetails, Host, INDEX_THREADS, IndexedDataset};
use forebay_format::{CachePolicy, IndexReport, Progress, SidecarLocation};
use forebay_py::dataset::{Dataset, json, sidecar_location};
use forebay_recipe::{RecipeFile, RecipeReport};
use pyo3::prelude::*;

/// Builds the index and searches for a recipe; see `lab/python/forebay_lab/_native.pyi`.
#[pyfunction]
#[pyo3(signature = (dataset, *, beside = false, progress = None))]
pub(crate) fn build_with_recipe<'py>(
    py: Python<'py>,
    dataset: &Dataset,
    beside: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (built, recipe) = dataset.ask(py, progress, "an index is built", move |source, caller| {
        build(source, sidecar_location(beside), caller)
    })?;
    let mut value = serde_json::to_value(&built.report).expect("a report can be written as JSON");
    value["sidecar"] = built.path.map(|path| path.display().to_string()).into();
    put(&mut value, Some(recipe));
    json(py, &value)
}

/// Takes the recipe that a user declares.
#[pyfunction]
#[pyo3(signature = (dataset, path, *, beside = false, progress = None))]
pub(crate) fn declare_recipe<'py>(
    py: Python<'py>,
    dataset: &Dataset,
    path: PathBuf,
    beside: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (report, declared) = dataset.ask(py, progress, "a recipe is compared", move |source, caller| {
        declare(source, &path, sidecar_location(beside), caller)
    })?;
    let mut value = serde_json::to_value(&report).expect("a report can be written as JSON");
    value["sidecar"] = serde_json::Value::Null;
    put(&mut value, Some(Ok(declared)));
    json(py, &value)
}

/// The recipe that is kept of the dataset.
#[pyfunction]
pub(crate) fn kept_recipe<'py>(py: Python<'py>, dataset: &Dataset) -> PyResult<Bound<'py, PyAny>> {
    let found = dataset.ask(py, None, "a recipe is read", |source, _| Ok(find(source)))?;
    json(py, &found)
}

/// Compares the recipe that is kept with all records.
#[pyfunction]
#[pyo3(signature = (dataset, *, threads = 2, progress = None))]
pub(crate) fn verify_recipe<'py>(
    py: Python<'py>,
    dataset: &Dataset,
    threads: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let found = dataset.ask(py, progress, "a recipe is verified", move |source, caller| {
        verify(source, threads.max(1), caller)
    })?;
    let mut value = serde_json::json!({});
    put(&mut value, found);
    json(py, &value)
}

/// Builds the index, searches for a recipe that leads to the files, and writes both. The inner
/// error is why there is no recipe.
fn build(
    source: &IndexedDataset,
    place: SidecarLocation,
    caller: &dyn Host,
) -> Result<(Built, Result<RecipeReport, String>), Error> {
    let dataset = source.dataset();
    if let Err(reason) = dataset.need_lmdb("a recipe") {
        return Ok((source.build(Some(place), caller)?, Err(reason.to_string())));
    }
    let found = forebay_recipe::build_with_recipe(dataset, INDEX_THREADS, &|done| report(caller, done))
        .map_err(of_recipe)?;
    let cache = CachePolicy::from_environment();
    let path = dataset.write_sidecar(&found.index.bytes, place, &cache)?;
    let recipe = match found.recipe {
        Ok(recipe) => Ok(recipe.write(dataset, place, &cache).map_err(of_recipe)?),
        Err(reason) => Err(reason),
    };
    Ok((Built { bytes: found.index.bytes, report: found.index.report, path: Some(path) }, recipe))
}

/// Reads the recipe that a user declares at `path`, compares it with meta pages and leaves, and
/// writes it.
fn declare(
    source: &IndexedDataset,
    path: &Path,
    place: SidecarLocation,
    caller: &dyn Host,
) -> Result<(IndexReport, RecipeReport), Error> {
    let dataset = source.dataset();
    let declared = RecipeFile::declare(dataset, path).map_err(of_recipe)?;
    let computed = declared.compute_index(dataset, &|done| report(caller, done)).map_err(of_recipe)?;
    let written = declared.write(dataset, place, &CachePolicy::from_environment()).map_err(of_recipe)?;
    Ok((computed.report, written))
}

/// The recipe that is kept of the dataset.
fn find(source: &IndexedDataset) -> Option<RecipeReport> {
    let found = RecipeFile::find(source.dataset(), &CachePolicy::from_environment()).found?;
    Some(found.recipe.report(found.path))
}

/// Compares the recipe that is kept, if there is one, with all records. The inner error is what
/// differs.
fn verify(
    source: &IndexedDataset,
    threads: usize,
    caller: &dyn Host,
) -> Result<Option<Result<RecipeReport, String>>, Error> {
    forebay_recipe::verify_kept(source.dataset(), threads, &|done| report(caller, done)).map_err(of_recipe)
}

/// Adds a recipe, or why there is none, to a report; `None` if no recipe was asked for.
fn put(value: &mut serde_json::Value, recipe: Option<Result<RecipeReport, String>>) {
    let (recipe, reason) = match recipe {
        Some(Ok(recipe)) => (Some(recipe), None),
        Some(Err(reason)) => (None, Some(reason)),
        None => (None, None),
    };
    value["recipe"] = serde_json::to_value(recipe).expect("a report can be written as JSON");
    value["no_recipe"] = reason.into();
}

fn report(caller: &dyn Host, progress: Progress) -> bool {
    caller.progress(progress.what, progress.done, progress.total)
}

fn of_recipe(error: forebay_recipe::Error) -> Error {
    match error {
        forebay_recipe::Error::Format(error) => error.into(),
        other => Error::Format(ErrorDetails::new(other.to_string(), other.hint())),
    }
}
