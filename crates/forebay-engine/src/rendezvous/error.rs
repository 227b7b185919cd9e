//! Errors of the rendezvous of a node's ranks.

use forebay_host::HostError;
use serde::{Deserialize, Serialize};

use super::membership::Peer;

/// Cause of a failure, as far as callers distinguish causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Another rank died.
    Peers,
    /// Ranks did not connect, gave up, or describe different nodes.
    Rendezvous,
    /// An option of this rank or of another one is wrong.
    Options,
    /// A memory limit is reached.
    Memory,
    /// Another system call failed, or a message is malformed.
    System,
}

/// Failure of the rendezvous.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The caller's description of the node contradicts itself.
    #[error("{message}")]
    Usage {
        /// What is wrong, with the values.
        message: String,
    },
    /// Another leader holds the lock of the same job, node and loader.
    #[error("another job is forming under the same name on this node ({rendezvous})")]
    Taken {
        /// Job, node and loader.
        rendezvous: String,
    },
    /// A follower found no leader within the deadline.
    #[error(
        "local rank {local_rank} waited {seconds} s for local rank 0 of {rendezvous}: was every rank of the node started?"
    )]
    NoLeader {
        /// Local rank that waited.
        local_rank: u32,
        /// How long \[s\].
        seconds: u64,
        /// Job, node and loader.
        rendezvous: String,
    },
    /// Followers did not connect within the deadline.
    #[error("{who} of this node did not come within {seconds} s ({rendezvous})")]
    Missing {
        /// The local ranks that did not connect.
        local_ranks: Vec<u32>,
        /// The same as a string.
        who: String,
        /// How long the leader waited \[s\].
        seconds: u64,
        /// Job, node and loader.
        rendezvous: String,
    },
    /// The ranks that connected describe different nodes.
    #[error("{message}")]
    Mismatch {
        /// What each of them stated.
        message: String,
        /// How to fix it.
        hint: String,
    },
    /// A process died during the rendezvous.
    #[error("{peer} died while the ranks of the node came together ({rendezvous})")]
    PeerLost {
        /// The process that died.
        peer: Peer,
        /// Job, node and loader.
        rendezvous: String,
    },
    /// A rank's process ended before it connected.
    #[error("{peer} ended{how} before it came to make the loader ({rendezvous})")]
    Ended {
        /// The process that ended.
        peer: Peer,
        /// Exit status or signal; may be empty.
        how: String,
        /// Job, node and loader.
        rendezvous: String,
    },
    /// A process is alive but gave up, for example because its user interrupted it.
    #[error("{peer} gave up while the ranks of the node came together ({rendezvous})")]
    PeerLeft {
        /// The process that gave up.
        peer: Peer,
        /// Job, node and loader.
        rendezvous: String,
    },
    /// The leader failed and reported why.
    #[error("{message}")]
    Reported {
        /// Class of the leader's error.
        class: Class,
        /// Message of the leader's error.
        message: String,
        /// How to fix it.
        hint: String,
    },
    /// The leader's `lead` rejected the hellos, with this message.
    #[error("{0}")]
    Rejected(String),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// A socket, the runtime directory, shared memory or a pidfd.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl RendezvousError {
    /// Advice to print below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Mismatch { hint, .. } | Self::Reported { hint, .. } if !hint.is_empty() => Some(hint),
            Self::Taken { .. } => Some("give World(job=) or name= to tell the two apart"),
            Self::NoLeader { .. } | Self::Missing { .. } => Some(
                "making a loader is collective: every rank of the node makes it, with the same job, node and name; \
                 world=\"single\" is for one rank alone",
            ),
            Self::PeerLost { .. } | Self::PeerLeft { .. } | Self::Ended { .. } => {
                Some("restart the job; the output of that rank may say why it ended")
            }
            Self::Host(error) => error.hint(),
            _ => None,
        }
    }

    /// The class of this error. Only errors about other ranks are [`Class::Peers`] or
    /// [`Class::Rendezvous`].
    pub fn class(&self) -> Class {
        match self {
            Self::PeerLost { .. } | Self::Ended { .. } => Class::Peers,
            Self::NoLeader { .. }
            | Self::Missing { .. }
            | Self::PeerLeft { .. }
            | Self::Taken { .. }
            | Self::Mismatch { .. } => Class::Rendezvous,
            Self::Usage { .. }
            | Self::Rejected(_)
            | Self::Host(HostError::Directory { .. } | HostError::OtherUser { .. }) => Class::Options,
            Self::Host(HostError::NoMemory { .. }) => Class::Memory,
            Self::Interrupted | Self::Host(_) => Class::System,
            Self::Reported { class, .. } => *class,
        }
    }
}
