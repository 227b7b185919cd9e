//! Which state of which database is read.

use serde::{Deserialize, Serialize};

use super::lmdb_dialect::Dialect;

/// LMDB's record of one of its trees (`MDB_db`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeRecord {
    /// Kind of keys and values, as LMDB's bits.
    pub flags: u16,
    /// Levels from the root to the leaves; 0 for an empty tree.
    pub depth: u16,
    /// Number of branch pages.
    pub branch_pages: u64,
    /// Number of leaf pages.
    pub leaf_pages: u64,
    /// Number of overflow pages.
    pub overflow_pages: u64,
    /// Number of records.
    pub entries: u64,
    /// Page number of the root; all bits set for an empty tree.
    pub root: u64,
}

impl TreeRecord {
    /// Decodes the record at `at`.
    pub(crate) fn decode(dialect: Dialect, bytes: &[u8], at: usize) -> Self {
        let word = |index: usize| dialect.word(bytes, at + 8 + index * dialect.word_bytes());
        Self {
            flags: dialect.u16(bytes, at + 4),
            depth: dialect.u16(bytes, at + 6),
            branch_pages: word(0),
            leaf_pages: word(1),
            overflow_pages: word(2),
            entries: word(3),
            root: word(4),
        }
    }
}

/// The state of a database; kept in sidecars and compared with the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// How the file writes its structures.
    pub dialect: Dialect,
    /// Length of a page \[bytes\].
    pub page_bytes: u32,
    /// Length of the checksum at the end of each page \[bytes\] (LMDB 1.0; 0 for none).
    pub checksum_bytes: u32,
    /// Last transaction of each meta page.
    pub transactions: [u64; 2],
    /// Last page in use.
    pub last_page: u64,
    /// The main tree.
    pub main: TreeRecord,
    /// Name of the database, if it is not the main one.
    pub database: Option<String>,
    /// The tree of the database that is read: the main tree where there is no name.
    pub tree: TreeRecord,
}
