//! The threads of a session: plan → read → gather.
//!
//! - `threads` starts the threads of a [`session`]; `thread_group` ends them; `context` is what
//!   they share.
//! - `planner` turns the order into plans and puts them into the `plan_queue`.
//! - `reader` fills staging blocks; `readahead` announces them to the kernel; `unit_decoder`
//!   decodes compressed units.
//! - Where a locator is plugged in: `root` runs one for the node and `root_lookup` hands its
//!   locations to the planner; `rank_locator` runs one for this rank; `locator_host` is what they
//!   are given.
//! - `read_token` is what a reader reads under, where only some nodes may read at a time.
//! - `gather` fills batch buffers: `near` finds bytes in memory; what no reader staged and no level
//!   has in memory (`missing`), `fetch` gets from the levels of `far` into `in_place`: from other
//!   nodes (`store_fetch`), then from the files; `sample` and `sample_parts` deliver one sample;
//!   `replacement` finds the sample that replaces a bad one, and `bad_samples` lists the bad ones.
//!   `own_fill` gathers in the thread of the script.

pub(crate) mod bad_samples;
pub(crate) mod context;
mod far;
pub(crate) mod fetch;
pub(crate) mod gather;
pub(crate) mod in_place;
pub(crate) mod locator_host;
mod missing;
pub(crate) mod near;
pub(crate) mod own_fill;
pub(crate) mod plan_queue;
pub(crate) mod planner;
pub(crate) mod rank_locator;
pub(crate) mod read_token;
pub(crate) mod readahead;
pub(crate) mod reader;
pub(crate) mod replacement;
pub(crate) mod root;
pub(crate) mod root_lookup;
pub(crate) mod sample;
pub(crate) mod sample_parts;
pub(crate) mod session;
mod store_fetch;
pub(crate) mod thread_group;
pub(crate) mod threads;
pub(crate) mod unit_decoder;
