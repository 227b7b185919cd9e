//! What is wrong with a sidecar as a whole.

use super::{MAGIC, VERSION};

/// What is wrong with a sidecar as a whole.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SidecarFault {
    /// It does not begin like one.
    #[error("it is no sidecar: expected the magic number {MAGIC:02x?}, found {found:02x?}")]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// Another version of Forebay wrote it.
    #[error("it has version {found}; this Forebay reads version {VERSION}")]
    Version {
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
    /// Something changed that the fingerprint does not tell.
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
        /// What a sound one has there.
        expected: String,
        /// What this one has there.
        found: String,
    },
}

impl SidecarFault {
    #[allow(clippy::needless_pass_by_value, reason = "callers pass numbers and texts alike")]
    pub(crate) fn damaged(
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
