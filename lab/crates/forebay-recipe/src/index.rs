//! From recipes to indexes, and from the files of a dataset to recipes.
//!
//! [`build_with_recipe`] scans the files as every build of an index does and searches for recipes
//! that lead to them. [`RecipeFile::declare`] takes a user's recipe instead, and
//! [`RecipeFile::verify`] compares it with a scan. [`RecipeFile::compute_index`] makes the bytes of
//! an ordinary sidecar, after comparing each recipe with its file.

use std::path::Path;

use forebay_format::lmdb::{Database, WalkOptions};
use forebay_format::sidecar::Writer;
use forebay_format::{BuiltIndex, Dataset, Progress, ScanSummary};

use crate::check::{Difference, LeafPicker, compare_facts, compare_metas, value_of};
use crate::derive::Observed;
use crate::error::Error;
use crate::facts::Recipe;
use crate::file::{RecipeFile, ShardRecipe};
use crate::layout::{Offsets, PlaceDigest, compute};

/// Leaves between two calls of the progress callback.
const PROGRESS_LEAVES: u64 = 1024;

/// What recipes are for, in the message of a dataset that is not LMDB.
const PURPOSE: &str = "a recipe";

/// An index that was just built, and the recipe of its files.
#[derive(Clone, Debug)]
pub struct DerivedRecipe {
    /// The index.
    pub index: BuiltIndex,
    /// The recipes, or why there are none.
    pub recipe: Result<RecipeFile, String>,
}

/// Builds the index of LMDB files by a scan and searches for recipes that lead to these files.
pub fn build_with_recipe(
    dataset: &Dataset,
    threads: usize,
    progress: &(dyn Fn(Progress) -> bool + Sync),
) -> Result<DerivedRecipe, Error> {
    let databases = dataset.databases(PURPOSE)?;
    let mut observed: Vec<Observed> =
        databases.iter().map(|database| Observed::new(database.identity())).collect();
    let index = dataset.build_index_with(progress, |shard, writer, progress| {
        databases[shard].add_observed(writer, threads, progress, &mut |record, excluded| {
            observed[shard].add(record, excluded);
        })
    })?;
    let mut shards = Vec::new();
    let mut recipe = Ok(());
    for (observed, database) in observed.into_iter().zip(databases) {
        match observed.find(database.identity()) {
            Ok((recipe, digest)) => shards.push(ShardRecipe { recipe, digest: Some(digest) }),
            Err(reason) => {
                recipe = Err(format!("{}: {reason}", database.path().display()));
                break;
            }
        }
    }
    let recipe = recipe.map(|()| RecipeFile { fingerprint: dataset.fingerprint(), shards });
    Ok(DerivedRecipe { index, recipe })
}

impl RecipeFile {
    /// Reads the recipe that a user declares for every shard in a TOML file. Compares nothing with
    /// the data.
    pub fn declare(dataset: &Dataset, path: &Path) -> Result<Self, Error> {
        let recipe = |database: &Database| {
            Recipe::from_toml(path, database.identity()).map(|recipe| ShardRecipe { recipe, digest: None })
        };
        let shards = dataset.databases(PURPOSE)?.into_iter().map(recipe).collect::<Result<_, _>>()?;
        Ok(Self { fingerprint: dataset.fingerprint(), shards })
    }

