//! How the ranks of a node come together.
//!
//! In order, with local rank 0 as the leader:
//!
//! 1. The leader locks the place (`directory.rs`), binds a `SOCK_SEQPACKET` socket there and listens; followers connect as
//!    soon as they can, until the deadline. Both sides look at each other's user.
//! 2. On each connection: *welcome* with the leader's pidfd; *hello* with the follower's ranks and its pidfd; its
//!    greeting. The leader checks that all came, once, and describe the same node.
//! 3. The socket and its lock are removed. Everybody gets the *roster*: all peers and their pidfds.
//! 4. The leader's caller works on the greetings, for minutes if it must. Followers wait as long as everybody lives.
//! 5. The *outcome* goes to all: bytes and descriptors, or the words of a refusal. Each follower says *received*; when
//!    all did, the leader says *go*, and everybody has the same.
//!
//! Whatever fails at the leader is told to the followers as it is; what happens to a follower the leader sees at its
//! socket, and judges by its pidfd. A death is noticed within milliseconds by everybody who waits; the leader's
//! caller, which works in step 4, can ask, and else it is noticed afterwards. A rank that is alone on its node needs none of this.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::directory::{Place, runtime_directory};
use super::error::{NodeError, WATCH};
use super::patience::{Patience, Waiting};
use super::peers::{Membership, Peer, Watched};

use super::{follower, leader};

/// Longest greeting \[bytes\].
pub(super) const GREETING_BYTES: usize = 64 << 20;

/// Who this process is, and whom it is to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Name of the job; the same for all its ranks, different for all other jobs of the user at the same time.
    pub job: String,
    /// Name of the node; tells nodes apart that share a file system or are emulated on one machine.
    pub node: String,
    /// Name of the loader.
    pub name: String,
    /// Rank in the job.
    pub rank: u32,
    /// Rank on the node.
    pub local_rank: u32,
    /// Ranks in the job of all ranks on the node, by local rank.
    pub local_ranks: Vec<u32>,
    /// How long ranks wait for each other to come.
    pub deadline: Duration,
}

impl NodeSpec {
    fn check(&self) -> Result<(), NodeError> {
        let (local_rank, local_size) = (self.local_rank, self.local_ranks.len());
        let message = match self.local_ranks.get(local_rank as usize) {
            None => format!("local rank {local_rank} is not below the local size {local_size}"),
            Some(rank) if *rank != self.rank => {
                format!(
                    "local rank {local_rank} is rank {} but the list of the node's ranks says {rank}",
                    self.rank
                )
            }
            Some(_) => return Ok(()),
        };
        Err(NodeError::Usage { message })
    }

    pub(super) fn peer(&self) -> Peer {
        Peer { rank: self.rank, local_rank: self.local_rank, pid: getpid().as_raw_pid() }
    }

    pub(super) fn meeting(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for NodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job \"{}\", node \"{}\", loader \"{}\"", self.job, self.node, self.name)
    }
}

/// This process's own pidfd, for others to watch.
pub(super) fn own_pidfd() -> Result<OwnedFd, NodeError> {
    pidfd_open(getpid(), PidfdFlags::empty()).map_err(NodeError::system(WATCH))
}

/// Brings the ranks of a node together; every one of them calls it.
///
/// The leader, local rank 0, gets everybody's `greeting` (by local rank) into its `lead`, with a function to ask now and then whether
/// a follower has died; its bytes and descriptors then come to all, in [`Membership::reply`] and [`Membership::fds`]. `caller` is asked at
/// least every 100 ms while this function waits (not while `lead` runs); when it does not want to go on, the call ends with
/// [`NodeError::Interrupted`] and all other ranks end with [`NodeError::PeerLeft`]. After ten seconds it is told who has not come.
///
/// # Errors
/// All ranks that came get one. [`NodeError::Refused`] has the words of `lead`; the others are about the meeting itself.
pub fn join(
    spec: &NodeSpec,
    greeting: &[u8],
    lead: impl FnOnce(&[Vec<u8>], Dead<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), String>,
    caller: &mut dyn Waiting,
) -> Result<Membership, NodeError> {
    spec.check()?;
    if greeting.len() > GREETING_BYTES {
        let message = format!("a greeting of {} bytes; the most is {GREETING_BYTES}", greeting.len());
        return Err(NodeError::Usage { message });
    }
    if spec.local_ranks.len() == 1 {
        let (reply, fds) = lead(&[greeting.to_vec()], &|| None).map_err(NodeError::Refused)?;
        return Ok(Membership::new(reply, fds, 0, vec![Watched::new(spec.peer(), None)]));
    }
    let directory = runtime_directory()?;
    let place = Place::new(&directory, &spec.job, &spec.node, &spec.name)?;
    let patience = &mut Patience::new(caller);
    if spec.local_rank == 0 {
        leader::join(spec, &directory, &place, greeting, lead, patience)
    } else {
        follower::join(spec, &place, greeting, patience)
    }
}

/// Answers which of the followers has died, if one has.
pub type Dead<'a> = &'a (dyn Fn() -> Option<Peer> + Sync);

/// Whether a process has ended, by its pidfd.
pub(super) fn is_dead(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
