//! Errors of transfers between nodes.

use std::fmt;
use std::io;
use std::sync::Arc;

use forebay_host::ThreadError;

use crate::message::auth::VERSION;
use crate::message::refusal::Refusal;

/// Advice where a node does not answer at its addresses.
pub const UNREACHABLE_HINT: &str = "the process may have ended, its output may say why; else a firewall stands \
     between the nodes, or FOREBAY_INTERFACE has to name the network that they share";

/// Failure of a transfer, of a connection, or of a server.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The caller asked for something that cannot be.
    #[error("{message}")]
    Usage {
        /// What is wrong, with the values.
        message: String,
    },
    /// The answer did not arrive by the caller's deadline. The request is still in flight.
    #[error("fetch step {step} from node {node}: no complete answer by the deadline")]
    Deadline {
        /// The node.
        node: String,
        /// The step.
        step: u64,
    },
    /// The peer was not connected by the caller's deadline. Connecting goes on.
    #[error("connect to node {node}: not connected by the deadline")]
    NotConnected {
        /// The node.
        node: String,
    },
    /// The connection ended, or made no progress.
    #[error("fetch step {step} from node {node}: the connection is lost: {source}")]
    Lost {
        /// The node.
        node: String,
        /// The oldest step in flight.
        step: u64,
        /// How the loss was detected.
        source: Arc<io::Error>,
    },
    /// The bytes that arrived are not those that were sent.
    #[error(
        "fetch step {step} from node {node}: checksum mismatch (expected {expected:#010x}, found {found:#010x})"
    )]
    Corrupt {
        /// The node.
        node: String,
        /// The step.
        step: u64,
        /// The sender's checksum.
        expected: u32,
        /// The checksum of the received bytes.
        found: u32,
    },
    /// The server refused a request.
    #[error("fetch step {step} from node {node}: the node refused entry {entry}: {refusal}")]
    BadRequest {
        /// The node.
        node: String,
        /// The step.
        step: u64,
        /// The first bad entry.
        entry: u64,
        /// Why.
        refusal: Refusal,
    },
    /// The peer does not follow the protocol.
    #[error("fetch step {step} from node {node}: protocol error: {message}")]
    Protocol {
        /// The node.
        node: String,
        /// The step.
        step: u64,
        /// Expected and found.
        message: String,
    },
    /// The server refused the connection.
    #[error("connect to node {node} at {address}: the node refused: {refusal}")]
    Refused {
        /// The node.
        node: String,
        /// Its address.
        address: String,
        /// Why.
        refusal: Refusal,
    },
    /// The server speaks another version of the protocol.
    #[error(
        "connect to node {node} at {address}: protocol version mismatch (expected {VERSION}, found {found})"
    )]
    Version {
        /// The node.
        node: String,
        /// Its address.
        address: String,
        /// The server's version.
        found: u32,
    },
    /// What listens at the address is no server of this job.
    #[error("connect to node {node} at {address}: {message}")]
    Stranger {
        /// The node.
        node: String,
        /// Its address.
        address: String,
        /// What it lacks.
        message: &'static str,
    },
    /// No connection within the deadline, or none is possible.
    #[error("connect to node {node} at {address}: {source}")]
    Unreachable {
        /// The node.
        node: String,
        /// Its addresses.
        address: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The ticket is of a connection that was replaced.
    #[error("fetch step {step} from node {node}: stale ticket: the connection was made again since")]
    Stale {
        /// The node.
        node: String,
        /// The step.
        step: u64,
    },
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

impl TransportError {
    /// Advice to print below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Lost { .. } => Some("the process that serves the share may have ended; see its output"),
            Self::Corrupt { .. } => Some("memory or network of one of the two nodes is faulty"),
            Self::Refused { refusal: Refusal::Dataset, .. } => {
                Some("all nodes must open the same files; compare sizes and modification times on both nodes")
            }
            Self::Refused { refusal: Refusal::Connections, .. } => {
                Some("raise `ulimit -n` on that node, or use fewer ranks per node")
            }
            Self::Refused { refusal: Refusal::Version, .. } | Self::Version { .. } => {
                Some("install the same version of Forebay on all nodes")
            }
            Self::Unreachable { .. } => Some(UNREACHABLE_HINT),
            Self::Threads(error) => Some(error.hint()),
            _ => None,
        }
    }

    /// The same error, of another step if the whole connection has it.
    pub(crate) fn of_step(&self, step: u64) -> Self {
        match self {
            Self::Stale { node, .. } => Self::Stale { node: node.clone(), step },
            other => other.clone(),
        }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::Usage { message: message.to_string() }
    }

    pub(crate) fn system<E: Into<io::Error>>(action: impl fmt::Display) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action: action.to_string(), source: Arc::new(source.into()) }
    }
}
