//! The table as programs read it.

use crate::bytes::WORD_BYTES;
use crate::error::TableError;
use crate::header::{Flags, ServingState, TableHeader};
use crate::layout::{Layout, MAX_LEVEL_PATH_BYTES};
use crate::record::CopyFile;
use crate::records::Records;
use crate::sync::atomic::AtomicU64;

const FILES: &[u8] = b"/files/";
const DIGITS: usize = 16;
/// Longest path of a copy, without its zero.
pub const MAX_COPY_PATH_BYTES: usize = MAX_LEVEL_PATH_BYTES + FILES.len() + DIGITS;

/// The path of a copy, with a zero at its end.
#[derive(Clone, Copy, Debug)]
pub struct CopyPath {
    bytes: [u8; MAX_COPY_PATH_BYTES + 1],
    length: usize,
}

impl CopyPath {
    /// The path with the zero at its end.
    #[must_use]
    pub fn with_zero(&self) -> &[u8] {
        &self.bytes[..=self.length]
    }
}

/// The table as programs read it: part 1 of the file.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    header: TableHeader<'a>,
    layout: Layout,
    generation: u64,
    records: Records<'a>,
}

impl<'a> Table<'a> {
    /// Reads a table. `words` is the memory of the file, or at least of its part 1.
    pub fn open(words: &'a [AtomicU64]) -> Result<Self, TableError> {
        let (header, layout) = TableHeader::read(words)?;
        let short = TableError::Short {
            expected_bytes: layout.part_1_bytes() as u64,
            found_bytes: (words.len() * WORD_BYTES) as u64,
        };
        let records = words.get(layout.records()).ok_or(short)?;
        let indexes = words.get(layout.indexes()).ok_or(short)?;
        let devices = words.get(Layout::devices()).ok_or(short)?;
        let records = Records::new(devices, records, indexes, layout.capacity());
        Ok(Self { header, layout, generation: header.generation(), records })
    }

    /// Where the parts are.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether the daemon still maintains this table; if not, nothing new may be served from it.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.header.generation() == self.generation
    }

    /// How the table is used.
    #[must_use]
    pub fn flags(&self) -> Flags {
        self.header.flags()
    }

    /// How many records are taken.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.header.records()
    }

    /// Whether there are no records.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The records.
    #[must_use]
    pub fn records(&self) -> &Records<'a> {
        &self.records
    }

    /// Whether copies of a level are served; a level that does not exist is out.
    #[must_use]
    pub fn level_state(&self, level: u8) -> ServingState {
        self.header.level_state(level)
    }

    /// Whether sources are on this device.
    #[must_use]
    pub fn is_source_device(&self, device: u64) -> bool {
        self.header.is_source_device(device)
    }

    /// Whether a path, as it is written, is one of a source on this device.
    #[must_use]
    pub fn is_source_path(&self, device: u64, path: &[u8]) -> bool {
        self.header.is_source_path(device, path)
    }

    /// Whether a path, as it is written, is one of a source. Others may be mounted below it.
    #[must_use]
    pub fn is_below_source(&self, path: &[u8]) -> bool {
        self.header.is_below_source(path)
    }

    /// The path of a copy; `None` if its level does not exist.
    #[must_use]
    pub fn path_of(&self, copy: &CopyFile) -> Option<CopyPath> {
        let mut directory = [0; MAX_LEVEL_PATH_BYTES + 1];
        let length = self.header.level_path(copy.level, &mut directory)?;
        let mut path =
            CopyPath { bytes: [0; MAX_COPY_PATH_BYTES + 1], length: length + FILES.len() + DIGITS };
        path.bytes[..length].copy_from_slice(&directory[..length]);
        path.bytes[length..length + FILES.len()].copy_from_slice(FILES);
        for digit in 0..DIGITS {
            let value = (copy.number >> (4 * (DIGITS - 1 - digit)) & 0xf) as usize;
            path.bytes[length + FILES.len() + digit] = b"0123456789abcdef"[value];
        }
        Some(path)
    }
}
