//! Recipes that are kept beside the data or in the user's cache directory.
//!
//! [`RecipeFile::find`] and [`RecipeFile::write`] are subject to the same conditions as sidecars:
//! owner, mode, no symbolic link. [`KeptRecipes`] computes the indexes that loaders ask for.

use std::path::PathBuf;

use forebay_format::{
    BuiltIndex, CachePolicy, Computation, ComputeIndex, ComputedIndex, Dataset, Progress, SidecarLocation,
};
use serde::Serialize;

use crate::error::Error;
use crate::file::RecipeFile;

/// End of the names of recipe files.
const ENDING: &str = "forebay-recipe";

/// Why an index cannot be computed where no recipe is kept.
const NO_RECIPE: &str = "no recipe of this dataset is kept (`forebay recipe build` makes one, with the same --schema and \
                         --database)";

/// A kept recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRecipe {
    /// The file.
    pub path: PathBuf,
    /// In which place the file is.
    pub place: SidecarLocation,
    /// Its contents.
    pub recipe: RecipeFile,
}

/// Result of a search for a recipe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecipeLookup {
    /// The recipe, if there is one that can be used.
    pub found: Option<FoundRecipe>,
    /// Why others were skipped.
    pub warnings: Vec<String>,
}

/// A kept recipe, described for users.
#[derive(Clone, Debug, Serialize)]
pub struct RecipeReport {
    /// Whether it was compared with all records of the dataset.
    pub verified: bool,
    /// The recipe of each shard in one line.
    pub recipes: Vec<String>,
    /// Length of the recipes \[bytes\].
    pub recipe_bytes: u64,
    /// Length of the lists of lengths that they name \[bytes\].
    pub list_bytes: u64,
    /// The file.
    pub path: PathBuf,
}

impl RecipeFile {
    /// Searches beside the data and in the cache directory. Never fails: a file that cannot be used
    /// is skipped with a warning. Does not compare the recipe with the data.
    pub fn find(dataset: &Dataset, cache: &CachePolicy) -> RecipeLookup {
        let decode = |bytes: Vec<u8>| Self::decode(&bytes, dataset.fingerprint(), dataset.shards().len());
        let (found, warnings) =
            dataset.find_kept(cache, ENDING, "recipe", |_, _, bytes| decode(bytes).map(Some));
        RecipeLookup {
            found: found.map(|(path, place, recipe)| FoundRecipe { path, place, recipe }),
            warnings,
        }
    }

    /// Writes the recipes to their place in one step, and reports them.
    pub fn write(
        &self,
        dataset: &Dataset,
        place: SidecarLocation,
        cache: &CachePolicy,
    ) -> Result<RecipeReport, Error> {
        Ok(self.report(dataset.write_kept(&self.encode(), place, cache, ENDING)?))
    }

    /// Describes the recipes, which are kept at `path`.
    pub fn report(&self, path: PathBuf) -> RecipeReport {
        RecipeReport {
            verified: self.is_verified(),
            recipes: self.shards.iter().map(|shard| shard.recipe.describe()).collect(),
            recipe_bytes: self.recipe_bytes(),
            list_bytes: self.list_bytes(),
            path,
        }
    }
}

/// Verifies the recipe that is kept of a dataset, if there is one, against all records. A declared
/// recipe that passes is kept as verified. The inner error is the difference, and the recipe is of
/// no use then.
pub fn verify_kept(
    dataset: &Dataset,
    threads: usize,
    progress: &(dyn Fn(Progress) -> bool + Sync),
) -> Result<Option<Result<RecipeReport, String>>, Error> {
    let cache = CachePolicy::from_environment();
    let Some(found) = RecipeFile::find(dataset, &cache).found else { return Ok(None) };
    let verified = if found.recipe.is_verified() {
        found.recipe.compute_index(dataset, progress).map(|_| found.recipe.report(found.path))
    } else {
        found
            .recipe
            .verify(dataset, threads, progress)
            .and_then(|verified| verified.write(dataset, found.place, &cache))
    };
    match verified {
        Ok(report) => Ok(Some(Ok(report))),
        Err(error @ Error::Mismatch { .. }) => Ok(Some(Err(error.to_string()))),
        Err(error) => Err(error),
    }
}

/// Computes the index of a dataset from the recipe that is kept of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeptRecipes;

impl ComputeIndex for KeptRecipes {
    fn compute_index(
        &self,
        dataset: &Dataset,
        allow_unverified: bool,
        progress: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<Computation, forebay_format::Error> {
        let RecipeLookup { found, warnings } = RecipeFile::find(dataset, &CachePolicy::from_environment());
        let Some(found) = found.filter(|found| allow_unverified || found.recipe.is_verified()) else {
            // Only a caller that accepts any recipe asked for one.
            let obstacle = allow_unverified.then(|| NO_RECIPE.to_owned());
            return Ok(Computation { index: None, obstacle, warnings });
        };
        match found.recipe.compute_index(dataset, progress) {
            Ok(BuiltIndex { bytes, .. }) => {
                let (verified, recipe_bytes) = (found.recipe.is_verified(), found.recipe.recipe_bytes());
                let index = ComputedIndex { bytes, verified, recipe_bytes, path: found.path };
                Ok(Computation { index: Some(index), obstacle: None, warnings })
            }
            Err(error @ Error::Mismatch { .. }) => {
                Ok(Computation { index: None, obstacle: Some(error.to_string()), warnings })
            }
            Err(Error::Format(error)) => Err(error),
        }
    }
}
