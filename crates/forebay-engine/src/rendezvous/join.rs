//! How the ranks of a node come together.
//!
//! In order, with local rank 0 as the leader:
//!
//! 1. The leader locks the place ([`SocketPath::try_lock`]), binds a `SOCK_SEQPACKET` socket there
//!    and listens; followers connect as soon as they can, until the deadline. Both sides look at
//!    each other's user.
//! 2. On each connection: *welcome* with the leader's pidfd; *hello* with the follower's ranks and
//!    its pidfd; its greeting. The leader checks that all came, once, and describe the same node.
//! 3. The socket and its lock are removed. Everybody gets the *roster*: all peers and their pidfds.
//! 4. The leader's caller works on the greetings, for minutes if it must. Followers wait as long as
//!    everybody lives.
//! 5. The *outcome* goes to all: bytes and descriptors, or the words of a refusal. Each follower
//!    says *received*; when all did, the leader says *go*, and everybody has the same.
//!
//! Whatever fails at the leader is told to the followers as it is; what happens to a follower the
//! leader sees at its socket, and judges by its pidfd. A death is noticed within milliseconds by
//! everybody who waits; the leader's caller, which works in step 4, can ask, and else it is noticed
//! afterwards. A rank that is alone on its node needs none of this.

use std::os::fd::OwnedFd;

use forebay_host::{SocketPath, runtime_directory};

use super::error::RendezvousError;
use super::membership::{Dead, Membership, Watched};
use super::poll_loop::{PollLoop, Waiting};
use super::spec::{GREETING_BYTES, NodeSpec};
use super::{follower, leader};

/// Brings the ranks of a node together; every one of them calls it.
///
/// The leader, local rank 0, gets everybody's `greeting` (by local rank) into its `lead`, with a
/// function to ask now and then whether a follower has died; its bytes and descriptors then come to
/// all, in [`Membership::reply`] and [`Membership::fds`]. `caller` is asked at least every 100 ms
/// while this function waits (not while `lead` runs); when it does not want to go on, the call ends
/// with [`RendezvousError::Interrupted`] and all other ranks end with
/// [`RendezvousError::PeerLeft`]. After ten seconds it is told who has not come.
///
/// # Errors
/// All ranks that came get one. [`RendezvousError::Refused`] has the words of `lead`; the
/// others are about the meeting itself.
pub fn join(
    spec: &NodeSpec,
    greeting: &[u8],
    lead: impl FnOnce(&[Vec<u8>], Dead<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), String>,
    caller: &mut dyn Waiting,
) -> Result<Membership, RendezvousError> {
    spec.check()?;
    if greeting.len() > GREETING_BYTES {
        let message = format!("a greeting of {} bytes; the most is {GREETING_BYTES}", greeting.len());
        return Err(RendezvousError::Usage { message });
    }
    if spec.local_ranks.len() == 1 {
        let (reply, fds) = lead(&[greeting.to_vec()], &|| None).map_err(RendezvousError::Refused)?;
        return Ok(Membership::new(reply, fds, 0, vec![Watched::new(spec.peer(), None)]));
    }
    let directory = runtime_directory()?;
    let path = SocketPath::new(&directory, &[&spec.job, &spec.node, &spec.name])?;
    let polling = &mut PollLoop::new(caller);
    if spec.local_rank == 0 {
        leader::join(spec, &directory, &path, greeting, lead, polling)
    } else {
        follower::join(spec, &path, greeting, polling)
    }
}
