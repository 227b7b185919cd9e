//! Who of the job is lost, as the ranks of a node see it.
//!
//! Every rank watches the processes of its node; its leader hears of those of other nodes. Whoever sees a loss first notes it in
//! shared memory, and everybody raises what is noted: ranks that end because of it are not taken for the cause.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::Error;
use crate::links::{Cause, Conflict, Loss, Nodes, Watch};
use crate::node::Membership;
use crate::region::Region;
use crate::stats::{Counter, set};

/// See the module header.
pub(crate) struct Ward {
    pub(crate) region: Arc<Region>,
    pub(crate) membership: Membership,
    /// All nodes of the job, where this one is linked to others.
    pub(crate) nodes: Option<Nodes>,
    pub(crate) loader: String,
}

impl Ward {
    /// The loss as an error; `what` was being waited for.
    pub(crate) fn error(&self, loss: Loss, what: String) -> Error {
        let loader = self.loader.clone();
        if let Some(peer) = self.membership.peers().find(|peer| peer.rank == loss.rank) {
            let (rank, local_rank, pid) = (peer.rank, peer.local_rank, peer.pid);
            return Error::PeerLost { rank, local_rank, pid, loader, what };
        }
        let node = self.nodes.as_ref().and_then(|nodes| nodes.node_of(loss.rank)).unwrap_or("unknown");
        Error::RemoteLost { loss, node: node.to_owned(), loader, what }
    }
}

impl Watch for Ward {
    fn lost(&self) -> Option<Loss> {
        if let Some(loss) = self.region.loss() {
            return Some(loss);
        }
        while let Some(peer) = self.membership.dead() {
            if self.region.ranks()[peer.local_rank as usize].left.load(Ordering::Acquire) == 0 {
                return Some(self.region.note_loss(Loss {
                    cause: Cause::Died,
                    rank: peer.rank,
                    pid: peer.pid,
                }));
            }
            self.membership.forget(peer.local_rank);
        }
        None
    }

    fn note(&self, loss: Loss) {
        self.region.note_loss(loss);
        // Whoever waits looks around now.
        self.region.filled().ring();
        self.region.gathered().ring();
    }

    fn conflict(&self, conflict: Conflict) {
        self.region.conflict().set(conflict);
        self.region.filled().ring();
        self.region.gathered().ring();
    }

    fn count(&self, sent: u64, received: u64) {
        let slot = &self.region.ranks()[self.membership.local_rank() as usize];
        set(slot, Counter::MessagesSent, sent);
        set(slot, Counter::MessagesReceived, received);
    }
}
