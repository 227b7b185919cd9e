//! The rendezvous of a node's ranks.
//!
//! In order, with local rank 0 as the leader:
//!
//! 1. The leader locks the path ([`SocketPath::try_lock`]), binds a `SOCK_SEQPACKET` socket there
//!    and listens. Followers retry to connect until the deadline. Both sides check the user of the
//!    other one.
//! 2. On each connection the leader sends *welcome* with its pidfd. The follower sends *hello*: its
//!    ranks, its pidfd, and bytes of its caller. The leader checks that each rank connected once,
//!    and that all describe the same node.
//! 3. The leader removes the socket and its lock. All get the *members*: each peer and its pidfd.
//! 4. The leader's caller works on the hellos, which may take minutes. Followers wait while all
//!    processes live.
//! 5. The leader sends its *reply* to all: bytes and descriptors, or the message of a rejection.
//!    Each follower confirms with *received*; after the last one, the leader sends *go* to all.
//!
//! The leader forwards its own errors to the followers. It sees failures of followers at their
//! sockets, and tells a death from an orderly exit by their pidfds. A waiting rank notices a death
//! within milliseconds. The leader's caller can poll for deaths in step 4; otherwise the leader
//! notices them afterwards. A rank that is alone on its node skips all of this.

use std::os::fd::OwnedFd;

use forebay_host::{SocketPath, runtime_directory};

use super::error::RendezvousError;
use super::membership::{Dead, Membership, Watched};
use super::poll_loop::{PollLoop, Waiting};
use super::spec::{MAX_HELLO_BYTES, NodeSpec};
use super::{follower, leader};

/// Connects the ranks of a node (collective: each of them calls it).
///
/// The leader, local rank 0, passes the `hello` of each rank (by local rank) to its `lead`, with a
/// function that returns a follower that has died. All ranks get the bytes and descriptors that
/// `lead` returns, in [`Membership::reply`] and [`Membership::fds`].
///
/// While this function waits, it polls `caller` at least every 100 ms, except while `lead` runs.
/// If `caller` asks to stop, the call ends with [`RendezvousError::Interrupted`] and all other
/// ranks end with [`RendezvousError::PeerLeft`]. After ten seconds `caller` gets a warning that
/// names the missing ranks.
///
/// # Errors
/// All ranks that connected get one. [`RendezvousError::Rejected`] carries the message of `lead`;
/// the others are about the rendezvous itself.
pub fn join(
    spec: &NodeSpec,
    hello: &[u8],
    lead: impl FnOnce(&[Vec<u8>], Dead<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), String>,
    caller: &mut dyn Waiting,
) -> Result<Membership, RendezvousError> {
    spec.check()?;
    if hello.len() > MAX_HELLO_BYTES {
        let message = format!("the hello is too large: {} bytes (at most {MAX_HELLO_BYTES})", hello.len());
        return Err(RendezvousError::Usage { message });
    }
    if spec.local_ranks.len() == 1 {
        let (reply, fds) = lead(&[hello.to_vec()], &|| None).map_err(RendezvousError::Rejected)?;
        return Ok(Membership::new(reply, fds, 0, vec![Watched::new(spec.peer(), None)]));
    }
    let directory = runtime_directory()?;
    let path = SocketPath::new(&directory, &[&spec.job, &spec.node, &spec.name])?;
    let polling = &mut PollLoop::new(caller);
    if spec.local_rank == 0 {
        leader::join(spec, &directory, &path, hello, lead, polling)
    } else {
        follower::join(spec, &path, hello, polling)
    }
}
