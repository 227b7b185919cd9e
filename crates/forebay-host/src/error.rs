//! What can go wrong with shared memory, the runtime directory, sockets and pidfds.

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
        /// The way out.
        hint: String,
    },
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
        refusal: MemoryRefusal,
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

impl HostError {
    /// Advice that goes below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Directory { hint, .. } => Some(hint),
            Self::NoMemory { refusal, .. } => Some(&refusal.hint),
            Self::System { action, source } => system_hint(action, source),
            Self::Memory { .. } => None,
        }
    }

    /// The system refused to `action`.
    pub fn system<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        let action = action.into();
        move |source| Self::System { action, source: source.into() }
    }

    /// Like [`HostError::system`], of an attempt to take `bytes` of memory.
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

/// What the action of watching a process is called in messages.
pub(crate) const WATCH: &str = "watch a process (pidfd_open)";

/// How the actions on the two files of a [`SocketPath`](crate::SocketPath) begin in messages.
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
