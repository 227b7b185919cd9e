//! What can go wrong between a file and memory.

use std::io;
use std::path::{Path, PathBuf};

use forebay_host::ThreadError;

/// Failure of opening, mapping or reading a shard.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file could not be opened or inspected.
    #[error("{}: cannot {action}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What was attempted, for example `open for reading`.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A path leads to something else than a regular file.
    #[error("{}: cannot read: not a regular file but {found}", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
        /// What kind of file it is.
        found: String,
    },
    /// A file has another size than the index says.
    #[error("{}: size of the file: expected {expected} bytes, found {found}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Size that the index was made for \[bytes\].
        expected: u64,
        /// Size of the file \[bytes\].
        found: u64,
    },
    /// The file ended before the bytes that were asked for.
    #[error(
        "{}: read of {length} bytes at offset {offset}: the file is truncated: expected {expected} bytes, file has {found}",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the missing bytes should start [bytes from the start of the file].
        offset: u64,
        /// How many are missing \[bytes\].
        length: u64,
        /// Size that the index was made for \[bytes\].
        expected: u64,
        /// Size of the file \[bytes\].
        found: u64,
    },
    /// The operating system refused to read.
    #[error(
        "{}: cannot read {length} bytes at offset {offset} ({attempts} attempt{}{}): {source}",
        path.display(),
        if *attempts == 1 { "" } else { "s" },
        if *known { ", as reads around it have failed" } else { "" }
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// First byte [bytes from the start of the file].
        offset: u64,
        /// Length \[bytes\].
        length: u64,
        /// How often it was tried.
        attempts: u32,
        /// Whether it was tried once because a read of the same part of the file had failed before.
        known: bool,
        /// The system's answer to the last attempt.
        source: io::Error,
    },
    /// The file handle went stale and the path leads to another file now.
    #[error(
        "{}: the file was replaced while it was in use: expected {expected_bytes} bytes modified at {expected_ns} ns, \
         found {found_bytes} bytes modified at {found_ns} ns",
        path.display()
    )]
    Replaced {
        /// The file.
        path: PathBuf,
        /// Size when it was opened \[bytes\].
        expected_bytes: u64,
        /// Last change when it was opened [ns since 1970].
        expected_ns: i128,
        /// Size now \[bytes\].
        found_bytes: u64,
        /// Last change now [ns since 1970].
        found_ns: i128,
    },
    /// Bytes were asked for that the file never had.
    #[error("{}: read of {length} bytes at offset {offset}: expected a range inside {bytes} bytes", path.display())]
    Beyond {
        /// The file.
        path: PathBuf,
        /// First byte [bytes from the start of the file].
        offset: u64,
        /// Length \[bytes\].
        length: u64,
        /// Size of the file \[bytes\].
        bytes: u64,
    },
    /// A file could not be mapped.
    #[error("{}: cannot map {bytes} bytes: {source}", path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// Size of the mapping \[bytes\].
        bytes: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// A thread that was to read could not be started.
    #[error(transparent)]
    Threads(ThreadError),
    /// The caller asked for something that cannot be measured.
    #[error("{}: {message}", path.display())]
    Usage {
        /// The file or directory.
        path: PathBuf,
        /// What was asked and why it cannot be.
        message: String,
    },
}

impl ReadError {
    /// The file that it is about.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Open { path, .. }
            | Self::NoFile { path, .. }
            | Self::Size { path, .. }
            | Self::Truncated { path, .. }
            | Self::Io { path, .. }
            | Self::Replaced { path, .. }
            | Self::Beyond { path, .. }
            | Self::Map { path, .. }
            | Self::Usage { path, .. } => Some(path),
            Self::Threads(_) => None,
        }
    }

    /// Advice that goes below the message, if there is any.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Size { .. } => {
                Some("the file was written after its index; `forebay index` on the folder builds it again")
            }
            Self::Truncated { .. } | Self::Replaced { .. } => {
                Some("train on a file that nobody writes, for example a copy of it")
            }
            Self::Beyond { .. } => {
                Some("the index may belong to another file; build it again with `forebay index`")
            }
            Self::Io { source, .. } | Self::Open { source, .. } => match source.raw_os_error() {
                Some(libc::EIO) => {
                    Some("the storage reports a hardware or connection error; its log says more")
                }
                Some(libc::ESTALE) => {
                    Some("the file was removed or its server restarted; is it still there?")
                }
                Some(libc::EACCES | libc::EPERM) => {
                    Some("check the permissions of the file and of its directories")
                }
                Some(libc::EMFILE | libc::ENFILE) => Some(
                    "each shard stays open: raise the limit on open files, `ulimit -n`, or use fewer and larger shards",
                ),
                _ => None,
            },
            Self::Map { .. } => Some("`ulimit -v` may be too small; access=\"pread\" needs no mapping"),
            Self::Threads(error) => Some(error.hint()),
            Self::NoFile { .. } => Some("name a data file, or the directory of an LMDB database"),
            Self::Usage { .. } => None,
        }
    }
}
