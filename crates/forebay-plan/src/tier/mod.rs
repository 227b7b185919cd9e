//! What is copied into storage tiers, and what that saves.
//!
//! - `placement`: which chunks are kept, and in which level. `reads`: which pieces of a read are
//!   copied; `copy_pace`: how long reads wait for that, and at which pace copies are written.
//! - `node_reads`: what a node reads in each epoch; `forecast`: from the source and from each
//!   level; `copies`: whether copying pays.
//! - `run_policy`: what the daemon of `forebay run` copies; `copy_blocks`: in which blocks;
//!   `file_room`: to which level.

pub(crate) mod copies;
pub(crate) mod copy_blocks;
pub(crate) mod copy_pace;
pub(crate) mod file_room;
pub(crate) mod forecast;
pub(crate) mod node_reads;
pub(crate) mod placement;
pub(crate) mod reads;
pub(crate) mod run_policy;
