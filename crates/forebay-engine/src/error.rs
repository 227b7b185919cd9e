//! What can go wrong between a loader and its batches.

use std::fmt;
use std::io;

use forebay_host::{HostError, MemoryRefusal, ThreadError};
use forebay_io::ReadError;

use crate::links::Loss;
use crate::rendezvous::{Class, RendezvousError};

/// Failure of a loader.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is wrong, or options contradict each other or the data set.
    #[error("{message}")]
    Options {
        /// What is wrong, with the values.
        message: String,
        /// The way out; may be empty.
        hint: String,
    },
    /// The data set could not be opened, indexed or believed.
    #[error("{0}")]
    Format(String, Option<String>),
    /// Storage failed.
    #[error("{0}")]
    Storage(String, Option<String>),
    /// A sample's bytes are not what its schema says.
    #[error("{path}: sample {sample}: {what} at offset {offset}: expected {expected}, found {found}")]
    BadSample {
        /// Ordinal of the sample.
        sample: u64,
        /// The shard that holds it.
        path: String,
        /// Where in the shard [bytes].
        offset: u64,
        /// Which thing is wrong.
        what: String,
        /// What the schema says.
        expected: String,
        /// What the record holds.
        found: String,
    },
    /// The ranks of the node could not be brought together.
    #[error("{0}")]
    Node(String, Option<String>),
    /// A process of this node died.
    #[error("rank {rank} (local rank {local_rank}, process {pid}) of loader \"{loader}\" died; {what}")]
    PeerLost {
        /// Its rank in the job.
        rank: u32,
        /// Its rank on the node.
        local_rank: u32,
        /// Its process id, as this process sees it.
        pid: i32,
        /// Name of the loader.
        loader: String,
        /// What was being waited for.
        what: String,
    },
    /// A process of another node is lost.
    #[error(
        "rank {} (node {node}, process {}) of loader \"{loader}\" {}; {what}", loss.rank, loss.pid, loss.cause.verb()
    )]
    RemoteLost {
        /// Who, and how that was seen.
        loss: Loss,
        /// Its node.
        node: String,
        /// Name of the loader.
        loader: String,
        /// What was being waited for.
        what: String,
    },
    /// Nothing moved for as long as the user allowed.
    #[error("no batch for {seconds} s: {what}")]
    Timeout {
        /// The limit \[s\].
        seconds: u64,
        /// What was being waited for.
        what: String,
    },
    /// Storage did not answer for as long as the user allowed, while something else than a batch was wanted.
    #[error("nothing has moved for {seconds} s: {what}")]
    Stalled {
        /// The limit \[s\].
        seconds: u64,
        /// What was being waited for.
        what: String,
    },
    /// The ranks of the node want to go on at different places.
    #[error("{0}")]
    Disagree(String),
    /// Another iteration of the loader was begun, or this one was ended.
    #[error("stale iterator: the loader was closed, repositioned, or iterated again")]
    Stale,
    /// The caller was interrupted by a signal.
    #[error("interrupted")]
    Interrupted,
    /// The loader was closed.
    #[error("the loader is closed")]
    Closed,
    /// The loader belongs to the parent of this process.
    #[error("this loader was made before the process forked; make a new one in the child")]
    Forked,
    /// A thread could not be started.
    #[error("{0}")]
    Threads(String, String),
    /// A limit on memory is reached.
    #[error("{message}")]
    Memory {
        /// What was attempted, and the limit with its figure.
        message: String,
        /// The way out.
        hint: String,
    },
    /// Something on this node failed that is neither a rank nor storage.
    #[error("{0}")]
    Local(String, Option<String>),
    /// The operating system refused something that is not a file of the data set.
    #[error("cannot {0}: {1}")]
    System(&'static str, String),
}

impl Error {
    /// An engine thread panicked and has printed where.
    pub(crate) fn panicked() -> Self {
        Self::System("go on", "an engine thread panicked; this is a bug in Forebay".into())
    }

