//! What can go wrong between the leaders of nodes.

use std::fmt;
use std::io;
use std::sync::Arc;

use forebay_host::ThreadError;

use crate::base::failure::PeerFailure;

/// Failure of a link, or of making the links.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A process of the job is lost.
    #[error("{loss}")]
    Lost {
        /// Who, and how that was seen.
        loss: PeerFailure,
    },
    /// The leader of a node said goodbye: nothing more comes from there.
    #[error("{who} has closed the loader")]
    Gone {
        /// Who.
        who: String,
    },
    /// A node could not make the loader, in its own words.
    #[error("{who}: {message}")]
    Abandoned {
        /// Who.
        who: String,
        /// Why.
        message: String,
        /// Whether the reason is that a process of the job has ended.
        after_loss: bool,
    },
    /// Leaders did not come.
    #[error("{who} did not come within {seconds} s")]
    Missing {
        /// Who.
        who: String,
        /// How long was waited \[s\].
        seconds: u64,
    },
    /// Nobody listens any more where a leader said it listens.
    #[error("cannot reach {who} at {address}: {}", problem(source.as_deref()))]
    Unreachable {
        /// Who.
        who: String,
        /// Where.
        address: String,
        /// The system's answer, if it was asked.
        source: Option<Arc<io::Error>>,
    },
    /// A message is larger than a link carries.
    #[error("a message of {bytes} bytes between nodes; the most is {most}")]
    TooLarge {
        /// Its size \[bytes\].
        bytes: usize,
        /// The bound \[bytes\].
        most: usize,
    },
    /// The description of the nodes contradicts itself.
    #[error("{message}")]
    Usage {
        /// What is wrong, with the values.
        message: String,
    },
    /// The caller's check said so.
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
        /// The system's answer.
        source: Arc<io::Error>,
    },
}

fn problem(source: Option<&io::Error>) -> String {
    source.map_or_else(|| "its node has no network interface".into(), ToString::to_string)
}

impl LinkError {
    /// Advice that goes below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Lost { .. } => Some("restart the job; the output of that rank may say why it ended"),
            Self::Abandoned { .. } => Some("the output of that rank says more"),
            Self::Missing { .. } => {
                Some("making a loader is collective over all ranks that share a communicator")
            }
            Self::Unreachable { .. } => Some(
                "the process may have ended, its output may say why; else a firewall stands between the nodes, or \
                 FOREBAY_INTERFACE has to name the network that they share",
            ),
            Self::Threads(error) => Some(error.hint()),
            _ => None,
        }
    }

    pub(super) fn system<E: Into<io::Error>>(action: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action: action.to_string(), source: Arc::new(source.into()) }
    }
}
