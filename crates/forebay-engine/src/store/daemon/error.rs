//! What can go wrong between a process and the store daemon.

use forebay_host::HostError;

use crate::error::{Error, ErrorDetails};

/// See the module header.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreDaemonError {
    /// A system call failed, or memory is not what it should be.
    #[error("store daemon: {attempt}: {source}")]
    Host {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        source: HostError,
    },
    /// It has ended.
    #[error("store daemon: {attempt}: it has ended")]
    Ended {
        /// What was attempted.
        attempt: &'static str,
    },
    /// It does not answer.
    #[error("store daemon: {attempt}: no answer of process {pid} within {seconds} s")]
    Late {
        /// What was attempted.
        attempt: &'static str,
        /// Its process; 0 if it is of another namespace.
        pid: i32,
        /// The timeout \[s\].
        seconds: u64,
    },
    /// It refuses.
    #[error("store daemon: {attempt}: {problem}")]
    Refused {
        /// What was attempted.
        attempt: &'static str,
        /// Why.
        problem: String,
    },
    /// What it sends is wrong.
    #[error("store daemon: {attempt}: expected {expected}, found {found}")]
    Invalid {
        /// What was attempted.
        attempt: &'static str,
        /// What was expected.
        expected: String,
        /// What came.
        found: String,
    },
    /// The caller was interrupted.
    #[error("store daemon: {attempt}: interrupted")]
    Interrupted {
        /// What was attempted.
        attempt: &'static str,
    },
}

impl StoreDaemonError {
    /// Advice for the line below the message.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Host { source, .. } => source.hint().map(Into::into),
            Self::Late { pid, .. } => Some(format!(
                "it may be stopped: `kill -CONT {pid}` lets it go on, `kill -KILL {pid}` ends it and frees its memory"
            )),
            Self::Refused { .. } | Self::Invalid { .. } => {
                Some("it may be of another version: `forebay store stop` ends it".into())
            }
            Self::Ended { .. } | Self::Interrupted { .. } => None,
        }
    }

    /// A function that adds what was attempted.
    pub(super) fn host(attempt: &'static str) -> impl Fn(HostError) -> Self {
        move |source| Self::Host { attempt, source }
    }
}

impl From<StoreDaemonError> for Error {
    fn from(error: StoreDaemonError) -> Self {
        let hint = error.hint();
        match error {
            StoreDaemonError::Host { source, .. } => source.into(),
            StoreDaemonError::Interrupted { .. } => Self::Interrupted,
            error => Self::Local(ErrorDetails::new(error.to_string(), hint.as_deref())),
        }
    }
}
