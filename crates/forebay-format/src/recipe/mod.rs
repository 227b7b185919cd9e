//! Provenance: the layout of an LMDB file, computed from how it was written.
//!
//! LMDB's layout is a pure function of what was inserted in which order, of when the writer committed, and of constants of
//! the library. For the histories that converters have (insertions only, in the order of the keys) the few facts make a
//! [`Recipe`] of some tens of bytes, from which every offset follows without a look at the file: [`insertion`] repeats
//! what the library does to the tree, [`free_list`] where it takes pages from, [`pages`] knows its sizes.
//!
//! Nothing is believed. A recipe is recorded from an existing file ([`record`]) with a digest of its whole layout, or
//! stated by a user; when it is used, what it predicts of the meta pages and of sixteen leaves is compared with the file
//! ([`check`]), besides the digest. A history of any other kind (deletions, overwritten values, keys out of order, a reader
//! alive while the writer committed) leaves another layout, is noticed there, and is served by the ordinary sidecar.
//!
//! The byte layout and the limits are in `docs/provenance.md`.
//!
//! Source: S. Pumma et al., "Scalable Deep Learning via I/O Analysis and Optimization", ACM TOPC 6(2), 2019, for the idea;
//! observation of files written by LMDB 0.9.9 to 1.0.2 for the rules.

mod candidate;
mod check;
mod commit_search;
mod dataset;
mod declared;
mod derive;
mod encoding;
mod facts;
mod file;
mod free_list;
mod insertion;
mod layout;
mod lengths;
mod pages;

pub use check::Difference;
pub(crate) use check::{LeafPicker, compare_facts, compare_metas, value_of};
pub use dataset::{DerivedRecipe, FoundRecipe, RecipeLookup};
pub(crate) use derive::Observed;
pub use facts::{KeyPattern, NamedDatabase, Recipe, RecipeError, SplitClass, Transactions};
pub use file::{RecipeFile, ShardRecipe};
pub(crate) use layout::{Offsets, PlaceDigest, compute};
pub use lengths::{LengthList, Lengths};
