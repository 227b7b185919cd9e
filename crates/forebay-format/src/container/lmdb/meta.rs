//! The two meta pages: which snapshot of the database is read.
//!
//! Pages 0 and 1 describe one snapshot each; transaction N writes page N & 1, and the larger
//! transaction number wins. Both must be valid. A reader without the lock file may see a
//! half-written meta page, so an inconsistent pair is read once more before it is refused.

use std::fmt;

use super::page_reads::{read_all, read_most};
use crate::file::{Input, IoCounters};
use crate::unit_check::lmdb_dialect::{Dialect, MAGIC, MIN_PAGE_BYTES, Version};
use crate::unit_check::lmdb_identity::TreeRecord;
use crate::unit_check::lmdb_page_error::{PageError, WalkError, hex16};

/// First read of a file \[bytes\]: both meta pages of a database with pages of 4 KiB.
const FIRST_READ_BYTES: usize = 8192;

/// Page type bit of a meta page.
const PAGE_IS_META: u16 = 8;

/// Environment flag: pages are encrypted (LMDB 1.0).
const ENVIRONMENT_IS_ENCRYPTED: u16 = 0x2000;

/// Longest checksum that is accepted \[bytes\].
const MAX_CHECKSUM_BYTES: u16 = 256;

/// Deepest tree that LMDB makes.
const DEEPEST_TREE: u16 = 32;

/// Shortest record on a leaf page \[bytes\]: pointer and node header. Bounds the number of entries.
const SHORTEST_NODE_BYTES: u64 = 10;

/// Tree flag: keys are compared from their last byte to their first.
pub(super) const TREE_REVERSE_KEYS: u16 = 0x02;
/// Tree flag: a key may have many values.
const TREE_DUPLICATES: u16 = 0x04;
/// Tree flag: keys are integers of the machine.
pub(super) const TREE_INTEGER_KEYS: u16 = 0x08;
/// Tree flags that mean something only together with [`TREE_DUPLICATES`].
const TREE_DUPLICATE_KINDS: u16 = 0x70;

impl TreeRecord {
    /// Checks the record, which lies at `offset` of the file, against the file.
    pub(super) fn check(&self, name: &str, offset: u64, layout: &Layout) -> Result<(), WalkError> {
        let error = |what: &str, expected: String, found: String| -> WalkError {
            PageError::new(offset, format!("LMDB {name} database: {what}"), expected, found).into()
        };
        if self.flags & TREE_DUPLICATES != 0 {
            return Err(WalkError::Unsupported {
                what: "a database with several values per key",
                found: format!("flag DUPSORT in the {name} database"),
                hint: "copy its records into a database opened without MDB_DUPSORT, under keys of their own"
                    .to_owned(),
            });
        }
        if self.flags & TREE_DUPLICATE_KINDS != 0 {
            return Err(error("flags", "no duplicate kind without DUPSORT".to_owned(), hex16(self.flags)));
        }
        if self.flags & !(TREE_REVERSE_KEYS | TREE_INTEGER_KEYS) != 0 {
            return Err(error("flags", "known bits only (0x02, 0x08)".to_owned(), hex16(self.flags)));
        }
        let empty = self.root == layout.dialect.no_page();
        if empty != (self.depth == 0) || empty != (self.entries == 0) || self.depth > DEEPEST_TREE {
            let found = format!("depth {}, {} entries, root page {}", self.depth, self.entries, self.root);
            return Err(error(
                "depth",
                format!("1 to {DEEPEST_TREE}, or 0 and no root for no entries"),
                found,
            ));
        }
        let tree_pages = self.branch_pages.saturating_add(self.leaf_pages);
        let pages = tree_pages.saturating_add(self.overflow_pages);
        if pages > layout.last_page.saturating_sub(1) {
            let found = format!("{pages} branch, leaf and overflow pages");
            return Err(error(
                "pages",
                format!("at most {} of the file's", layout.last_page.saturating_sub(1)),
                found,
            ));
        }
        if tree_pages > layout.file_bytes / u64::from(layout.page_bytes) {
            let expected =
                format!("at most {} that the file holds", layout.file_bytes / u64::from(layout.page_bytes));
            return Err(error("pages", expected, format!("{tree_pages} branch and leaf pages")));
        }
        // In 128 bits: a page number of a 32-bit file times a page length stays far below.
        let most =
            u128::from(self.leaf_pages) * u128::from(u64::from(layout.page_bytes) / SHORTEST_NODE_BYTES);
        if u128::from(self.entries) > most {
            let expected = format!("at most {most} in {} leaf pages", self.leaf_pages);
            return Err(error("entries", expected, self.entries.to_string()));
        }
        Ok(())
    }
}

/// Where pages lie and how they are read: all that the page code needs of the meta pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) dialect: Dialect,
    pub(super) page_bytes: u32,
    pub(super) checksum_bytes: u32,
    pub(super) last_page: u64,
    pub(super) file_bytes: u64,
}

