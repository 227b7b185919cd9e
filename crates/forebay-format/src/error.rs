//! Errors about files, with advice to the user.
//!
//! Four kinds stay apart: wrong use by the caller ([`Error::Usage`]), bad data ([`Error::Corrupt`],
//! [`Error::Schema`], [`Error::Sidecar`], [`Error::Unsupported`]), storage ([`Error::Read`],
//! [`Error::Io`], and [`Error::Modified`] for a file that has changed), and broken invariants,
//! which panic.

use std::io;
use std::path::{Path, PathBuf};

use forebay_io::ReadError;

/// Failure of opening, indexing or checking a dataset.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A data file could not be opened or read.
    #[error(transparent)]
    Read(ReadError),
    /// The operating system refused something else.
    #[error("{}: cannot {action}{}: {source}", path.display(), at(*offset))]
    Io {
        /// What was attempted, for example `open the folder`.
        action: String,
        /// The file.
        path: PathBuf,
        /// Where in the file, if anywhere [bytes].
        offset: Option<u64>,
        /// The system's answer.
        source: io::Error,
    },
    /// The bytes contradict the format.
    #[error("{}: {what} at offset {offset}: expected {expected}, found {found}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in the file [bytes].
        offset: u64,
        /// Which thing is wrong, for example `lmdb page 17: page number`.
        what: String,
        /// What a valid file has there.
        expected: String,
        /// What this file has there.
        found: String,
    },
    /// The file is valid but of a kind that is not supported.
    #[error("{}: not supported: {what} ({found})", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Which feature.
        what: String,
        /// What was found.
        found: String,
        /// Advice to the user.
        hint: String,
    },
    /// A record does not fit the schema of its dataset.
    #[error("{}: sample {sample}, at offset {offset}: {source}", path.display())]
    Schema {
        /// The data file.
        path: PathBuf,
        /// Ordinal of the sample.
        sample: u64,
        /// Where the record starts [bytes from the start of the file].
        offset: u64,
        /// What does not fit.
        source: Box<SchemaError>,
    },
    /// The index of a dataset cannot be used.
    #[error("{}: its sidecar cannot be used: {source}", path.display())]
    Sidecar {
        /// The first data file of the dataset.
        path: PathBuf,
        /// What is wrong.
        source: Box<SidecarError>,
    },
    /// A writer changed the file while it was in use.
    #[error("{}: the file was modified while it was open: {what}: expected {expected}, found {found}", path.display())]
    Modified {
        /// The file.
        path: PathBuf,
        /// Which sign of a change.
        what: String,
        /// As it was when opened.
        expected: String,
        /// As it is now.
        found: String,
    },
    /// The request of the caller cannot be met.
    #[error("{message}")]
    Usage {
        /// The request, and why it cannot be met.
        message: String,
        /// Advice to the user; may be empty.
        hint: String,
    },
    /// The progress callback asked to stop.
    #[error("interrupted")]
    Interrupted,
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at offset {offset}"))
}

impl Error {
    /// The file that it is about.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Read(error) => error.path(),
            Self::Io { path, .. }
            | Self::Corrupt { path, .. }
            | Self::Unsupported { path, .. }
            | Self::Schema { path, .. }
            | Self::Sidecar { path, .. }
            | Self::Modified { path, .. } => Some(path),
            Self::Usage { .. } | Self::Interrupted => None,
        }
    }

    /// Advice that goes below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Read(error) => error.hint(),
            Self::Unsupported { hint, .. } | Self::Usage { hint, .. } if !hint.is_empty() => Some(hint),
            Self::Schema { .. } => Some("read the records undecoded with schema=\"raw\""),
            Self::Sidecar { .. } => Some("build it again with `forebay index`"),
            Self::Corrupt { .. } => Some("the file may be truncated or damaged; copy or rebuild it"),
            Self::Io { source, .. } if is_out_of_files(source) => Some(
                "each shard stays open: raise the limit on open files, `ulimit -n`, or use fewer and larger shards",
            ),
            Self::Modified { .. } => Some("train on a file without writers, for example a copy of it"),
            _ => None,
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            // The file may be valid, but the wrong one.
            ReadError::NoFile { path, found } => {
                let hint = "name a data file, or the directory of an LMDB database".to_owned();
                Self::Unsupported {
                    path,
                    what: "a data file that is not a regular file".to_owned(),
                    found,
                    hint,
                }
            }
            error => Self::Read(error),
        }
    }
}

/// A record that does not fit its schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset} of the record: expected {expected}, found {found}")]
pub struct SchemaError {
    /// Which thing is wrong.
    pub what: String,
    /// Where in the record \[bytes\].
    pub offset: u64,
    /// What the schema has there.
    pub expected: String,
    /// What the record has there.
    pub found: String,
}

impl SchemaError {
    #[allow(clippy::needless_pass_by_value, reason = "callers pass numbers and strings alike")]
    pub(crate) fn new(
        what: impl Into<String>,
        offset: u64,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self { what: what.into(), offset, expected: expected.to_string(), found: found.to_string() }
    }
}

/// What is wrong with a sidecar as a whole.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SidecarError {
    /// It does not begin like one.
    #[error("it is not a sidecar: expected the magic number {expected:02x?}, found {found:02x?}")]
    Magic {
        /// The first bytes of a sidecar.
        expected: [u8; 8],
        /// The first bytes.
        found: Vec<u8>,
    },
    /// Another version of Forebay wrote it.
    #[error("it has version {found}; this Forebay reads version {expected}")]
    Version {
        /// The version that is read.
        expected: u32,
        /// The version it names.
        found: u32,
    },
    /// It describes another dataset, or an earlier state of this one.
    #[error("it is stale: expected fingerprint {expected:032x}, found {found:032x}")]
    Stale {
        /// The dataset's.
        expected: u128,
        /// The sidecar's.
        found: u128,
    },
    /// A change that the fingerprint does not show.
    #[error("it is stale: {what}: expected {expected}, found {found}")]
    Outdated {
        /// What changed.
        what: String,
        /// As it was.
        expected: String,
        /// As it is.
        found: String,
    },
    /// Its bytes contradict each other.
    #[error("it is damaged: {what} at offset {offset}: expected {expected}, found {found}")]
    Damaged {
        /// Where in the sidecar \[bytes\].
        offset: u64,
        /// Which thing is wrong.
        what: String,
        /// What a valid sidecar has there.
        expected: String,
        /// What this one has there.
        found: String,
    },
}

impl SidecarError {
    #[allow(clippy::needless_pass_by_value, reason = "callers pass numbers and strings alike")]
    /// [`Self::Damaged`], with numbers or strings.
    pub fn damaged(
        offset: usize,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self::Damaged {
            offset: offset as u64,
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

/// Whether the system has no descriptor left.
fn is_out_of_files(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Bytes as hexadecimal pairs, for messages.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.join(" ")
}
