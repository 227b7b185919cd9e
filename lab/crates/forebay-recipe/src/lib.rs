//! Provenance: the index of an LMDB file, computed from how the file was written.
//!
//! The layout of an LMDB file is a pure function of what was inserted in which order, of when the
//! writer committed, and of constants of the library. For the histories that converters have
//! (insertions only, in the order of the keys) a few facts make a [`Recipe`] of some tens of bytes,
//! from which every offset follows without a read of the file: `insertion` repeats what the library
//! does to the tree, `free_list` where it takes pages from, `pages` knows its sizes.
//!
//! A recipe is untrusted input. It is derived from an existing file (`derive`) with a digest of the
//! whole layout, or declared by a user (`declared`). Before it is used, its prediction is compared
//! with the meta pages and sixteen leaves of the file (`check`), and with the digest. Another kind
//! of history (deletions, overwritten values, keys out of order, a reader alive during a commit)
//! leads to another layout, which these comparisons find; the ordinary index serves then.
//!
//! The result is the bytes of an ordinary sidecar ([`RecipeFile::compute_index`]), so users of an
//! index need no code for recipes. Loaders use [`KeptRecipes`]; [`build_with_recipe`] and
//! [`verify_kept`] serve the command line.
//!
//! The byte layout and the limits are in `docs/provenance.md`.
//!
//! Source: S. Pumma et al., "Scalable Deep Learning via I/O Analysis and Optimization", ACM TOPC
//! 6(2), 2019, for the idea; observation of files written by LMDB 0.9.9 to 1.0.2 for the rules.
#![forbid(unsafe_code)]

mod candidate;
mod check;
mod commit_search;
mod declared;
mod derive;
mod encoding;
mod error;
mod facts;
mod file;
mod free_list;
mod index;
mod insertion;
mod kept;
mod layout;
mod lengths;
mod pages;

pub use error::Error;
pub use facts::{KeyPattern, NamedDatabase, Recipe, RecipeError, SplitClass, Transactions};
pub use file::{RecipeFile, ShardRecipe};
pub use index::{DerivedRecipe, build_with_recipe};
pub use kept::{FoundRecipe, KeptRecipes, RecipeLookup, RecipeReport, verify_kept};
pub use lengths::{LengthList, Lengths};
