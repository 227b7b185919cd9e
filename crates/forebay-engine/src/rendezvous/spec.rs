//! The ranks of a node, as each of them describes it.

use std::fmt;
use std::time::Duration;

use rustix::process::getpid;

use super::error::RendezvousError;
use super::membership::Peer;

/// Largest hello \[bytes\].
pub(super) const MAX_HELLO_BYTES: usize = 64 << 20;

/// This process, and the ranks that it meets on its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Name of the job; the same for all its ranks, different for all other jobs of the user at the
    /// same time.
    pub job: String,
    /// Name of the node; distinguishes nodes that share a file system or are emulated on one
    /// machine.
    pub node: String,
    /// Name of the loader.
    pub name: String,
    /// Rank in the job.
    pub rank: u32,
    /// Rank on the node.
    pub local_rank: u32,
    /// Ranks in the job of all ranks on the node, by local rank.
    pub local_ranks: Vec<u32>,
    /// Environment variable in which the launcher passed this process its rank, to find the
    /// processes of other ranks. Empty: the ranks are children of one process. `None`: do not
    /// search for them.
    pub launcher: Option<String>,
    /// How long ranks wait for each other to connect.
    pub deadline: Duration,
}

impl NodeSpec {
    pub(super) fn check(&self) -> Result<(), RendezvousError> {
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
        Err(RendezvousError::Usage { message })
    }

    pub(super) fn peer(&self) -> Peer {
        Peer { rank: self.rank, local_rank: self.local_rank, pid: getpid().as_raw_pid() }
    }
}

impl fmt::Display for NodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job \"{}\", node \"{}\", loader \"{}\"", self.job, self.node, self.name)
    }
}
