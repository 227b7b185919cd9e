//! Which reads fetch which samples.
//!
//! - `plan`: what a plan says, and what bounds it. `planned` makes it from `runs` of neighbours,
//!   `decodes` does the same for units that have to be decoded; `staging`: where bytes go.
//! - `in_place`: requests of a rank for what no reader staged; `random`: reads of samples by id.
//! - `kept_units`: how many decoded units are kept.

pub(crate) mod decodes;
pub(crate) mod in_place;
pub(crate) mod kept_units;
pub(crate) mod plan;
pub(crate) mod planned;
pub(crate) mod random;
pub(crate) mod runs;
pub(crate) mod staging;
