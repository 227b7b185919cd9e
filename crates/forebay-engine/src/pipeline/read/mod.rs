//! From plans to staging blocks.
//!
//! - `reader` fills blocks; `readahead` announces them to the kernel; `unit_decoder` decodes
//!   compressed units. `token`: what a reader reads under, where only some nodes may read at a
//!   time.

pub(crate) mod readahead;
pub(crate) mod reader;
pub(crate) mod token;
pub(crate) mod unit_decoder;
