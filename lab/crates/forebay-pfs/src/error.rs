//! Errors of the emulator.
use std::io;
use std::path::{Path, PathBuf};

/// Wrong use, or a failure of the machine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// The specification, or a request to its servers, is invalid.
    #[error(transparent)]
    Model(#[from] forebay_model::Error),
    /// The configuration, or a request, is invalid.
    #[error("{0}")]
    Wrong(String),
    /// A mount cannot be created, or does not exist.
    #[error("mount point {}: {problem}", mount.display())]
    Mount {
        /// The mount point.
        mount: PathBuf,
        /// The cause.
        problem: String,
        /// Advice, or empty.
        hint: &'static str,
    },
    /// A thread was not started.
    #[error("cannot start {what}: {source}")]
    Thread {
        /// The thread.
        what: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A system call failed.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl EmulatorError {
    /// Advice.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            EmulatorError::Mount { hint, .. } if !hint.is_empty() => Some(hint),
            _ => None,
        }
    }

    /// Message and hint.
    pub fn text(&self) -> String {
        match self.hint() {
            Some(hint) => format!("{self}\nhint: {hint}"),
            None => self.to_string(),
        }
    }

    pub(crate) fn mount(mount: &Path, problem: impl Into<String>, hint: &'static str) -> EmulatorError {
        EmulatorError::Mount { mount: mount.to_owned(), problem: problem.into(), hint }
    }
}

/// Adds the name of the thread that was not started.
pub(crate) fn thread(what: impl Into<String>) -> impl FnOnce(io::Error) -> EmulatorError {
    move |source| EmulatorError::Thread { what: what.into(), source }
}

/// Adds what was attempted, and on which path.
pub(crate) fn doing<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> EmulatorError + use<'a> {
    move |source| EmulatorError::Io { doing, path: path.to_owned(), source }
}
