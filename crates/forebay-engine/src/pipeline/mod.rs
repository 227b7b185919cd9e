//! The threads of a session: plan → read → gather.
//!
//! - `threads` starts the threads of a [`session`]; `thread_group` ends them; `context` is what they share.
//! - `planner` turns the order into plans and puts them into the `plan_queue`.
//! - `reader` fills staging blocks; `readahead` announces them to the kernel; `unit_decoder` decodes compressed units.
//! - `gather` fills batch buffers; `sample` and `sample_parts` deliver one sample; `replacement` finds the sample that
//!   replaces a bad one, and `bad_samples` lists the bad ones.

pub(crate) mod bad_samples;
pub(crate) mod context;
pub(crate) mod gather;
pub(crate) mod plan_queue;
pub(crate) mod planner;
pub(crate) mod readahead;
pub(crate) mod reader;
pub(crate) mod replacement;
pub(crate) mod sample;
pub(crate) mod sample_parts;
pub(crate) mod session;
pub(crate) mod thread_group;
pub(crate) mod threads;
pub(crate) mod unit_decoder;
