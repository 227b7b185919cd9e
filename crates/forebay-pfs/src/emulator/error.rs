//! What can go wrong with a running emulator.
use std::io;
use std::path::{Path, PathBuf};

/// Wrong use, or a machine that does not let us.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulatorError {
    /// The specification, or an order to its servers, makes no sense.
    #[error(transparent)]
    Model(#[from] crate::Error),
    /// The configuration, or a request, makes no sense.
    #[error("{0}")]
    Wrong(String),
    /// A mount cannot be made, or there is none.
    #[error("mount point {}: {problem}", mount.display())]
    Mount {
        /// Where.
        mount: PathBuf,
        /// What is in the way.
        problem: String,
        /// What helps.
        hint: &'static str,
    },
    /// A thread could not be started.
    #[error("cannot start {what}: {source}")]
    Thread {
        /// Which one.
        what: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Something on this machine failed.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// How it failed.
        #[source]
        source: io::Error,
    },
}

impl EmulatorError {
    /// What may help.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            EmulatorError::Mount { hint, .. } if !hint.is_empty() => Some(hint),
            _ => None,
        }
    }

    /// Message and hint, as people get them.
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

/// Says which thread could not be started.
pub(crate) fn thread(what: impl Into<String>) -> impl FnOnce(io::Error) -> EmulatorError {
    move |source| EmulatorError::Thread { what: what.into(), source }
}

/// Says what was attempted on what when it fails.
pub(crate) fn doing<'a>(
    doing: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> EmulatorError + use<'a> {
    move |source| EmulatorError::Io { doing, path: path.to_owned(), source }
}
