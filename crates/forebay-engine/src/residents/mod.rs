//! Resident units of the order `opportunistic`: what each node keeps of its share of the dataset.
//!
//! - `setup`: the leaders agree on the units that each node keeps and on the windows of what they
//!   stream ([`ResidentPlan`]).
//! - `load`: reads the units of a node into memory.
//! - `memory`: that memory, as all ranks of the node use it ([`ResidentMemory`]).
//!
//! No resident sample leaves its node, so nothing is served to other nodes.

mod load;
mod memory;
mod setup;

pub(crate) use load::load;
pub(crate) use memory::ResidentMemory;
pub(crate) use setup::{Choice, ResidentPlan, ResidentQuestion, choose};
