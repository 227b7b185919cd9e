//! What can go wrong between a loader and its batches.
//!
//! An error keeps its source until it leaves the crate: the bindings and the other ranks of the
//! node get message, hint, errno and path from [`ErrorDetails`].

use std::error::Error as StdError;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use forebay_host::{HostError, MemoryRefusal, ThreadError};
use forebay_io::ReadError;
use forebay_plan::options::OptionError;
use forebay_tier::TierError;
use forebay_transport::TransportError;

use crate::mesh::{LinkError, PeerFailure};
use crate::rendezvous::{Class, Peer, RendezvousError};

/// Advice where a process of the job has ended.
const RESTART: &str = "restart the job; the output of that rank may say why it ended";

/// What failed and why.
#[derive(Clone, Debug)]
pub struct ErrorDetails {
    message: String,
    hint: Option<String>,
    errno: Option<i32>,
    path: Option<PathBuf>,
    /// Where it arose in this process; what another rank reports has none.
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl ErrorDetails {
    /// Of a failure that was found here.
    pub fn new(message: impl Into<String>, hint: Option<&str>) -> Self {
        Self {
            message: message.into(),
            hint: hint.filter(|hint| !hint.is_empty()).map(Into::into),
            errno: None,
            path: None,
            source: None,
        }
    }

    /// Of an error that another part of the engine returned, about the file at `path` if it is
    /// about one.
    fn of(
        source: impl StdError + Send + Sync + 'static,
        hint: Option<String>,
        path: Option<PathBuf>,
    ) -> Self {
        let errno = errno_of(&source);
        Self { message: source.to_string(), hint, errno, path, source: Some(Arc::new(source)) }
    }

    /// The same with another message and another hint.
    pub(crate) fn reworded(&self, message: String, hint: &str) -> Self {
        Self { message, hint: Some(hint.into()), ..self.clone() }
    }

    /// The error number of the operating system, where a system call failed.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// The file that the failed operation was on.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl fmt::Display for ErrorDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for ErrorDetails {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// The error number of the operating system in a chain of errors.
fn errno_of(error: &(dyn StdError + 'static)) -> Option<i32> {
    let own = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    own.or_else(|| error.source().and_then(errno_of))
}

/// Failure of a loader.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is wrong, or options contradict each other or the dataset.
    #[error("{message}")]
    Options {
        /// What is wrong, with the values.
        message: String,
        /// The way out; may be empty.
        hint: String,
    },
    /// The dataset could not be opened, indexed or believed.
    #[error(transparent)]
    Format(ErrorDetails),
    /// Storage failed, or a file of the dataset was modified, replaced or removed.
    #[error(transparent)]
    Storage(ErrorDetails),
    /// The share of another node in an in-memory store cannot be reached.
    #[error(transparent)]
    Share(ErrorDetails),
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
    /// The ranks of the job did not come together, or want different things.
    #[error(transparent)]
    Rendezvous(ErrorDetails),
    /// A process of the job ended, or closed the loader, while the ranks came together.
    #[error(transparent)]
    PeerEnded(ErrorDetails),
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
        loss: PeerFailure,
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
    /// Storage did not answer for as long as the user allowed, while something else than a batch
    /// was wanted.
    #[error("nothing has moved for {seconds} s: {what}")]
    Stalled {
        /// The limit \[s\].
        seconds: u64,
        /// What was being waited for.
        what: String,
    },
    /// Storage did not answer the leader of the node.
    #[error(transparent)]
    StalledThere(ErrorDetails),
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
    #[error(transparent)]
    Threads(ErrorDetails),
    /// A limit on memory leaves too little.
    #[error("{message}")]
    Memory {
        /// What was attempted, and the limit with its figure.
        message: String,
        /// The way out.
        hint: String,
    },
    /// The operating system gave no memory.
    #[error(transparent)]
    NoMemory(ErrorDetails),
    /// Something on this node failed that is neither a rank nor storage.
    #[error(transparent)]
    Local(ErrorDetails),
    /// An engine thread panicked and has printed where.
    #[error("cannot go on: an engine thread panicked; this is a bug in Forebay")]
    Panicked,
}

impl Error {
    /// Ranks that want different things.
    pub(crate) fn disagree(message: impl Into<String>) -> Self {
        let hint = "make the loaders of all ranks in the same order, with the same arguments, and move them \
                    alike; name=\"valid\" keeps a second loader apart";
        Self::Rendezvous(ErrorDetails::new(message, Some(hint)))
    }

    /// Two ranks wait for each other in different loaders.
    pub(crate) fn waits_elsewhere(loader: &str, rank: &str) -> Self {
        let message = format!(
            "loader \"{loader}\": this rank waits for {rank}, which waits for this rank in another loader: neither will \
             go on"
        );
        let hint = "iterate the loaders in the same order on all ranks; world=\"single\" makes a loader that one rank \
                    iterates alone";
        Self::Rendezvous(ErrorDetails::new(message, Some(hint)))
    }

    /// A process of this node that died while the loader was made.
    pub(crate) fn died_during_creation(peer: Peer) -> Self {
        Self::PeerEnded(ErrorDetails::new(format!("{peer} died while the loader was made"), Some(RESTART)))
    }

    /// Something on this node that failed.
    pub(crate) fn local(message: impl Into<String>) -> Self {
        Self::Local(ErrorDetails::new(message, None))
    }

    /// Whether a process of the job has ended.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Self::PeerLost { .. } | Self::RemoteLost { .. } | Self::PeerEnded(_))
    }

    /// Advice that goes below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Options { hint, .. } | Self::Memory { hint, .. } => {
                Some(hint.as_str()).filter(|hint| !hint.is_empty())
            }
            Self::BadSample { .. } => Some(
                "bad_samples=\"skip\" lets a good one stand in; fields= leaves a field out; where a schema decodes records, \
                 schema=\"raw\" delivers them as they are",
            ),
            Self::PeerLost { .. } | Self::RemoteLost { .. } => Some(RESTART),
            Self::Timeout { .. } | Self::Stalled { .. } => {
                Some("look whether the file system answers (ls, df); timeout= allows it to stall for longer")
            }
            _ => self.details().and_then(|details| details.hint.as_deref()),
        }
    }

    /// What is known of the cause, where there is one.
    #[must_use]
    pub fn details(&self) -> Option<&ErrorDetails> {
        match self {
            Self::Format(details)
            | Self::Storage(details)
            | Self::Share(details)
            | Self::Rendezvous(details)
            | Self::PeerEnded(details)
            | Self::Threads(details)
            | Self::NoMemory(details)
            | Self::Local(details)
            | Self::StalledThere(details) => Some(details),
            _ => None,
        }
    }

    /// The error as the leader of a node sends it to the other ranks.
    pub(crate) fn to_wire(&self) -> String {
        let kind = match self {
            _ if self.is_loss() => WireKind::PeerEnded,
            Self::Options { .. } => WireKind::Options,
            Self::Format(..) | Self::BadSample { .. } => WireKind::Format,
            Self::Storage(..) | Self::Share(..) => WireKind::Storage,
            Self::Timeout { .. } | Self::Stalled { .. } | Self::StalledThere(..) => WireKind::Stalled,
            Self::Threads(..) => WireKind::Threads,
            Self::Memory { .. } | Self::NoMemory(..) => WireKind::Memory,
            Self::Local(..) | Self::Panicked => WireKind::Local,
            _ => WireKind::Rendezvous,
        };
        let details = self.details();
        let sent = Wire {
            kind,
            message: self.to_string(),
            hint: self.hint().map(Into::into),
            errno: details.and_then(ErrorDetails::errno),
            path: details.and_then(ErrorDetails::path).map(|path| path.as_os_str().as_bytes().to_vec()),
        };
        serde_json::to_string(&sent).expect("text can be written as JSON")
    }

    /// What the leader sent.
    pub(crate) fn from_wire(text: &str) -> Self {
        let Ok(Wire { kind, message, hint, errno, path }) = serde_json::from_str(text) else {
            return Self::Rendezvous(ErrorDetails::new(text, None));
        };
        let path = path.map(|bytes| PathBuf::from(OsStr::from_bytes(&bytes)));
        let details = ErrorDetails { message, hint, errno, path, source: None };
        match kind {
            WireKind::Options => {
                Self::Options { message: details.message, hint: details.hint.unwrap_or_default() }
            }
            WireKind::Format => Self::Format(details),
            WireKind::Storage => Self::Storage(details),
            WireKind::Stalled => Self::StalledThere(details),
            WireKind::Rendezvous => Self::Rendezvous(details),
            WireKind::Threads => Self::Threads(details),
            WireKind::Memory => Self::NoMemory(details),
            WireKind::Local => Self::Local(details),
            WireKind::PeerEnded => Self::PeerEnded(details),
        }
    }

    /// Why `what`, a thread, could not be started.
    pub(crate) fn threads(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Self {
        move |source| ThreadError::new(what, &source).into()
    }
}

