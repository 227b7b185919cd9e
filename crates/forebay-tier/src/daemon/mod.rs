//! The tier daemon: one per user and node, which owns quotas, slots and logs.
//!
//! - `level`: one level: slabs, slots, log. `slab`: the slots of a slab. `sums`: its checksums.
//!   `replay`: what a log comes to. `read_only`: the level as programs of a run see it.
//! - `cache`: which chunks have copies where, and who uses them.
//! - `files`: the same for copies of whole files. `file_store`: those of one level.
//! - `run`: programs that get copies of whole files without being changed.
//! - `inspect`: what a tier holds, without a daemon.
//! - `server`: what clients ask for; `protocol`: its messages, `run_options` those of a run.

mod cache;
mod file_store;
mod files;
mod inspect;
mod level;
pub(crate) mod protocol;
mod read_only;
mod replay;
mod run;
pub(crate) mod run_options;
mod server;
mod slab;
mod sums;

pub use cache::Cache;
pub use inspect::{ComparedSources, DamagedPiece, DifferingSource, StoredTier, Verified};
pub use level::LevelParts;
pub use server::{Server, socket_path};
pub(crate) use server::{boot_id, locked};
