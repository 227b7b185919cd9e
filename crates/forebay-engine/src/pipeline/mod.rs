//! The threads of a session: plan → read → gather.
//!
//! - `threads` starts the threads of a [`session`]; `thread_group` ends them; `context` is what
//!   they share.
//! - `plan` turns the order into plans and puts them into the `plan_queue`.
//! - `read` fills staging blocks with what plans say.
//! - `gather` fills batch buffers: `near` finds bytes in memory; what no reader staged and no level
//!   has in memory, `fetch` gets: from other nodes, then from the files. `bad_samples` lists the
//!   samples that could not be read.

pub(crate) mod bad_samples;
pub(crate) mod context;
pub(crate) mod fetch;
pub(crate) mod gather;
pub(crate) mod near;
pub(crate) mod plan;
pub(crate) mod plan_queue;
pub(crate) mod read;
pub(crate) mod session;
pub(crate) mod thread_group;
pub(crate) mod threads;
