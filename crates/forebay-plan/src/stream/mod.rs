//! What nodes stream and keep where the order is `opportunistic`.
//!
//! - `sections`: how a node goes through its slice of the stream; `memory`: which units it keeps
//!   beside windows of that.
//! - `unit_ranges`: which bytes a unit takes.

pub(crate) mod memory;
pub(crate) mod sections;
pub(crate) mod unit_ranges;
