//! The shared memory of a node: its layout, its atomic words, and the protocol for using them.
//!
//! `region` lays them out; each other file owns one kind of word.

pub mod block_state;
#[cfg(not(loom))]
pub(crate) mod counters;
pub mod location_ring;
pub mod mapped_epochs;
pub(crate) mod position;
pub mod read_gate;
#[cfg(not(loom))]
pub(crate) mod readahead_cursor;
#[cfg(not(loom))]
pub(crate) mod region;
#[cfg(not(loom))]
pub(crate) mod stall;
#[cfg(not(loom))]
pub(crate) mod wait_clock;