    /// Advice that goes below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Threads(_, hint) => Some(hint),
            Self::Options { hint, .. } | Self::Memory { hint, .. } if !hint.is_empty() => Some(hint),
            Self::Format(_, hint) | Self::Storage(_, hint) | Self::Node(_, hint) | Self::Local(_, hint) => {
                hint.as_deref()
            }
            Self::BadSample { .. } => Some(
                "bad_samples=\"skip\" lets a good one stand in; where a schema decodes records, schema=\"raw\" delivers \
                 them as they are",
            ),
            Self::PeerLost { .. } | Self::RemoteLost { .. } => {
                Some("restart the job; the output of that rank may say why it ended")
            }
            Self::Timeout { .. } | Self::Stalled { .. } => {
                Some("look whether the file system answers (ls, df); timeout= allows it to stall for longer")
            }
            Self::Disagree(_) => {
                Some("every rank must make its loaders with the same arguments and move them alike")
            }
            _ => None,
        }
    }

    /// The error as the leader of a node tells it to the other ranks.
    pub(crate) fn to_wire(&self) -> String {
        let kind = match self {
            Self::Options { .. } => "options",
            Self::Format(..) | Self::BadSample { .. } => "format",
            Self::Storage(..) | Self::Timeout { .. } | Self::Stalled { .. } => "storage",
            Self::Disagree(_) => "disagree",
            Self::Threads(..) => "threads",
            Self::Memory { .. } => "memory",
            Self::Local(..) | Self::System(..) => "local",
            _ => "node",
        };
        serde_json::to_string(&(kind, self.to_string(), self.hint())).expect("text can be written as JSON")
    }

    /// What the leader told.
    pub(crate) fn from_wire(text: &str) -> Self {
        let Ok((kind, message, hint)) = serde_json::from_str::<(String, String, Option<String>)>(text) else {
            return Self::Node(text.to_owned(), None);
        };
        match kind.as_str() {
            "options" => Self::Options { message, hint: hint.unwrap_or_default() },
            "format" => Self::Format(message, hint),
            "storage" => Self::Storage(message, hint),
            "disagree" => Self::Disagree(message),
            "threads" => Self::Threads(message, hint.unwrap_or_default()),
            "memory" => Self::Memory { message, hint: hint.unwrap_or_default() },
            "local" => Self::Local(message, hint),
            _ => Self::Node(message, hint),
        }
    }

    /// Why `what`, a thread, could not be started.
    pub(crate) fn threads(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Self {
        move |source| ThreadError::new(what, &source).into()
    }
}

impl From<forebay_format::Error> for Error {
    fn from(error: forebay_format::Error) -> Self {
        match error {
            forebay_format::Error::Interrupted => Self::Interrupted,
            forebay_format::Error::Io { .. } => {
                Self::Storage(error.to_string(), error.hint().map(Into::into))
            }
            forebay_format::Error::Usage { .. } => {
                Self::Options { message: error.to_string(), hint: error.hint().unwrap_or_default().into() }
            }
            other => Self::Format(other.to_string(), other.hint().map(Into::into)),
        }
    }
}

impl From<ThreadError> for Error {
    fn from(error: ThreadError) -> Self {
        let (message, hint) = (error.to_string(), error.hint().to_owned());
        if error.lacks_memory() { Self::Memory { message, hint } } else { Self::Threads(message, hint) }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        if let ReadError::Threads(error) = error {
            return error.into();
        }
        if let ReadError::Map { path, bytes, source } = &error
            && let Some(MemoryRefusal { cause, hint }) = MemoryRefusal::of(*bytes, source)
        {
            let message = format!("{}: cannot map {bytes} bytes: {cause}", path.display());
            return Self::Memory { message, hint: format!("{hint}; access=\"pread\" needs no mapping") };
        }
        Self::Storage(error.to_string(), error.hint().map(Into::into))
    }
}

impl From<HostError> for Error {
    fn from(error: HostError) -> Self {
        RendezvousError::from(error).into()
    }
}

impl From<RendezvousError> for Error {
    fn from(error: RendezvousError) -> Self {
        match error {
            RendezvousError::Interrupted => Self::Interrupted,
            RendezvousError::Refused(text) => Self::from_wire(&text),
            error => {
                let (message, hint) = (error.to_string(), error.hint().map(str::to_owned));
                match error.class() {
                    Class::Peers => Self::Node(message, hint),
                    Class::Options => Self::Options { message, hint: hint.unwrap_or_default() },
                    Class::Memory => Self::Memory { message, hint: hint.unwrap_or_default() },
                    Class::System => Self::Local(message, hint),
                }
            }
        }
    }
}

impl From<forebay_plan::OrderError> for Error {
    fn from(error: forebay_plan::OrderError) -> Self {
        Self::Options { message: error.to_string(), hint: error.hint().map(Into::into).unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_leader_reaches_the_others_as_the_same_kind() {
        for error in [
            Error::Options { message: "too little".into(), hint: "more".into() },
            Error::Format("not LMDB".into(), None),
            Error::Storage("no such file".into(), Some("look".into())),
            Error::Disagree("seed".into()),
            Error::Threads("RLIMIT_NPROC".into(), "raise".into()),
            Error::Memory { message: "RLIMIT_AS".into(), hint: "raise it".into() },
            Error::Local("too many open files".into(), Some("raise it".into())),
        ] {
            let told = Error::from_wire(&error.to_wire());
            assert_eq!(std::mem::discriminant(&told), std::mem::discriminant(&error));
            assert_eq!((told.to_string(), told.hint()), (error.to_string(), error.hint()));
        }
        assert!(matches!(Error::from_wire("gone"), Error::Node(text, None) if text == "gone"));
    }
}
