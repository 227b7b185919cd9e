//! Shared memory, rendezvous, readers, gathering; the loop that ties plan to batches.

pub mod access;
pub mod node;
