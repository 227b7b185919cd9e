//! Where the parts of a table are in its file.
//!
//! ```text
//! part 1, written by the daemon      header, levels, prefixes, records, three indexes
//! part 2, written by all processes   counters, stale marks, foreign files, wish ring
//! ```
//!
//! All positions are counted in words of 8 bytes.

use core::ops::Range;

use crate::bytes::WORD_BYTES;
use crate::counter::COUNTER_WORDS;
use crate::devices::MAX_DEVICES;
use crate::error::TableError;
use crate::record::MAX_LEVELS;
use crate::records::{RECORD_WORDS, index_words};
use crate::wishes::ring_words;

/// Largest number of source prefixes.
pub const MAX_PREFIXES: usize = 16;
/// Longest path of a level.
pub const MAX_LEVEL_PATH_BYTES: usize = 255;
/// Longest path of a source prefix.
pub const MAX_PREFIX_PATH_BYTES: usize = 1015;
/// Largest number of records.
pub const MAX_CAPACITY: u32 = 1 << 28;
/// Words that remember files which are no sources.
const FOREIGN_WORDS: usize = 16384;
/// Largest number of wishes in the ring.
const MAX_WISHES: u32 = 1 << 20;

pub const MAGIC: u64 = u64::from_le_bytes(*b"FBFTABLE");
pub const VERSION: u32 = 2;

/// The generation of a table that is not maintained any more.
pub const RETIRED: u64 = u64::MAX;

pub const MAGIC_WORD: usize = 0;
/// Version (low half) and flags.
pub const VERSION_WORD: usize = 1;
pub const BYTES_WORD: usize = 2;
pub const GENERATION_WORD: usize = 3;
pub const PART_1_BYTES_WORD: usize = 4;
pub const CAPACITY_WORD: usize = 5;
pub const WISHES_WORD: usize = 6;
pub const LEVELS_WORD: usize = 7;
pub const PREFIXES_WORD: usize = 8;
pub const RECORDS_WORD: usize = 9;
const FIRST_DEVICE_WORD: usize = 32;
pub const HEADER_WORDS: usize = FIRST_DEVICE_WORD + MAX_DEVICES;

/// State (first word), seven zeros, path with its zero.
pub const LEVEL_WORDS: usize = 40;
pub const LEVEL_PATH_WORD: usize = 8;
/// Device (first word), path with its zero.
pub const PREFIX_WORDS: usize = 128;
pub const PREFIX_PATH_WORD: usize = 1;

const FIRST_LEVEL_WORD: usize = HEADER_WORDS;
const FIRST_PREFIX_WORD: usize = FIRST_LEVEL_WORD + MAX_LEVELS * LEVEL_WORDS;
const FIRST_RECORD_WORD: usize = FIRST_PREFIX_WORD + MAX_PREFIXES * PREFIX_WORDS;

/// Part 2 begins at a multiple of this: the largest page of the machines that we know.
const PART_ALIGNMENT: usize = 65536;
const CACHE_LINE_WORDS: usize = 8;

/// The places of all parts of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    capacity: u32,
    wishes: u32,
}

impl Layout {
    /// A table for so many records, with a ring of so many wishes (a power of two).
    pub fn new(capacity: u32, wishes: u32) -> Result<Self, TableError> {
        if capacity == 0 || capacity > MAX_CAPACITY {
            return Err(TableError::Header { field: "capacity", found: capacity.into() });
        }
        if !wishes.is_power_of_two() || wishes > MAX_WISHES {
            return Err(TableError::Header { field: "number of wishes", found: wishes.into() });
        }
        Ok(Self { capacity, wishes })
    }

    /// Largest number of records.
    #[must_use]
    pub fn capacity(self) -> u32 {
        self.capacity
    }

    /// Entries of the wish ring.
    #[must_use]
    pub fn wishes(self) -> u32 {
        self.wishes
    }

    /// Length of the file.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.part_1_bytes() + self.ring().end * WORD_BYTES
    }

    /// Length of part 1, which is the offset of part 2.
    #[must_use]
    pub fn part_1_bytes(self) -> usize {
        (self.indexes().end * WORD_BYTES).next_multiple_of(PART_ALIGNMENT)
    }

    /// The devices, in the header.
    pub(crate) fn devices() -> Range<usize> {
        FIRST_DEVICE_WORD..HEADER_WORDS
    }

    pub(crate) fn level(level: usize) -> Range<usize> {
        let first = FIRST_LEVEL_WORD + level * LEVEL_WORDS;
        first..first + LEVEL_WORDS
    }

    pub(crate) fn prefix(prefix: usize) -> Range<usize> {
        let first = FIRST_PREFIX_WORD + prefix * PREFIX_WORDS;
        first..first + PREFIX_WORDS
    }

    /// The records, in part 1.
    pub(crate) fn records(self) -> Range<usize> {
        FIRST_RECORD_WORD..FIRST_RECORD_WORD + self.capacity as usize * RECORD_WORDS
    }

    /// The three indexes, in part 1.
    pub(crate) fn indexes(self) -> Range<usize> {
        let first = self.records().end;
        first..first + 3 * index_words(self.capacity)
    }

    /// The counters, in part 2.
    pub(crate) fn counters() -> Range<usize> {
        0..COUNTER_WORDS
    }

    /// One bit per record, in part 2.
    pub(crate) fn marks(self) -> Range<usize> {
        let words = self.capacity.div_ceil(u64::BITS) as usize;
        COUNTER_WORDS..COUNTER_WORDS + words.next_multiple_of(CACHE_LINE_WORDS)
    }

    /// The memory of files that are no sources, in part 2.
    pub(crate) fn foreign(self) -> Range<usize> {
        let first = self.marks().end;
        first..first + FOREIGN_WORDS
    }

    /// The wish ring, in part 2.
    pub(crate) fn ring(self) -> Range<usize> {
        let first = self.foreign().end;
        first..first + ring_words(self.wishes)
    }
}
