//! Detects failed processes of the job.
//!
//! Each rank watches the processes of its node; the leader also learns of failures on other nodes.
//! The first process that detects a loss records it in shared memory. All ranks report the first
//! recorded loss, so secondary exits are not blamed.
//!
//! A process that ends after its rank shut down is no loss. If one of its threads was still inside
//! a read, the end of the process also ends that system call and the kernel's writes: the rank is
//! gone then. If the kernel may continue to write for a process that has ended
//! (`FailureDetector::outlived`), it is a loss.

use std::sync::Arc;

use crate::error::Error;
use crate::mesh::{Cause, Conflict, FailureSink, Nodes, PeerFailure};
use crate::rendezvous::Membership;
use crate::shm::block_state::{Presence, presence, publish_presence};
use crate::shm::counters::{Counter, set};
use crate::shm::region::Region;

/// See the module header.
pub(crate) struct FailureDetector {
    pub(crate) region: Arc<Region>,
    pub(crate) membership: Membership,
    /// All nodes of the job, where this one is linked to others.
    pub(crate) nodes: Option<Nodes>,
    pub(crate) loader: String,
    /// Whether reads may outlive the process that submitted them: direct reads, and reads of an
    /// `io_uring`.
    pub(crate) outlived: bool,
}

impl FailureDetector {
    /// The loss as an error; `what` describes the wait.
    pub(crate) fn error(&self, loss: PeerFailure, what: String) -> Error {
        let loader = self.loader.clone();
        tracing::info!(
            loader,
            rank = loss.rank,
            process = loss.pid,
            cause = loss.cause.verb(),
            "a peer is lost"
        );
        if let Some(peer) = self.membership.peers().find(|peer| peer.rank == loss.rank) {
            let (rank, local_rank, pid) = (peer.rank, peer.local_rank, peer.pid);
            return Error::PeerLost { rank, local_rank, pid, loader, what };
        }
        let node = self.nodes.as_ref().and_then(|nodes| nodes.node_of(loss.rank)).unwrap_or("unknown");
        Error::RemoteLost { loss, node: node.to_owned(), loader, what }
    }
}

impl FailureSink for FailureDetector {
    fn lost(&self) -> Option<PeerFailure> {
        if let Some(loss) = self.region.loss() {
            return Some(loss);
        }
        while let Some(peer) = self.membership.dead() {
            let left = &self.region.ranks()[peer.local_rank as usize].left;
            let is_loss = match presence(left) {
                Presence::Here => true,
                Presence::Leaving => self.outlived,
                Presence::Gone => false,
            };
            if is_loss {
                return Some(self.region.record_loss(PeerFailure {
                    cause: Cause::Died,
                    rank: peer.rank,
                    pid: peer.pid,
                }));
            }
            publish_presence(left, Presence::Gone);
            self.membership.forget(peer.local_rank);
            for events in [self.region.filled(), self.region.gathered(), self.region.planning()] {
                events.notify();
            }
        }
        None
    }

    fn record(&self, loss: PeerFailure) {
        self.region.record_loss(loss);
        // Wakes the waiting ranks, which then check for failures.
        self.region.filled().notify();
        self.region.gathered().notify();
    }

    fn conflict(&self, conflict: Conflict) {
        self.region.conflict().set(conflict);
        self.region.filled().notify();
        self.region.gathered().notify();
    }

    fn count(&self, sent: u64, received: u64) {
        let slot = &self.region.ranks()[self.membership.local_rank() as usize];
        set(slot, Counter::MessagesSent, sent);
        set(slot, Counter::MessagesReceived, received);
    }
}
