//! What the other folders stand on: failures of peers, the memory ledger of a process.

pub(crate) mod failure;
pub mod fallback;
pub(crate) mod iteration_starts;
pub(crate) mod memory_ledger;
