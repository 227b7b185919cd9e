//! The processes of one node: how they find each other, hand memory around, and notice deaths. No MPI is needed.
//!
//! - [`join`] brings the ranks of a node together under a name (`rendezvous.rs`, `leader.rs`, `follower.rs`, `wire.rs`),
//!   at a socket in a directory of the user's own ([`directory`]).
//! - [`Membership`] is what a rank has afterwards: the leader's reply and descriptors, and who is there ([`Peer`]).
//! - [`memory`] makes memory without a name and maps it ([`Map`]); [`Bell`] wakes those who wait for a word in it.
//! - [`ThreadError`] says which limit keeps a thread from being started.
//! - [`fork`] tells a forked child from the process that made a loader.
//!
//! - [`Siblings`] are the ranks that the launcher started beside this one, whether they have come or not.
//!
//! Promises: a death while ranks come together is an error that names the dead, in all ranks that wait, without a
//! deadline; nothing stays in any file system once all are connected, or when one of them dies; a wait lasts at most
//! 100 ms between two calls of the caller's check.

#[cfg(not(loom))]
mod address;
pub mod bell;
mod budget;
#[cfg(not(loom))]
pub mod directory;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod follower;
pub mod fork;
#[cfg(not(loom))]
mod leader;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
mod patience;
#[cfg(not(loom))]
mod peers;
#[cfg(not(loom))]
mod rendezvous;
#[cfg(not(loom))]
mod siblings;
#[cfg(not(loom))]
mod spec;
mod threads;
#[cfg(not(loom))]
mod wire;

pub use bell::Bell;
pub use threads::ThreadError;
#[cfg(not(loom))]
pub use {
    address::Refusal,
    error::{Class, NodeError},
    memory::Map,
    patience::Waiting,
    peers::{Dead, Membership, Peer},
    rendezvous::join,
    siblings::{Ended, Siblings},
    spec::NodeSpec,
};
