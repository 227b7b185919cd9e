//! Errors of shared memory, the runtime directory, sockets and pidfds.

use std::io;
use std::path::PathBuf;

use crate::memory_refusal::MemoryRefusal;

/// Failure of something that the processes of a node share.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The directory for sockets cannot be used.
    #[error("runtime directory {}: {problem}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What was expected and found.
        problem: String,
        /// Advice.
        hint: String,
    },
    /// Shared memory has an unexpected size or seal.
    #[error("shared memory: expected {expected}, found {found}")]
    Memory {
        /// The requested property.
        expected: String,
        /// The actual property.
        found: String,
    },
    /// The system refused memory.
    #[error("cannot {action}: {}", refusal.cause)]
    NoMemory {
        /// What was attempted.
        action: String,
        /// The limit that was reached, and advice.
        refusal: MemoryRefusal,
    },
    /// The other end of a socket is a process of another user.
    #[error("socket: expected a process of user {expected} at its other end, found one of user {found}")]
    OtherUser {
        /// This user.
        expected: u32,
        /// Whose process it is.
        found: u32,
    },
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}

impl HostError {
    /// Advice for the line below the message.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Directory { hint, .. } => Some(hint),
            Self::NoMemory { refusal, .. } => Some(&refusal.hint),
            Self::System { action, source } => system_hint(action, source),
            Self::OtherUser { .. } => Some(
                "set FOREBAY_RUNTIME_DIR to a directory of your own on this node, the same for all ranks",
            ),
            Self::Memory { .. } => None,
        }
    }

    /// The system refused to `action`.
    pub fn system<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| Self::System { action, source: source.into() }
    }

    /// Like [`HostError::system`], for an attempt to allocate `bytes`.
    pub(crate) fn taking<E: Into<io::Error>>(
        action: impl Into<String>,
        bytes: u64,
    ) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| {
            let source = source.into();
            match MemoryRefusal::of(bytes, &source) {
                Some(refusal) => Self::NoMemory { action, refusal },
                None => Self::System { action, source },
            }
        }
    }

    pub(crate) fn memory(expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Memory { expected: expected.into(), found: found.into() }
    }
}

/// The action of watching a process, as messages name it.
pub(crate) const WATCH: &str = "watch a process (pidfd_open)";

/// Prefixes of the actions on the two files of a [`SocketPath`](crate::SocketPath).
pub(crate) const LOCK: &str = "lock ";
pub(crate) const LISTEN: &str = "listen at ";

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
            let error = HostError::system(action)(io::Error::from_raw_os_error(code));
            assert!(error.to_string().starts_with(&format!("cannot {action}: ")));
            error.hint().unwrap_or_default().to_owned()
        };
        assert!(hint("receive all descriptors", libc::EMFILE).contains("ulimit -n"));
        assert!(hint(WATCH, libc::ENOSYS).contains("Linux 5.3"));
        assert!(hint("lock /lustre/run/x.lock", libc::ENOLCK).contains("FOREBAY_RUNTIME_DIR"));
        let refused = HostError::taking("map 5 bytes", u64::MAX)(io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(refused.to_string().starts_with("cannot map 5 bytes: ") && refused.hint().is_some());
        assert_eq!(hint("send to a process of this node", libc::EIO), "");
    }
}
