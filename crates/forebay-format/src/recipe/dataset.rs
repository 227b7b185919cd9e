//! Indexes that are computed: a dataset's recipes are recorded, stated, kept, held against its files, and used.
//!
//! [`Dataset::build_with_recipe`] walks the files as every build of an index does and looks for recipes with which they come
//! out as they are. [`Dataset::declare_recipe`] takes a user's word instead, and [`Dataset::verify_recipe`] compares it
//! with a walk. [`Dataset::compute_index`] makes the bytes of an ordinary sidecar from recipes, after holding each
//! against its file; so whatever uses an index needs to know nothing of any of this.

use std::path::{Path, PathBuf};

use super::{
    Difference, LeafPicker, Observed, Offsets, PlaceDigest, Recipe, RecipeFile, ShardRecipe, compare_facts,
    compare_metas, compute, value_of,
};
use crate::container::ScanSummary;
use crate::container::lmdb::{Database, WalkOptions};
use crate::dataset::build::IndexBuilder;
use crate::dataset::store::RECIPE_ENDING;
use crate::index::sidecar::Writer;
use crate::{BuiltIndex, CachePolicy, Dataset, Error, Place, Progress};

/// Leaves after which the progress callback is called.
const PROGRESS_LEAVES: u64 = 1024;

/// An index that was just built, and the recipe of its files.
#[derive(Clone, Debug)]
pub struct DerivedRecipe {
    /// The index.
    pub index: BuiltIndex,
    /// The recipes, or why there are none.
    pub recipe: Result<RecipeFile, String>,
}

/// A kept recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundRecipe {
    /// The file.
    pub path: PathBuf,
    /// Which place that is.
    pub place: Place,
    /// What it says.
    pub recipe: RecipeFile,
}

/// What a search for a recipe gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecipeLookup {
    /// The recipe, if there is one that can be used.
    pub found: Option<FoundRecipe>,
    /// Why others were passed over.
    pub warnings: Vec<String>,
}