impl Layout {
    /// Where a page starts [bytes from the start of the file]. Pages have been checked to lie in
    /// the file.
    pub(super) fn offset(&self, page: u64) -> u64 {
        page.saturating_mul(u64::from(self.page_bytes))
    }

    /// First byte after the nodes of a page \[bytes\].
    pub(super) fn end(&self) -> u32 {
        self.page_bytes.saturating_sub(self.checksum_bytes)
    }

    /// Number of pages that a value of `length` bytes takes.
    pub(super) fn overflow_pages(&self, length: u64) -> u64 {
        let bytes = u64::from(self.dialect.header_bytes() - 1 + self.checksum_bytes).saturating_add(length);
        bytes / u64::from(self.page_bytes.max(1)) + 1
    }

    /// Checks that a tree page, named at `offset` of the file, is one of the file's.
    pub(super) fn check_tree_page(&self, page: u64, offset: u64) -> Result<(), PageError> {
        if page < 2 || page > self.last_page {
            let expected = format!("2 to {}", self.last_page);
            return Err(PageError::new(offset, "LMDB page number", expected, page));
        }
        if page >= self.file_bytes / u64::from(self.page_bytes) {
            let expected = format!("a file that holds page {page} of {} bytes", self.page_bytes);
            return Err(PageError::new(offset, "LMDB page number", expected, self.file_of()));
        }
        Ok(())
    }

    /// Checks that an overflow run, named at `offset` of the file, is within it. Returns its pages.
    pub(super) fn check_overflow(
        &self,
        first: u64,
        length: u64,
        stored_pages: Option<u64>,
        offset: u64,
    ) -> Result<u64, PageError> {
        let pages = self.overflow_pages(length);
        if first < 2 || first > self.last_page || pages > self.last_page + 1 - first {
            let expected = format!("a run within pages 2 to {}", self.last_page);
            return Err(PageError::new(
                offset,
                "LMDB overflow run",
                expected,
                format!("{pages} pages from {first} on"),
            ));
        }
        if let Some(stored) = stored_pages.filter(|stored| *stored < pages) {
            let expected = format!("at least {pages} pages for {length} bytes");
            return Err(PageError::new(offset, "LMDB overflow run", expected, stored));
        }
        let end = first
            .checked_mul(u64::from(self.page_bytes))
            .and_then(|start| start.checked_add(u64::from(self.dialect.header_bytes()) + length));
        if end.is_none_or(|end| end > self.file_bytes) {
            let expected = format!("a file that holds {length} bytes from page {first} on");
            return Err(PageError::new(offset, "LMDB overflow run", expected, self.file_of()));
        }
        Ok(pages)
    }

    fn file_of(&self) -> String {
        format!("a file of {} bytes", self.file_bytes)
    }
}

/// One meta page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) transaction: u64,
    pub(super) last_page: u64,
    pub(super) main: TreeRecord,
    page_bytes: u32,
    environment_flags: u16,
}

/// Both meta pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Metas {
    pub(super) dialect: Dialect,
    pub(super) page_bytes: u32,
    pub(super) checksum_bytes: u32,
    pub(super) pages: [Meta; 2],
}

impl Metas {
    /// The page of the last transaction, and its number (0 or 1).
    pub(super) fn chosen(&self) -> (&Meta, u64) {
        let number = u64::from(self.pages[1].transaction > self.pages[0].transaction);
        (&self.pages[number as usize], number)
    }

    /// Offset of the main tree's record in meta page `number` [bytes from the start of the file].
    pub(super) fn main_offset(&self, number: u64) -> u64 {
        let at = main_record_at(self.dialect);
        number * u64::from(self.page_bytes) + at as u64
    }

    /// Reads both pages. Reads an inconsistent pair a second time, since a writer may be at work.
    pub(super) fn read(input: &Input, counters: &IoCounters) -> Result<Self, WalkError> {
        match Self::read_once(input, counters) {
            Err(WalkError::PageError(_)) => Self::read_once(input, counters),
            result => result,
        }
    }

