//! Mapped files.
//!
//! - `guard`: a SIGBUS that is an error instead of the end of the process; `guarded`: a mapping
//!   that reads as zeros then.
//! - `residency`: which pages are in the page cache. `mappings`: those of the shards of a dataset.

pub mod guard;
pub(crate) mod guarded;
pub(crate) mod mappings;
pub(crate) mod residency;
