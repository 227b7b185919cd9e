//! Shared memory, rendezvous, readers, gathering; the loop that ties plan to batches.
//!
//! From the outside in:
//!
//! - [`Source`] is an opened data set with its index (and, in `kept`, data that came with it); [`Engine`] is a loader of one rank; `start` is where its iterations begin,
//!   `next` hands out its batches, `given` takes orders of the user's own, `telling` is what a loader tells of itself.
//! - `rendezvous` brings the ranks of a node together, `links` the leaders of the nodes of a job (`making` uses both, `ward` knows who is lost);
//!   `region` is the memory they share; `protocol` says who may touch it when.
//! - `crew` starts the threads of a `pass`: `planner` (order → `locate` → `plans`), `reader` (reads → landing blocks; `announce` and
//!   `announced`: what the kernel is told ahead), `gather` (→ batch buffers; `sample`, `assemble` and `decode` do one sample). `coded` decodes units for both, `skip` finds what stands in for a bad one.
//! - `threads` ends the threads of a pass, and leaves behind those that storage keeps; `blame` finds out why a rank gets no batch,
//!   `waited` which of that time counts.
//!   `aside` makes calls that may wait for storage, for a caller who need not.
//! - `ring` and `batch` are the batch buffers and their leases; the crate `forebay-io` touches storage.
//! - `drill` is faults at exact places, for tests; `lead` is what the leader does when a loader is made, `settings` gathers the facts of its decisions and words them (`ragged_size`: what ragged fields get),
//!   `shuffling` words how well the order shuffles; `stats` what is counted.

// A loom build has the parts that its tests are about, and not most of what uses them.
#![cfg_attr(loom, allow(dead_code, unused_imports))]
// A test may panic where there are no threads.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

#[cfg(not(loom))]
mod announce;
#[cfg(not(loom))]
mod announced;
#[cfg(not(loom))]
mod aside;
#[cfg(not(loom))]
mod assemble;
#[cfg(not(loom))]
mod batch;
#[cfg(not(loom))]
mod blame;
#[cfg(not(loom))]
mod caller;
#[cfg(not(loom))]
mod coded;
#[cfg(not(loom))]
mod crew;
#[cfg(not(loom))]
mod decode;
#[cfg(not(loom))]
mod drill;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod gather;
#[cfg(not(loom))]
mod given;
#[cfg(not(loom))]
mod idle;
#[cfg(not(loom))]
mod kept;
#[cfg(not(loom))]
mod lead;
#[cfg(not(loom))]
pub mod links;
#[doc(hidden)]
pub mod locate;
#[cfg(not(loom))]
mod making;
#[cfg(not(loom))]
mod next;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod pass;
#[cfg(not(loom))]
mod planner;
#[cfg(not(loom))]
mod plans;
mod position;
#[doc(hidden)]
pub mod protocol;
#[cfg(not(loom))]
mod ragged_size;
#[cfg(not(loom))]
mod reader;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod registry;
#[cfg(not(loom))]
pub mod rendezvous;
#[doc(hidden)]
pub mod ring;
#[cfg(not(loom))]
mod sample;
#[cfg(not(loom))]
mod settings;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod shuffling;
#[cfg(not(loom))]
mod skip;
#[cfg(not(loom))]
mod source;
#[doc(hidden)]
pub mod stagger;
#[cfg(not(loom))]
mod start;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod telling;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
mod waited;
#[cfg(not(loom))]
mod ward;

#[cfg(not(loom))]
pub use {
    aside::aside,
    batch::{Batch, BatchLayout, Place},
    caller::{Caller, Silent},
    engine::Engine,
    error::{Error, ErrorDetails},
    next::Delivered,
    options::{AccessChoice, Options, OrderChoice},
    settings::Settings,
    shuffling::{GroupSize, ShuffleQuality},
    source::{Loaded, RecipeReport, Source},
};
