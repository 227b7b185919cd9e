//! Why a table cannot be made, read or extended.

use core::fmt;

/// Why a table cannot be made, read or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// The memory is shorter than the table.
    Short {
        /// Bytes that the table has.
        expected_bytes: u64,
        /// Bytes of the memory.
        found_bytes: u64,
    },
    /// The memory does not begin as a table.
    Magic(u64),
    /// A table of another version.
    Version {
        /// The version that this program knows.
        expected: u32,
        /// The version of the table.
        found: u32,
    },
    /// The daemon does not maintain the table any more.
    Retired,
    /// A field of the header contradicts the others, or exceeds its limit.
    Header {
        /// The field.
        field: &'static str,
        /// What it holds.
        found: u64,
    },
    /// All records, or all slots that a record may use in an index, are taken.
    Full,
    /// A number of a file does not fit into its field.
    TooLarge {
        /// The field.
        field: &'static str,
        /// What it should hold.
        found: u64,
    },
    /// A path that is too long, or has a zero byte.
    Path {
        /// Its length.
        bytes: usize,
        /// The longest one that fits.
        max_bytes: usize,
    },
}

impl fmt::Display for TableError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { expected_bytes, found_bytes } => {
                write!(
                    formatter,
                    "file table: too short (expected {expected_bytes} bytes, found {found_bytes})"
                )
            }
            Self::Magic(found) => write!(formatter, "file table: wrong magic number (found {found:#018x})"),
            Self::Version { expected, found } => {
                write!(formatter, "file table: unknown version (expected {expected}, found {found})")
            }
            Self::Retired => write!(formatter, "file table: retired"),
            Self::Header { field, found } => write!(formatter, "file table: invalid {field} (found {found})"),
            Self::Full => write!(formatter, "file table: all records are taken"),
            Self::TooLarge { field, found } => {
                write!(formatter, "file table: {field} does not fit (found {found})")
            }
            Self::Path { bytes, max_bytes } => write!(
                formatter,
                "file table: path does not fit (expected at most {max_bytes} bytes without a zero, found {bytes})"
            ),
        }
    }
}

impl core::error::Error for TableError {}
