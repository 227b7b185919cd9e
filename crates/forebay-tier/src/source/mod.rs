//! Files of the source: which one a copy is of, and whether it is still as it was.
//!
//! - `identity`: what tells sources and their states apart. `backing`: the same for a mounted
//!   image.
//! - `watch` finds changes by the times and sizes of files, and `open_writers` by programs that may
//!   be writing; `sampled` reads a sample of a file.

pub(crate) mod backing;
pub(crate) mod identity;
pub(crate) mod open_writers;
pub(crate) mod sampled;
pub(crate) mod watch;
