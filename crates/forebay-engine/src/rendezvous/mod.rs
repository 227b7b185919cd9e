//! Connects the ranks of one node. No MPI is needed.
//!
//! - [`join`] connects the ranks of a node under a name (`join.rs`, `leader.rs`, `follower.rs`;
//!   `messages.rs` defines what they send, `poll_loop.rs` how they wait).
//! - [`Membership`] is the result for each rank: the leader's reply and descriptors, and its
//!   [`Peer`]s.
//!
//! Promises: if a process dies during the rendezvous, all waiting ranks raise an error that names
//! it, before any deadline. No file stays behind once all are connected, or after a death. While
//! ranks wait, at most 100 ms pass between two checks of the caller.

mod error;
mod follower;
mod join;
mod leader;
mod membership;
mod messages;
mod poll_loop;
mod spec;

pub use error::{Class, RendezvousError};
pub use join::join;
pub use membership::{Dead, Membership, Peer};
pub use poll_loop::Waiting;
pub use spec::NodeSpec;