/// What kind of error the leader of a node sends.
#[derive(Serialize, Deserialize)]
enum WireKind {
    Options,
    Format,
    Storage,
    Stalled,
    Rendezvous,
    PeerEnded,
    Threads,
    Memory,
    Local,
}

/// An error as the leader of a node sends it to the other ranks.
#[derive(Serialize, Deserialize)]
struct Wire {
    kind: WireKind,
    message: String,
    hint: Option<String>,
    errno: Option<i32>,
    path: Option<Vec<u8>>,
}

impl From<forebay_format::Error> for Error {
    fn from(error: forebay_format::Error) -> Self {
        use forebay_format::Error as Format;
        let (hint, path) = (error.hint().map(Into::into), error.path().map(Into::into));
        match error {
            Format::Interrupted => Self::Interrupted,
            Format::Usage { message, hint } => Self::Options { message, hint },
            Format::Read(error) => error.into(),
            // A file that has changed is no damaged one, however it was noticed.
            Format::Io { .. } | Format::Modified { .. } => Self::Storage(ErrorDetails::of(error, hint, path)),
            other => Self::Format(ErrorDetails::of(other, hint, path)),
        }
    }
}

impl From<ThreadError> for Error {
    fn from(error: ThreadError) -> Self {
        let (hint, lacks_memory) = (Some(error.hint().to_owned()), error.lacks_memory());
        let details = ErrorDetails::of(error, hint, None);
        if lacks_memory { Self::NoMemory(details) } else { Self::Threads(details) }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        if let ReadError::Threads(error) = error {
            return error.into();
        }
        let path = error.path().map(Into::into);
        if let ReadError::Map { path: mapped, bytes, source } = &error
            && let Some(MemoryRefusal { cause, hint }) = MemoryRefusal::of(*bytes, source)
        {
            let message = format!("{}: cannot map {bytes} bytes: {cause}", mapped.display());
            let hint = format!("{hint}; access=\"pread\" needs no mapping");
            return Self::NoMemory(ErrorDetails::of(error, None, path).reworded(message, &hint));
        }
        let hint = error.hint().map(Into::into);
        Self::Storage(ErrorDetails::of(error, hint, path))
    }
}

