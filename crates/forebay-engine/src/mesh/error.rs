//! Errors of the links between the leaders of nodes.

use std::fmt;
use std::io;
use std::sync::Arc;

use forebay_host::ThreadError;
use forebay_transport::UNREACHABLE_HINT;

use crate::base::failure::PeerFailure;

/// Failure of a link, or of making the links.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A process of the job is lost.
    #[error("{loss}")]
    Lost {
        /// The process, and how the loss was detected.
        loss: PeerFailure,
    },
    /// The leader of a node has shut down: no more messages come from it.
    #[error("{who} has closed the loader")]
    Gone {
        /// The leader.
        who: String,
    },
    /// A node could not make the loader.
    #[error("{who}: {message}")]
    Abandoned {
        /// The leader of the node.
        who: String,
        /// Its error.
        message: String,
        /// Whether the reason is that a process of the job has ended.
        after_loss: bool,
    },
    /// Leaders did not connect within the deadline.
    #[error("{who} did not come within {seconds} s")]
    Missing {
        /// The leaders.
        who: String,
        /// The deadline \[s\].
        seconds: u64,
    },
    /// A leader does not listen at the addresses of its endpoint.
    #[error("cannot reach {who} at {address}: {}", problem(source.as_deref()))]
    Unreachable {
        /// The leader.
        who: String,
        /// Its addresses.
        address: String,
        /// The system's error, if there is one.
        source: Option<Arc<io::Error>>,
    },
    /// A message is larger than a link carries.
    #[error("a message between nodes is too large: {bytes} bytes (at most {max_bytes})")]
    TooLarge {
        /// Its size \[bytes\].
        bytes: usize,
        /// The limit \[bytes\].
        max_bytes: usize,
    },
    /// The description of the nodes contradicts itself.
    #[error("{message}")]
    Usage {
        /// What is wrong, with the values.
        message: String,
    },
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// This side has closed its links.
    #[error("the links between the nodes are closed")]
    Closed,
    /// A thread could not be started.
    #[error(transparent)]
    Threads(#[from] ThreadError),
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted.
        action: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
}

fn problem(source: Option<&io::Error>) -> String {
    source.map_or_else(|| "its node has no network interface".into(), ToString::to_string)
}

impl LinkError {
    /// Advice to print below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Lost { .. } => Some("restart the job; the output of that rank may say why it ended"),
            Self::Abandoned { .. } => Some("see the output of that rank"),
            Self::Missing { .. } => {
                Some("making a loader is collective over all ranks that share a communicator")
            }
            Self::Unreachable { .. } => Some(UNREACHABLE_HINT),
            Self::Threads(error) => Some(error.hint()),
            _ => None,
        }
    }

    pub(super) fn system<E: Into<io::Error>>(action: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action: action.to_string(), source: Arc::new(source.into()) }
    }
}
