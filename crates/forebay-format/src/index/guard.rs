//! Checks of a unit that readers make once its bytes are read.

use std::path::Path;

use forebay_types::Extent;

use crate::container::lmdb::{Identity, check_overflow_header};
use crate::container::tfrecord::{check_parts, check_record};
use crate::index::sidecar::ShardState;
use crate::{Error, Format};

/// How the units of a shard are checked.
#[derive(Clone, Debug)]
pub(super) enum Guard {
    /// Nothing can be checked.
    None,
    /// The header of an overflow run precedes a big value (LMDB).
    OverflowHeader(Box<Identity>),
    /// A record has a checksum of its length and one of its data (`TFRecord`).
    RecordChecksum,
}

impl Guard {
    /// The guard of a shard in this state.
    pub(super) fn of(format: Format, state: &ShardState) -> Self {
        match state {
            ShardState::Lmdb(identity) => Self::OverflowHeader(Box::new(identity.clone())),
            ShardState::File { .. } if format == Format::TfRecord => Self::RecordChecksum,
            ShardState::File { .. } => Self::None,
        }
    }

    /// Checks the first bytes of a unit, which begins at `extent`, against the number in its
    /// location.
    pub(super) fn check_head(
        &self,
        number: u64,
        extent: Extent,
        head: &[u8],
        path: &Path,
    ) -> Result<(), Error> {
        let Self::OverflowHeader(identity) = self else { return Ok(()) };
        let length = extent.length.saturating_sub(u64::from(identity.dialect.header_bytes()));
        check_overflow_header(identity, number, length, head).map_err(|error| error.at(path))
    }

    /// Checks the data of a record, which begins at `start`, against the bytes before and after
    /// them.
    pub(super) fn check_data(
        &self,
        [head, data, tail]: [&[u8]; 3],
        start: u64,
        path: &Path,
    ) -> Result<(), Error> {
        match self {
            Self::RecordChecksum => check_parts(head, data, tail, start, path),
            Self::None | Self::OverflowHeader(_) => Ok(()),
        }
    }

    /// Checks a record that was read whole.
    pub(super) fn check_record(&self, unit: &[u8], start: u64, path: &Path) -> Result<(), Error> {
        match self {
            Self::RecordChecksum => check_record(unit, start, path),
            Self::None | Self::OverflowHeader(_) => Ok(()),
        }
    }
}