impl From<TransportError> for Error {
    fn from(error: TransportError) -> Self {
        if let TransportError::Threads(error) = error {
            return error.into();
        }
        let hint = error.hint().map(str::to_owned);
        Self::Share(ErrorDetails::of(error, hint, None))
    }
}

impl From<TierError> for Error {
    fn from(error: TierError) -> Self {
        let hint = error.hint().map(str::to_owned);
        match error {
            TierError::Threads(error) => error.into(),
            TierError::Host(error) => error.into(),
            TierError::Tier { .. } => {
                Self::Options { message: error.to_string(), hint: hint.unwrap_or_default() }
            }
            TierError::Format { ref path, .. } => {
                let directory = path.parent().unwrap_or(path).display();
                let hint =
                    format!("give the tier another directory, or delete {directory} while no loader uses it");
                Self::Options { message: error.to_string(), hint }
            }
            TierError::Io { ref path, .. } => {
                let path = path.clone();
                Self::Storage(ErrorDetails::of(error, hint, Some(path)))
            }
            TierError::Daemon { .. } | TierError::Protocol { .. } => Self::local(error.to_string()),
        }
    }
}

impl From<HostError> for Error {
    fn from(error: HostError) -> Self {
        RendezvousError::from(error).into()
    }
}

impl From<RendezvousError> for Error {
    fn from(error: RendezvousError) -> Self {
        let error = match error {
            RendezvousError::Interrupted => return Self::Interrupted,
            RendezvousError::Rejected(text) => return Self::from_wire(&text),
            error => error,
        };
        let (class, hint) = (error.class(), error.hint().map(str::to_owned));
        let details = ErrorDetails::of(error, hint, None);
        match class {
            Class::Rendezvous => Self::Rendezvous(details),
            Class::Peers => Self::PeerEnded(details),
            Class::Options => {
                Self::Options { message: details.message, hint: details.hint.unwrap_or_default() }
            }
            Class::Memory => Self::NoMemory(details),
            Class::System => Self::Local(details),
        }
    }
}