    fn read_once(input: &Input, counters: &IoCounters) -> Result<Self, WalkError> {
        let mut head = vec![0; FIRST_READ_BYTES];
        let count = read_most(input, 0, &mut head, counters)?;
        head.truncate(count);
        let dialect = Dialect::detect(&head)?;
        let length = dialect.header_bytes() as usize + dialect.meta_record_bytes();
        if head.len() < length {
            let found = format!("a file of {} bytes", head.len());
            return Err(PageError::new(0, "LMDB meta page 0", format!("{length} bytes"), found).into());
        }
        let first = decode(dialect, &head, 0, 0)?;
        let page_bytes = first.page_bytes;

        // The length of the checksums is in the last two bytes of page 0, right before meta page 1.
        let (at, bytes) = (page_bytes as usize - 2, 2 + length);
        let tail = if let Some(tail) = head.get(at..at + bytes) {
            tail.to_vec()
        } else {
            let mut tail = vec![0; bytes];
            let count = read_most(input, at as u64, &mut tail, counters)?;
            if count < bytes {
                let found = format!("a file of {} bytes", at + count);
                let expected = format!("{length} bytes");
                return Err(PageError::new(u64::from(page_bytes), "LMDB meta page 1", expected, found).into());
            }
            tail
        };
        let second = decode(dialect, &tail[2..], 1, u64::from(page_bytes))?;
        if second.page_bytes != page_bytes {
            let offset = u64::from(page_bytes) + page_bytes_at(dialect) as u64;
            return Err(PageError::new(
                offset,
                "LMDB meta page 1: page length",
                page_bytes,
                second.page_bytes,
            )
            .into());
        }
        if first.transaction == second.transaction && first.transaction != 0 {
            let offset = u64::from(page_bytes) + transaction_at(dialect) as u64;
            let what = "LMDB meta page 1: transaction";
            return Err(PageError::new(offset, what, "another than on page 0", second.transaction).into());
        }
        if dialect.version == Version::V1_0 && (first.environment_flags & ENVIRONMENT_IS_ENCRYPTED) != 0 {
            return Err(WalkError::Unsupported {
                what: "an encrypted LMDB database",
                found: format!("environment flags {:#06x}", first.environment_flags),
                hint: "copy its records into a database without encryption".to_owned(),
            });
        }
        let checksum_bytes = match dialect.version {
            Version::V0_9 => 0,
            Version::V1_0 => dialect.u16(&tail, 0),
        };
        let most = MAX_CHECKSUM_BYTES.min((page_bytes / 2) as u16);
        if checksum_bytes > most {
            let expected = format!("at most {most} bytes");
            return Err(PageError::new(at as u64, "LMDB checksum length", expected, checksum_bytes).into());
        }
        Ok(Self { dialect, page_bytes, checksum_bytes: u32::from(checksum_bytes), pages: [first, second] })
    }
}

/// Offset of the page size in a meta page; it is part of the record of the free tree.
fn page_bytes_at(dialect: Dialect) -> usize {
    dialect.header_bytes() as usize + 8 + 2 * dialect.word_bytes()
}

/// Where a meta page has the record of the main tree.
fn main_record_at(dialect: Dialect) -> usize {
    page_bytes_at(dialect) + dialect.tree_record_bytes()
}

/// Where a meta page has the number of its transaction.
fn transaction_at(dialect: Dialect) -> usize {
    main_record_at(dialect) + dialect.tree_record_bytes() + dialect.word_bytes()
}

/// Decodes and checks meta page `number`, which starts at `offset` of the file.
fn decode(dialect: Dialect, page: &[u8], number: u64, offset: u64) -> Result<Meta, PageError> {
    let header = dialect.header_bytes() as usize;
    let error = |at: usize, what: &str, expected: &dyn fmt::Display, found: &dyn fmt::Display| {
        Err(PageError::new(offset + at as u64, format!("LMDB meta page {number}: {what}"), expected, found))
    };
    let stored = dialect.word(page, 0);
    if stored != number {
        return error(0, "page number", &number, &stored);
    }
    let flags = dialect.u16(page, header - 6);
    if flags != PAGE_IS_META {
        return error(header - 6, "page type", &hex16(PAGE_IS_META), &hex16(flags));
    }
    let magic = dialect.u32(page, header);
    if magic != MAGIC {
        return error(header, "magic number", &format!("{MAGIC:#010x}"), &format!("{magic:#010x}"));
    }
    let version = dialect.u32(page, header + 4);
    if version != dialect.data_version() {
        return error(header + 4, "data version", &dialect.data_version(), &version);
    }
    let at = page_bytes_at(dialect);
    let page_bytes = dialect.u32(page, at);
    if !page_bytes.is_power_of_two() || !(MIN_PAGE_BYTES..=dialect.largest_page_bytes()).contains(&page_bytes)
    {
        let expected = format!("a power of two from {MIN_PAGE_BYTES} to {}", dialect.largest_page_bytes());
        return error(at, "page length", &expected, &page_bytes);
    }
    let environment_flags = dialect.u16(page, at + 4);
    let main = TreeRecord::decode(dialect, page, main_record_at(dialect));
    let at = transaction_at(dialect);
    let last_page = dialect.word(page, at - dialect.word_bytes());
    if last_page == 0 || last_page == dialect.no_page() {
        return error(at - dialect.word_bytes(), "last page", &"at least 1", &last_page);
    }
    let transaction = dialect.word(page, at);
    if transaction != 0 && transaction & 1 != number {
        let expected = if number == 0 { "an even number" } else { "an odd number" };
        return error(at, "transaction", &expected, &transaction);
    }
    Ok(Meta { transaction, last_page, main, page_bytes, environment_flags })
}

/// Reads exactly one page.
pub(super) fn read_page(
    input: &Input,
    layout: &Layout,
    page: u64,
    bytes: &mut Vec<u8>,
    counters: &IoCounters,
) -> Result<(), WalkError> {
    bytes.resize(layout.page_bytes as usize, 0);
    read_all(input, layout.offset(page), bytes, counters)
}
