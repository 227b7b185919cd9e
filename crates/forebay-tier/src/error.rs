//! Errors of tiers.

use std::io;
use std::path::PathBuf;

use forebay_host::{HostError, ThreadError};
use forebay_plan::options::TierSpec;

/// The daemon closed the connection.
pub(crate) const ENDED: &str = "it has ended";

/// Why a tier cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The description or the directory of a tier is wrong.
    #[error("tier {tier}: {problem}")]
    Tier {
        /// As the user wrote it.
        tier: String,
        /// What was expected and found.
        problem: String,
        /// Advice; may be empty.
        hint: String,
    },
    /// A file of a tier does not say what this version can use.
    #[error("{}: at byte {offset}: expected {expected}, found {found}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// First byte that is wrong [bytes from the start of the file].
        offset: u64,
        /// What was expected.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Shared memory or a message of the daemon is wrong.
    #[error("tier daemon: {attempt}: expected {expected}, found {found}")]
    Protocol {
        /// What was attempted.
        attempt: &'static str,
        /// What was expected.
        expected: String,
        /// What came.
        found: String,
    },
    /// The daemon is gone, or did not answer in time.
    #[error("tier daemon: {attempt}: {problem}")]
    Daemon {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        problem: String,
    },
    /// A system call failed.
    #[error("{}: {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// Memory or sockets of the node.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The system refused a thread.
    #[error(transparent)]
    Threads(#[from] ThreadError),
}

impl TierError {
    /// Whether the daemon has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Daemon { problem, .. } if problem == ENDED)
    }

    /// A tier that the user must mend; the hint may be empty.
    pub(crate) fn of_tier(spec: &TierSpec, problem: String, hint: &str) -> Self {
        Self::Tier { tier: spec.path.display().to_string(), problem, hint: hint.into() }
    }

    /// The system refused `action` at `path`.
    pub fn io<E: Into<io::Error>>(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::Io { path, action, source: source.into() }
    }

    /// Advice for the line below the message.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Tier { hint, .. } => Some(hint.as_str()).filter(|hint| !hint.is_empty()),
            Self::Host(error) => error.hint(),
            Self::Threads(error) => Some(error.hint()),
            _ => None,
        }
    }
}
