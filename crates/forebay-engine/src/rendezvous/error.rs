//! What can go wrong when the ranks of a node come together.

use forebay_host::HostError;
use serde::{Deserialize, Serialize};

use super::membership::Peer;

/// Whose fault a failure is: what callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Another rank died.
    Peers,
    /// Ranks did not come, gave up, or do not fit together.
    Rendezvous,
    /// What this rank or another one was told is wrong.
    Options,
    /// A limit on memory is reached.
    Memory,
    /// The operating system refused something else, or a message makes no sense.
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
    /// Another leader is bringing ranks together under the same name.
    #[error("another job is forming under the same name on this node ({meeting})")]
    Taken {
        /// Job, node and loader.
        meeting: String,
    },
    /// A follower found no leader.
    #[error(
        "local rank {local_rank} waited {seconds} s for local rank 0 of {meeting}: was every rank of the node started?"
    )]
    NoLeader {
        /// Who waited.
        local_rank: u32,
        /// How long \[s\].
        seconds: u64,
        /// Job, node and loader.
        meeting: String,
    },
    /// The leader missed followers.
    #[error("{who} of this node did not come within {seconds} s ({meeting})")]
    Missing {
        /// The local ranks that did not come.
        local_ranks: Vec<u32>,
        /// The same in words.
        who: String,
        /// How long the leader waited \[s\].
        seconds: u64,
        /// Job, node and loader.
        meeting: String,
    },
    /// The ranks that came do not fit together.
    #[error("{message}")]
    Mismatch {
        /// Who says what.
        message: String,
        /// The way out.
        hint: String,
    },
    /// A process died while the ranks came together.
    #[error("{peer} died while the ranks of the node came together ({meeting})")]
    PeerLost {
        /// Who.
        peer: Peer,
        /// Job, node and loader.
        meeting: String,
    },
    /// A rank ended before it came.
    #[error("{peer} ended{how} before it came to make the loader ({meeting})")]
    Ended {
        /// Who.
        peer: Peer,
        /// How, in words; may be empty.
        how: String,
        /// Job, node and loader.
        meeting: String,
    },
    /// A process is alive but gave up, for example because its user interrupted it.
    #[error("{peer} gave up while the ranks of the node came together ({meeting})")]
    PeerLeft {
        /// Who.
        peer: Peer,
        /// Job, node and loader.
        meeting: String,
    },
    /// Why the leader could not bring the ranks together, in its words.
    #[error("{message}")]
    Told {
        /// What kind of error it is to the leader.
        class: Class,
        /// What the leader found.
        message: String,
        /// The way out.
        hint: String,
    },
    /// The leader looked at the greetings and said no, in these words.
    #[error("{0}")]
    Refused(String),
    /// The caller's `check` said so.
    #[error("interrupted")]
    Interrupted,
    /// A socket, the runtime directory, shared memory or a pidfd.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl RendezvousError {
    /// Advice that goes below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Mismatch { hint, .. } | Self::Told { hint, .. } if !hint.is_empty() => Some(hint),
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

    /// What kind of failure it is. Only what is about other ranks is [`Class::Peers`] or
    /// [`Class::Rendezvous`]: a process that is alone has none.
    pub fn class(&self) -> Class {
        match self {
            Self::PeerLost { .. } | Self::Ended { .. } => Class::Peers,
            Self::NoLeader { .. }
            | Self::Missing { .. }
            | Self::PeerLeft { .. }
            | Self::Taken { .. }
            | Self::Mismatch { .. } => Class::Rendezvous,
            Self::Usage { .. } | Self::Refused(_) | Self::Host(HostError::Directory { .. }) => Class::Options,
            Self::Host(HostError::NoMemory { .. }) => Class::Memory,
            Self::Interrupted | Self::Host(_) => Class::System,
            Self::Told { class, .. } => *class,
        }
    }
}
