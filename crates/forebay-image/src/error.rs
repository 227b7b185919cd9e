//! The error of an image that cannot be decoded.

/// Why an image cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("{what} at byte {offset}: expected {expected}, found {found}")]
pub struct ImageError {
    /// Which thing is wrong.
    pub what: String,
    /// Where in the image \[bytes\].
    pub offset: u64,
    /// What the decoder takes.
    pub expected: String,
    /// What the image has.
    pub found: String,
}

impl ImageError {
    pub(crate) fn new(
        what: impl Into<String>,
        offset: usize,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self { what: what.into(), offset: offset as u64, expected: expected.into(), found: found.into() }
    }
}
