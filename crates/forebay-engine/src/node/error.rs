//! What can go wrong when the ranks of a node come together.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::address::Refusal;
use super::peers::Peer;

/// Whose fault a failure is: what callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Class {
    /// Another rank died, left or did not come.
    Peers,
    /// What this rank or another one was told is wrong, or they disagree.
    Options,
    /// A limit on memory is reached.
    Memory,
    /// The operating system refused something else, or a message makes no sense.
    System,
}

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
    /// Shared memory is not what it should be.
    #[error("shared memory: expected {expected}, found {found}")]
    Memory {
        /// What was asked for.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The system gave no memory.
    #[error("cannot {action}: {}", refusal.cause)]
    NoMemory {
        /// What was attempted.
        action: String,
        /// Which limit is reached, and the way out.
        refusal: Refusal,
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
            Self::Directory { hint, .. } | Self::Mismatch { hint, .. } | Self::Told { hint, .. }
                if !hint.is_empty() =>
            {
                Some(hint)
            }
            Self::Taken { .. } => Some("give World(job=) or name= to tell the two apart"),
            Self::NoLeader { .. } | Self::Missing { .. } => Some(
                "making a loader is collective: every rank of the node makes it, with the same job, node and name; \
                 world=\"single\" is for one rank alone",
            ),
            Self::PeerLost { .. } | Self::PeerLeft { .. } | Self::Ended { .. } => {
                Some("restart the job; the output of that rank may say why it ended")
            }
            Self::NoMemory { refusal, .. } => Some(&refusal.hint),
            Self::System { action, source } => system_hint(action, source),
            _ => None,
        }
    }

    /// What kind of failure it is. Only what is about other ranks is [`Class::Peers`]: a process that is alone has none.
    pub fn class(&self) -> Class {
        match self {
            Self::NoLeader { .. }
            | Self::Missing { .. }
            | Self::PeerLost { .. }
            | Self::PeerLeft { .. }
            | Self::Ended { .. } => Class::Peers,
            Self::Usage { .. }
            | Self::Directory { .. }
            | Self::Taken { .. }
            | Self::Mismatch { .. }
            | Self::Refused(_) => Class::Options,
            Self::NoMemory { .. } => Class::Memory,
            Self::Interrupted | Self::Memory { .. } | Self::System { .. } => Class::System,
            Self::Told { class, .. } => *class,
        }
    }

    pub(crate) fn system<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| Self::System { action, source: source.into() }
    }

    /// Like [`NodeError::system`], of an attempt to take `bytes` of memory.
    pub(super) fn taking<E: Into<io::Error>>(
        action: impl Into<String>,
        bytes: u64,
    ) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| {
            let source = source.into();
            match Refusal::of(bytes, &source) {
                Some(refusal) => Self::NoMemory { action, refusal },
                None => Self::System { action, source },
            }
        }
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
        let refused = NodeError::taking("map 5 bytes", u64::MAX)(io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(refused.to_string().starts_with("cannot map 5 bytes: ") && refused.hint().is_some());
        assert_eq!(hint("send to a process of this node", libc::EIO), "");
    }
}