impl From<LinkError> for Error {
    fn from(error: LinkError) -> Self {
        let error = match error {
            LinkError::Interrupted => return Self::Interrupted,
            LinkError::Closed => return Self::Closed,
            LinkError::Threads(error) => return error.into(),
            LinkError::Usage { message } => return Self::Options { message, hint: String::new() },
            error => error,
        };
        let kind = match error {
            LinkError::Missing { .. }
            | LinkError::Unreachable { .. }
            | LinkError::Abandoned { after_loss: false, .. } => Self::Rendezvous,
            LinkError::System { .. } | LinkError::TooLarge { .. } => Self::Local,
            _ => Self::PeerEnded,
        };
        let hint = error.hint().map(str::to_owned);
        kind(ErrorDetails::of(error, hint, None))
    }
}

impl From<OptionError> for Error {
    fn from(OptionError { message, hint }: OptionError) -> Self {
        Self::Options { message, hint }
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

    fn eio() -> io::Error {
        io::Error::from_raw_os_error(libc::EIO)
    }

    fn details(error: &Error) -> (String, Option<String>, Option<i32>, Option<PathBuf>) {
        let details = error.details();
        (
            error.to_string(),
            error.hint().map(Into::into),
            details.and_then(ErrorDetails::errno),
            details.and_then(ErrorDetails::path).map(Into::into),
        )
    }

    #[test]
    fn an_error_of_the_leader_reaches_the_others_as_the_same_kind() {
        let plain = || ErrorDetails::new("too little", Some("more"));
        let path = PathBuf::from(OsStr::from_bytes(b"/data/\xff"));
        let failed = ReadError::Open { path: path.clone(), action: "open", source: eio() };
        for error in [
            Error::Options { message: "too little".into(), hint: "more".into() },
            Error::Format(ErrorDetails::new("not LMDB", None)),
            failed.into(),
            Error::StalledThere(plain()),
            Error::disagree("seed"),
            Error::Threads(plain()),
            Error::NoMemory(plain()),
            Error::Local(plain()),
            Error::PeerEnded(plain()),
        ] {
            let sent = Error::from_wire(&error.to_wire());
            assert_eq!(std::mem::discriminant(&sent), std::mem::discriminant(&error));
            assert_eq!(details(&sent), details(&error));
        }
        let stalled = Error::Stalled { seconds: 3, what: "open".into() };
        assert!(matches!(Error::from_wire(&stalled.to_wire()), Error::StalledThere(_)));
        assert!(matches!(Error::from_wire("gone"), Error::Rendezvous(text) if text.to_string() == "gone"));
    }

    #[test]
    fn what_failed_keeps_its_source_errno_and_path() {
        let path = PathBuf::from("/data/x");
        let read = |source| ReadError::Io {
            path: path.clone(),
            offset: 5,
            length: 7,
            attempts: 1,
            known: false,
            source,
        };
        let error = Error::from(read(eio()));
        assert!(matches!(&error, Error::Storage(_)));
        let cause = StdError::source(&error).and_then(|source| source.downcast_ref::<ReadError>());
        assert!(matches!(cause, Some(ReadError::Io { offset: 5, length: 7, .. })));
        let (_, _, errno, named) = details(&error);
        assert_eq!((errno, named), (Some(libc::EIO), Some(path.clone())));

        let opened = forebay_format::Error::Io {
            action: "open".into(),
            path: path.clone(),
            offset: None,
            source: eio(),
        };
        let (_, _, errno, named) = details(&opened.into());
        assert_eq!((errno, named), (Some(libc::EIO), Some(path)));
    }

    #[test]
    fn a_file_that_has_changed_is_storage_that_failed_however_it_is_noticed() {
        let path = PathBuf::from("/data/x");
        let [what, expected, found] = ["size", "2 bytes", "1 bytes"].map(str::to_owned);
        let bytes = (2, 1);
        for error in [
            forebay_format::Error::Modified { path: path.clone(), what, expected, found }.into(),
            ReadError::Size { path: path.clone(), expected: bytes.0, found: bytes.1 }.into(),
            ReadError::Truncated {
                path: path.clone(),
                offset: 1,
                length: 1,
                expected: bytes.0,
                found: bytes.1,
            }
            .into(),
            ReadError::Replaced {
                path: path.clone(),
                expected_bytes: bytes.0,
                expected_ns: 1,
                found_bytes: bytes.1,
                found_ns: 2,
            }
            .into(),
        ] {
            let error: Error = error;
            assert!(
                matches!(&error, Error::Storage(details) if details.path() == Some(path.as_path())),
                "{error}"
            );
            assert!(matches!(&error, Error::Storage(details) if details.errno().is_none()), "{error}");
        }
    }
}
