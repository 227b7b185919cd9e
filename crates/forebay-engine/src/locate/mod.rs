//! Locate: where the samples of a tranche lie.
//!
//! By the index, at once and in every process for itself; or, where the strategy walks, from what the roots of the node
//! found and told the others. What a root could not find, because a page of the tree is damaged, comes from the index, as does
//! everything that a rank needs that was away (`gather::plain`).
//!
//! - `station` is what a planner asks; `finds` is the ring in shared memory between roots and planners.
//! - `root` is the thread that walks ahead of the planners, `walk` how it goes from record to record; with `handoff` one root
//!   of the job does at a time, and with `guess` the others prepare for it.
//! - `scan` is an index that one process makes by such a walk when the loader is made.

mod finds;
#[cfg(not(loom))]
#[cfg(not(loom))]
mod handoff;
#[cfg(not(loom))]
mod root;
#[cfg(not(loom))]
mod scan;
#[cfg(not(loom))]
mod station;
#[cfg(not(loom))]
mod walk;

pub use finds::{Find, Finds};
#[cfg(not(loom))]
pub(crate) use {
    root::run as run_root,
    scan::scan,
    station::{is_found, locate},
};
