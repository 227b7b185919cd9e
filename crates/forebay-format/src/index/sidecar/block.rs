//! One block of a sidecar: the locations of up to [`super::BLOCK_RECORDS`] records, coded so that
//! regular ones are free.
//!
//! [`IndexEntry`] is a record as formats describe it. [`super::encode`] encodes many of them, and
//! [`mod@super::decode`] expands them to a [`Block`], in which the location of a record is a
//! look-up.

use std::ops::Range;

/// Class number of a record that is described in full.
pub(super) const EXCEPTION: u8 = 255;

/// Offsets share a word with the class: they stay below this \[bytes\].
pub(crate) const OFFSET_LIMIT: u64 = 1 << 56;

/// Code mode: indexes and codes of the records that are not where they were expected.
pub(super) const SPARSE: u8 = 0;
/// Code mode: the codes of all records as byte planes.
pub(super) const DENSE: u8 = 1;

/// Where the bytes of one sample's column are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexEntry {
    /// One extent, as described by its class.
    Plain {
        /// Number of the class in its column.
        class: u8,
        /// Start of the extent, head included [bytes from the start of the file].
        start: u64,
        /// Length of the record, head and tail not included \[bytes\].
        length: u64,
    },
    /// Anything else.
    Exception(Vec<Part>),
}

/// One unit and the slice of it that belongs to a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The unit's encoded bytes.
    pub pieces: Vec<PartPiece>,
    /// Number of the codec chain; 0: stored.
    pub codecs: u16,
    /// Size of the unit after decoding \[bytes\].
    pub decoded_bytes: u64,
    /// What the format checks the unit against; 0 for nothing.
    pub guard: u64,
    /// First byte of the slice in the decoded unit.
    pub offset: u64,
    /// Length of the slice \[bytes\].
    pub length: u64,
}

/// A stretch of a unit's encoded bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartPiece {
    /// Bytes of the shard.
    Extent {
        /// First byte [bytes from the start of the file].
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Bytes that are in no file.
    Literal(Vec<u8>),
}

impl PartPiece {
    /// Length \[bytes\].
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Extent { length, .. } => *length,
            Self::Literal(bytes) => bytes.len() as u64,
        }
    }
}

/// Limits on the contents of a block body.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Number of records.
    pub(crate) records: usize,
    /// Where data may lie in the shard \[bytes\].
    pub(crate) data: Range<u64>,
    /// Where data may lie in the decoded bytes of the column's shared units \[bytes\].
    pub(crate) decoded: Range<u64>,
    /// Shortest and longest record of the dataset \[bytes\].
    pub(crate) lengths: (u64, u64),
    /// Number of codec chains.
    pub(crate) chains: usize,
}

/// What is wrong with a block.
#[derive(Debug)]
pub(crate) struct BlockError {
    pub(crate) what: String,
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl BlockError {
    #[allow(clippy::needless_pass_by_value, reason = "callers pass numbers and strings alike")]
    pub(crate) fn new(what: impl Into<String>, expected: impl Into<String>, found: impl ToString) -> Self {
        Self { what: what.into(), expected: expected.into(), found: found.to_string() }
    }

    pub(super) fn short() -> Self {
        Self::new("block body", "more bytes", "its end")
    }
}

/// A block, expanded.
#[derive(Debug)]
pub(crate) struct Block {
    pub(super) places: RecordLocations,
    pub(super) exceptions: Vec<Vec<Part>>,
}

/// The records of a block.
#[derive(Debug)]
pub(super) enum RecordLocations {
    Each(Vec<RecordLocation>),
    Runs(Runs),
}

/// Records of one class and one length at regular distances, except for a few leaps. Takes a
/// hundredth of the memory and of the time to expand.
#[derive(Debug)]
pub(super) struct Runs {
    pub(super) class: u8,
    pub(super) length: u64,
    /// From one record of a run to the next, as a number that wraps.
    pub(super) stride: u64,
    /// For each run the index of its first record, and where that starts
    /// [bytes from the start of the file].
    pub(super) starts: Vec<(u32, u64)>,
}

/// One record: 16 bytes, so that one cache line answers for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    /// Start of the extent times 256 plus the class.
    pub(super) packed: u64,
    /// Length of the record, or the number of the exception.
    pub(super) length: u64,
}

impl Block {
    /// Memory that the block takes \[bytes\].
    pub(crate) fn bytes(&self) -> u64 {
        let parts: usize =
            self.exceptions.iter().map(|parts| parts.iter().map(Part::bytes).sum::<usize>()).sum();
        let places = match &self.places {
            RecordLocations::Each(places) => size_of_val(places.as_slice()),
            RecordLocations::Runs(runs) => size_of_val(runs.starts.as_slice()),
        };
        (size_of::<Self>() + places + size_of_val(self.exceptions.as_slice()) + parts) as u64
    }

    /// The `index`-th record; it must be one of the block's.
    #[inline]
    pub(crate) fn place(&self, index: usize) -> RecordLocation {
        match &self.places {
            RecordLocations::Each(places) => places[index],
            RecordLocations::Runs(runs) => {
                let run = runs.starts.partition_point(|(first, _)| *first as usize <= index) - 1;
                let (first, start) = runs.starts[run];
                let start = start.wrapping_add(runs.stride.wrapping_mul(index as u64 - u64::from(first)));
                RecordLocation { packed: start << 8 | u64::from(runs.class), length: runs.length }
            }
        }
    }

    /// The parts of a place of this block that [is an exception](RecordLocation::is_exception).
    pub(crate) fn exception(&self, place: RecordLocation) -> &[Part] {
        &self.exceptions[place.length as usize]
    }
}

impl RecordLocation {
    /// Whether the record is described in full.
    pub(crate) fn is_exception(self) -> bool {
        self.packed as u8 == EXCEPTION
    }

    /// Class, start and length of a record that is no exception.
    pub(crate) fn plain(self) -> (u8, u64, u64) {
        (self.packed as u8, self.packed >> 8, self.length)
    }
}

impl Part {
    fn bytes(&self) -> usize {
        let literals: usize = self
            .pieces
            .iter()
            .map(|piece| if let PartPiece::Literal(bytes) = piece { bytes.len() } else { 0 })
            .sum();
        size_of::<Self>() + size_of_val(self.pieces.as_slice()) + literals
    }
}
