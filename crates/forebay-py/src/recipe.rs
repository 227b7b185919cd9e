//! Recipes of data sets: what `forebay index --provenance`, `inspect` and `verify` do with them.

use std::path::Path;

use forebay_engine::{Built, Error, ErrorDetails, Host, INDEX_THREADS, IndexedDataset};
use forebay_format::{CachePolicy, IndexReport, Progress, SidecarLocation};
use forebay_recipe::{RecipeFile, RecipeReport};

/// Builds the index, searches for a recipe that leads to the files, and writes both. The inner
/// error is why there is no recipe.
pub(crate) fn build(
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
pub(crate) fn declare(
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

/// The recipe that is kept of the data set.
pub(crate) fn find(source: &IndexedDataset) -> Option<RecipeReport> {
    let found = RecipeFile::find(source.dataset(), &CachePolicy::from_environment()).found?;
    Some(found.recipe.report(found.path))
}

/// Compares the recipe that is kept, if there is one, with all records. The inner error is what
/// differs.
pub(crate) fn verify(
    source: &IndexedDataset,
    threads: usize,
    caller: &dyn Host,
) -> Result<Option<Result<RecipeReport, String>>, Error> {
    forebay_recipe::verify_kept(source.dataset(), threads, &|done| report(caller, done)).map_err(of_recipe)
}

/// Adds a recipe, or why there is none, to a report; `None` if no recipe was asked for.
pub(crate) fn put(value: &mut serde_json::Value, recipe: Option<Result<RecipeReport, String>>) {
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