impl Dataset {
    /// Builds the index by a walk and looks for recipes with which the files come out as they are.
    pub fn build_with_recipe(
        &self,
        threads: usize,
        progress: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<DerivedRecipe, Error> {
        let databases = match self.databases("a recipe") {
            Ok(databases) => databases,
            Err(error) => {
                let index = self.build_index(threads, progress)?;
                return Ok(DerivedRecipe { index, recipe: Err(error.to_string()) });
            }
        };
        let mut observed: Vec<Observed> =
            databases.iter().map(|database| Observed::new(database.identity())).collect();
        let index = self.build_with(progress, &mut |shard, writer, progress| {
            databases[shard].add_observed(writer, threads, progress, &mut |record, excluded| {
                observed[shard].see(record, excluded);
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
        let recipe = recipe.map(|()| RecipeFile { fingerprint: self.fingerprint(), shards });
        Ok(DerivedRecipe { index, recipe })
    }

    /// The recipe that a user states in a TOML file, for every shard; nothing of it is compared with the files.
    pub fn declare_recipe(&self, path: &Path) -> Result<RecipeFile, Error> {
        let recipe = |database: &Database| {
            Recipe::from_toml(path, database.identity()).map(|recipe| ShardRecipe { recipe, digest: None })
        };
        let shards = self.databases("a recipe")?.into_iter().map(recipe).collect::<Result<_, _>>()?;
        Ok(RecipeFile { fingerprint: self.fingerprint(), shards })
    }

    /// Compares stated recipes with a walk through the files. What comes back is verified.
    pub fn verify_recipe(
        &self,
        recipe: &RecipeFile,
        threads: usize,
        progress: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<RecipeFile, Error> {
        let mut verified = recipe.clone();
        for (database, shard) in self.databases("a recipe")?.into_iter().zip(&mut verified.shards) {
            let mut observed = Observed::new(database.identity());
            database.walk(
                &WalkOptions { threads, ..WalkOptions::default() },
                &|done, total| progress(Progress { what: "leaf pages", done, total }),
                &mut |record| {
                    observed.see(&record, None);
                    Ok(())
                },
            )?;
            shard.digest = Some(observed.digest());
        }
        self.compute_index(&verified, &|_| true)?;
        Ok(verified)
    }

    /// Computes the index from recipes, after holding each against its file: the meta pages, the digest of the layout
    /// where it was recorded, and sixteen leaves. [`Error::Recipe`] says what differs.
    pub fn compute_index(
        &self,
        recipe: &RecipeFile,
        progress: &dyn Fn(Progress) -> bool,
    ) -> Result<BuiltIndex, Error> {
        let databases = self.databases("a recipe")?;
        let mut builder = IndexBuilder::new(self)?;
        let total = databases.iter().map(|database| database.identity().tree.leaf_pages).sum();
        let mut done = 0;
        for (number, (database, shard)) in databases.into_iter().zip(&recipe.shards).enumerate() {
            let computed = compute_shard(database, shard, builder.begin_shard(number), &mut |leaves| {
                progress(Progress { what: "leaf pages", done: done + leaves, total })
            });
            let summary = computed.map_err(|stopped| match stopped {
                Stopped::Different(difference) => difference.at(database),
                Stopped::Failed(error) => *error,
            })?;
            builder.end_shard(number, summary);
            done += database.identity().tree.leaf_pages;
        }
        builder.finish()
    }

    /// Looks for a recipe beside the data and in the cache directory. Never fails: what cannot be used is passed over
    /// with a warning. Whether it leads to the files is not looked at.
    pub fn find_recipe(&self, cache: &CachePolicy) -> RecipeLookup {
        let decode = |bytes: Vec<u8>| RecipeFile::decode(&bytes, self.fingerprint(), self.shards().len());
        let (found, warnings) = self.find_kept(cache, RECIPE_ENDING, "recipe", decode);
        RecipeLookup {
            found: found.map(|(path, place, recipe)| FoundRecipe { path, place, recipe }),
            warnings,
        }
    }

    /// Writes a recipe to its place, in one step for whoever looks at it, and returns the file.
    pub fn write_recipe(
        &self,
        recipe: &RecipeFile,
        place: Place,
        cache: &CachePolicy,
    ) -> Result<PathBuf, Error> {
        self.write_kept(&recipe.encode(), place, cache, RECIPE_ENDING)
    }
}

/// Adds the records of a shard, computed from its recipe, after holding the recipe against the file.
fn compute_shard(
    database: &Database,
    shard: &ShardRecipe,
    writer: &mut Writer,
    progress: &mut dyn FnMut(u64) -> bool,
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
        // A recipe that leads elsewhere must not run away before the end is compared.
        if leaf.last_page > identity.last_page || leaves == identity.tree.leaf_pages {
            let expected = format!("leaf {leaves} among {} pages", leaf.last_page + 1);
            let (known, pages) = (identity.tree.leaf_pages, identity.last_page + 1);
            let found = format!("{known} leaves among {pages} pages");
            return Err(Difference::new("pages", expected, found).into());
        }
        picker.see(leaf);
        for (record, placed) in (leaf.first..).zip(&leaf.page.records) {
            digest.push(offsets.value(page, placed), u64::from(placed.value_bytes));
            let name = excluded.next_if(|(_, excluded)| *excluded == record).map(|(name, _)| *name);
            database.add_record(writer, value_of(page, database, placed), name);
        }
        leaves += 1;
        if leaves.is_multiple_of(PROGRESS_LEAVES) && !progress(leaves) {
            return Err(Stopped::Failed(Box::new(Error::Interrupted)));
        }
        Ok(())
    })?;
    compare_metas(&outcome, identity)?;
    let found = digest.finish();
    if let Some(recorded) = shard.digest.filter(|recorded| *recorded != found) {
        let what = "digest of where all records lie";
        return Err(Difference::new(what, format!("{found:032x}"), format!("{recorded:032x}")).into());
    }
    let picked = picker.finish();
    for leaf in &picked {
        leaf.announce(database);
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
    Failed(Box<Error>),
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
        Self::Failed(Box::new(error))
    }
}
