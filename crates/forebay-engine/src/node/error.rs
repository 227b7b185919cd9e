//! What can go wrong when the ranks of a node come together.

use std::io;
use std::path::PathBuf;

use super::peers::Peer;

/// Failure of the rendezvous or of shared memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The caller's description of the node contradicts itself.
    #[error("{message}")]
    Usage {
        /// What is wrong, with the values.
        message: String,
    },
    /// The directory for sockets cannot be used.
    #[error("runtime directory {}: {problem}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What was expected and found.
        problem: String,
        /// The way out.
        hint: String,
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
    /// A process is alive but gave up, for example because its user interrupted it.
    #[error("{peer} gave up while the ranks of the node came together ({meeting})")]
    PeerLeft {
        /// Who.
        peer: Peer,
        /// Job, node and loader.
        meeting: String,
    },
    /// The leader looked at the greetings and said no, in these words.
    #[error("{0}")]
    Refused(String),
    /// The caller's `check` said so.
    #[error("interrupted")]
    Interrupted,
    /// Shared memory is not what it should be.
    #[error("shared memory: expected {expected}, found {found}")]
    Memory {
        /// What was asked for.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted.
        action: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl NodeError {
    /// Advice that goes below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Directory { hint, .. } | Self::Mismatch { hint, .. } if !hint.is_empty() => Some(hint),
            Self::Taken { .. } => Some("give World(job=) or name= to tell the two apart"),
            Self::NoLeader { .. } | Self::Missing { .. } => Some(
                "making a loader is collective: every rank of the node makes it, with the same job, node and name; \
                 world=\"single\" is for one rank alone",
            ),
            Self::PeerLost { .. } | Self::PeerLeft { .. } => {
                Some("restart the job; the output of that rank may say why it ended")
            }
            Self::System { action, source } => system_hint(action, source),
            _ => None,
        }
    }

    pub(crate) fn system<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| Self::System { action, source: source.into() }
    }

    pub(super) fn memory(expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Memory { expected: expected.into(), found: found.into() }
    }
}

/// What the action of watching a process is called in messages.
pub(super) const WATCH: &str = "watch a process (pidfd_open)";

/// How the actions on the two files of a rendezvous begin in messages.
pub(super) const LOCK: &str = "lock ";
pub(super) const LISTEN: &str = "listen at ";

fn system_hint(action: &str, source: &io::Error) -> Option<&'static str> {
    match source.raw_os_error()? {
        libc::EMFILE | libc::ENFILE => Some("raise the limit on open files: ulimit -n"),
        libc::ENOSYS | libc::EPERM if action == WATCH => Some(
            "Forebay needs Linux 5.3 or newer, and a container whose system call filter allows pidfd_open",
        ),
        _ if action.starts_with(LOCK) || action.starts_with(LISTEN) => Some(
            "set FOREBAY_RUNTIME_DIR to a directory of your own on a local file system, the same for all ranks",
        ),
        libc::ENOMEM => Some("give memory= less, or ask the scheduler for more memory"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_refuses_comes_with_a_way_out() {
        let hint = |action: &str, code| {
            let error = NodeError::system(action)(io::Error::from_raw_os_error(code));
            assert!(error.to_string().starts_with(&format!("cannot {action}: ")));
            error.hint().unwrap_or_default().to_owned()
        };
        assert!(hint("receive all descriptors", libc::EMFILE).contains("ulimit -n"));
        assert!(hint(WATCH, libc::ENOSYS).contains("Linux 5.3"));
        assert!(hint("lock /lustre/run/x.lock", libc::ENOLCK).contains("FOREBAY_RUNTIME_DIR"));
        assert!(hint("map 5 bytes of shared memory", libc::ENOMEM).contains("memory="));
        assert_eq!(hint("send to a process of this node", libc::EIO), "");
    }
}
