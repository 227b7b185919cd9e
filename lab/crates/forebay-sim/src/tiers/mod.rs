//! Storage tiers of a node: file systems that only it has, with copies of chunks of the dataset.
//!
//! - `plan`: what is copied where, as the engine decides it ([`TierPlan`]).
//! - `node_tiers`: what the tiers of a node hold, and what is on its way there ([`NodeTiers`]).
//! - `reads`: the requests for a read, and the copies that are made of it.

mod node_tiers;
mod plan;
mod reads;

pub(crate) use self::node_tiers::{Buffer, NodeTiers, Offer, SLOTS};
pub(crate) use self::plan::TierPlan;
pub(crate) use self::reads::{PlannedCopy, parts_of};
