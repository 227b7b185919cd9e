//! From the order to plans.
//!
//! - `planner` puts plans into the queue.
//! - Where a locator is plugged in: `root` runs one for the node and `root_lookup` hands its
//!   locations to the planner; `rank_locator` runs one for this rank; `locator_host` is what they
//!   are given.

pub(crate) mod locator_host;
pub(crate) mod planner;
pub(crate) mod rank_locator;
pub(crate) mod root;
pub(crate) mod root_lookup;