    /// Compares the recipes with a scan of the files, and returns them with the digests that make
    /// them verified.
    pub fn verify(
        &self,
        dataset: &Dataset,
        threads: usize,
        progress: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<Self, Error> {
        let mut verified = self.clone();
        for (database, shard) in dataset.databases(PURPOSE)?.into_iter().zip(&mut verified.shards) {
            let mut observed = Observed::new(database.identity());
            database.walk(
                &WalkOptions { threads, ..WalkOptions::default() },
                &|done, total| progress(Progress { what: "leaf pages", done, total }),
                &mut |record| {
                    observed.add(&record, None);
                    Ok(())
                },
            )?;
            shard.digest = Some(observed.digest());
        }
        verified.compute_index(dataset, &|_| true)?;
        Ok(verified)
    }

    /// Computes the index, after comparing each recipe with its file: the meta pages, the digest of
    /// the layout where there is one, and sixteen leaves. [`Error::Mismatch`] names the first
    /// difference.
    pub fn compute_index(
        &self,
        dataset: &Dataset,
        progress: &dyn Fn(Progress) -> bool,
    ) -> Result<BuiltIndex, Error> {
        let databases = dataset.databases(PURPOSE)?;
        dataset.build_index_with(progress, |shard, writer, progress| {
            let (database, recipe) = (databases[shard], &self.shards[shard]);
            compute_shard(database, recipe, writer, progress).map_err(|stopped| match stopped {
                Stopped::Different(difference) => difference.at(database),
                Stopped::Failed(error) => error,
            })
        })
    }
}

/// Adds the records of a shard, computed from its recipe, after comparing the recipe with the file.
fn compute_shard(
    database: &Database,
    shard: &ShardRecipe,
    writer: &mut Writer,
    progress: &dyn Fn(u64) -> bool,
) -> Result<ScanSummary, Stopped> {
    let identity = database.identity();
    let recipe = &shard.recipe;
    // From here on the recipe has no more records than the file, which bounds the work.
    compare_facts(recipe, identity)?;
    let offsets = Offsets::new(identity.page_bytes, identity.dialect.header_bytes());
    let mut digest = PlaceDigest::default();
    let mut picker = LeafPicker::new(identity.tree.leaf_pages);
    let mut excluded = recipe.excluded.iter().peekable();
    let mut leaves = 0_u64;
    let outcome = compute(recipe, |leaf| {
        let page = leaf.page.page;
        // Bounds the work for a recipe that leads to a larger file.
        if leaf.last_page > identity.last_page || leaves == identity.tree.leaf_pages {
            let expected = format!("leaf {leaves} among {} pages", leaf.last_page + 1);
            let (known, pages) = (identity.tree.leaf_pages, identity.last_page + 1);
            let found = format!("{known} leaves among {pages} pages");
            return Err(Difference::new("pages", expected, found).into());
        }
        picker.add(leaf);
        for (record, placed) in (leaf.first..).zip(&leaf.page.records) {
            digest.push(offsets.value(page, placed), u64::from(placed.value_bytes));
            let name = excluded.next_if(|(_, excluded)| *excluded == record).map(|(name, _)| *name);
            database.add_record(writer, value_of(page, database, placed), name);
        }
        leaves += 1;
        if leaves.is_multiple_of(PROGRESS_LEAVES) && !progress(leaves) {
            return Err(Stopped::Failed(forebay_format::Error::Interrupted.into()));
        }
        Ok(())
    })?;
    compare_metas(&outcome, identity)?;
    let predicted = digest.finish();
    if let Some(derived) = shard.digest.filter(|derived| *derived != predicted) {
        let what = "digest of where all records lie";
        return Err(Difference::new(what, format!("{predicted:032x}"), format!("{derived:032x}")).into());
    }
    let picked = picker.finish();
    for leaf in &picked {
        leaf.prefetch(database);
    }
    let mut summary = ScanSummary::default();
    for leaf in picked {
        leaf.check(database, recipe.key_pattern.as_ref())?;
        summary.reads += 1;
        summary.read_bytes += u64::from(identity.page_bytes);
    }
    Ok(summary)
}

/// Why a computation ended.
enum Stopped {
    Different(Difference),
    Failed(Error),
}

impl From<Difference> for Stopped {
    fn from(difference: Difference) -> Self {
        Self::Different(difference)
    }
}

impl From<String> for Stopped {
    fn from(reason: String) -> Self {
        Self::Different(reason.into())
    }
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
