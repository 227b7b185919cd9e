//! Errors of the parsing code, before a path is attached.
//!
//! The code that checks pages does not know the name of their file; [`WalkError::at`] makes an
//! [`Error`].

use std::fmt;
use std::path::Path;

use forebay_io::ReadError;

use crate::Error;

/// Bytes that contradict the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageError {
    /// Where [bytes from the start of the file].
    pub offset: u64,
    /// Which thing is wrong.
    pub what: String,
    /// What a valid file has there.
    pub expected: String,
    /// What this file has there.
    pub found: String,
}

impl PageError {
    /// A finding at `offset`.
    pub(crate) fn new(
        offset: u64,
        what: impl Into<String>,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self { offset, what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }

    /// The error about the file at `path`.
    #[must_use]
    pub fn at(self, path: &Path) -> Error {
        let Self { offset, what, expected, found } = self;
        Error::Corrupt { path: path.to_owned(), offset, what, expected, found }
    }
}

/// Anything that ends the reading of a file.
#[derive(Debug)]
pub(crate) enum WalkError {
    /// The bytes contradict the format.
    PageError(PageError),
    /// The file is apparently valid, but of a kind that is not supported.
    Unsupported { what: &'static str, found: String, hint: String },
    /// The operating system refused to read.
    Read(ReadError),
    /// The caller's callback gave up.
    Stopped(Box<Error>),
}

impl WalkError {
    /// The error about the file at `path`.
    pub(crate) fn at(self, path: &Path) -> Error {
        match self {
            Self::PageError(error) => error.at(path),
            Self::Unsupported { what, found, hint } => {
                Error::Unsupported { path: path.to_owned(), what: what.to_owned(), found, hint }
            }
            Self::Read(error) => error.into(),
            Self::Stopped(error) => *error,
        }
    }
}

impl From<PageError> for WalkError {
    fn from(error: PageError) -> Self {
        Self::PageError(error)
    }
}

impl From<Error> for WalkError {
    fn from(error: Error) -> Self {
        Self::Stopped(Box::new(error))
    }
}

/// Flags as hexadecimal digits.
pub(crate) fn hex16(flags: u16) -> String {
    format!("{flags:#06x}")
}
