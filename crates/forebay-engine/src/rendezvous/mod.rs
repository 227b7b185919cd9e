//! How the ranks of one node meet, and what each of them has afterwards. No MPI is needed.
//!
//! - [`join`] brings the ranks of a node together under a name (`join.rs`, `leader.rs`,
//!   `follower.rs`; `messages.rs` is what they send, `poll_loop.rs` how they wait).
//! - [`Membership`] is what a rank has afterwards: the leader's reply and descriptors, and its
//!   [`Peer`]s.
//!
//! Promises: a death while ranks come together is an error that names the dead, in all ranks that
//! wait, without a deadline; nothing stays in any file system once all are connected, or when one
//! of them dies; a wait lasts at most 100 ms between two calls of the caller's check.

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
