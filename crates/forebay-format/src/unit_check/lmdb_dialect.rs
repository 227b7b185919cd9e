//! The eight dialects of the file: LMDB 0.9 or 1.0, words of 32 or 64 bits, little- or big-endian.
//!
//! LMDB writes the structures of the machine it runs on. A dialect fixes the width of page numbers,
//! transaction numbers and counts (one *word*), the length of a page header, the number added to
//! pointers within a page, and the byte order. Everything else is the same, so all other modules
//! are written once, over [`Dialect`].
//!
//! A dialect is detected by its magic number, which follows the header of page 0, and the version
//! word after that (`docs/formats/lmdb.md`, "Dialects").

use serde::{Deserialize, Serialize};

use super::lmdb_page_error::{PageError, WalkError};
use crate::error::hex;

/// Magic number of a meta page.
pub(crate) const MAGIC: u32 = 0xBEEF_C0DE;

/// Data version that a library built with `MDB_DEVEL` writes.
const DEVELOPMENT_VERSION: u32 = 999;

/// Smallest page that LMDB makes \[bytes\].
pub(crate) const MIN_PAGE_BYTES: u32 = 256;

/// Generation of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Version {
    /// LMDB 0.9.x: data version 1.
    V0_9,
    /// LMDB 1.0.x: data version 3.
    V1_0,
}

/// Width of page numbers, transaction numbers and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Word {
    /// 4 bytes.
    Bits32,
    /// 8 bytes.
    Bits64,
}

/// Order of the bytes in every integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// How a file writes its structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dialect {
    /// Generation of the format.
    pub version: Version,
    /// Width of page numbers and counts.
    pub word: Word,
    /// Order of the bytes in integers.
    pub byte_order: ByteOrder,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Self; 8] = {
        use ByteOrder::{Big, Little};
        use Version::{V0_9, V1_0};
        use Word::{Bits32, Bits64};
        const fn dialect(version: Version, word: Word, byte_order: ByteOrder) -> Dialect {
            Dialect { version, word, byte_order }
        }
        [
            dialect(V0_9, Bits64, Little),
            dialect(V0_9, Bits32, Little),
            dialect(V1_0, Bits64, Little),
            dialect(V1_0, Bits32, Little),
            dialect(V0_9, Bits64, Big),
            dialect(V0_9, Bits32, Big),
            dialect(V1_0, Bits64, Big),
            dialect(V1_0, Bits32, Big),
        ]
    };

    /// Finds the dialect of a file from its first bytes.
    pub(crate) fn detect(head: &[u8]) -> Result<Self, WalkError> {
        let mut other_version = None;
        for dialect in Self::ALL {
            let at = dialect.header_bytes() as usize;
            if head.len() < at + 8 || dialect.u32(head, at) != MAGIC {
                continue;
            }
            let version = dialect.u32(head, at + 4);
            if version == dialect.data_version() {
                return Ok(dialect);
            }
            other_version.get_or_insert((at + 4, version));
        }
        if let Some((offset, version)) = other_version {
            let hint = if version == DEVELOPMENT_VERSION {
                "it was written by a development build of LMDB (MDB_DEVEL); copy it with that build's mdb_dump and a \
                 released mdb_load"
            } else {
                "copy it with the mdb_dump of the library that wrote it and the mdb_load of LMDB 0.9 or 1.0; if no \
                 such library exists, the file is damaged"
            };
            return Err(WalkError::Unsupported {
                what: "the LMDB data version",
                found: format!("version {version} at offset {offset} (1 is LMDB 0.9, 3 is LMDB 1.0)"),
                hint: hint.to_owned(),
            });
        }
        if head.is_empty() {
            return Err(PageError::new(0, "LMDB meta page", "a database", "an empty file").into());
        }
        if head.len() < 32 {
            let found = format!("a file of {} bytes", head.len());
            return Err(
                PageError::new(0, "LMDB meta page", "a magic number at byte 12, 16 or 24", found).into()
            );
        }
        Err(WalkError::Unsupported {
            what: "a file that is not an LMDB database",
            found: format!("no magic number 0xbeefc0de at offset 12, 16 or 24, but {}", hex(&head[12..28])),
            hint: "name the directory or the data file of an LMDB database".to_owned(),
        })
    }

    /// Length of a page header \[bytes\]; values on overflow pages start after it.
    #[must_use]
    pub const fn header_bytes(self) -> u32 {
        match (self.version, self.word) {
            (Version::V0_9, Word::Bits32) => 12,
            (Version::V0_9, Word::Bits64) | (Version::V1_0, Word::Bits32) => 16,
            (Version::V1_0, Word::Bits64) => 24,
        }
    }

    /// What is added to every pointer within a page \[bytes\].
    pub(crate) const fn pointer_base(self) -> u32 {
        match self.version {
            Version::V0_9 => 0,
            Version::V1_0 => self.header_bytes(),
        }
    }

    /// The version word of the meta pages.
    pub(crate) const fn data_version(self) -> u32 {
        match self.version {
            Version::V0_9 => 1,
            Version::V1_0 => 3,
        }
    }

    /// Length of one word \[bytes\].
    pub const fn word_bytes(self) -> usize {
        match self.word {
            Word::Bits32 => 4,
            Word::Bits64 => 8,
        }
    }

    /// Page number that means "no page": an empty tree.
    pub(crate) const fn no_page(self) -> u64 {
        match self.word {
            Word::Bits32 => u32::MAX as u64,
            Word::Bits64 => u64::MAX,
        }
    }

    /// Length of the record that describes a tree \[bytes\].
    pub(crate) const fn tree_record_bytes(self) -> usize {
        8 + 5 * self.word_bytes()
    }

    /// Length of the record on a meta page, after the page header \[bytes\].
    pub(crate) const fn meta_record_bytes(self) -> usize {
        8 + 4 * self.word_bytes() + 2 * self.tree_record_bytes()
    }

    /// Length of what a leaf node holds in place of a big value \[bytes\].
    pub const fn big_payload_bytes(self) -> usize {
        match self.version {
            Version::V0_9 => self.word_bytes(),
            Version::V1_0 => 3 * self.word_bytes(),
        }
    }

    /// Largest page that the library makes \[bytes\].
    pub const fn largest_page_bytes(self) -> u32 {
        match self.version {
            Version::V0_9 => 32768,
            Version::V1_0 => 65536,
        }
    }

    /// The 2-byte integer at `at`.
    pub(crate) fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let raw = [bytes[at], bytes[at + 1]];
        match self.byte_order {
            ByteOrder::Little => u16::from_le_bytes(raw),
            ByteOrder::Big => u16::from_be_bytes(raw),
        }
    }

    /// The 4-byte integer at `at`.
    pub(crate) fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let mut raw = [0; 4];
        raw.copy_from_slice(&bytes[at..at + 4]);
        match self.byte_order {
            ByteOrder::Little => u32::from_le_bytes(raw),
            ByteOrder::Big => u32::from_be_bytes(raw),
        }
    }

    /// The word at `at`.
    pub(crate) fn word(self, bytes: &[u8], at: usize) -> u64 {
        match self.word {
            Word::Bits32 => u64::from(self.u32(bytes, at)),
            Word::Bits64 => {
                let mut raw = [0; 8];
                raw.copy_from_slice(&bytes[at..at + 8]);
                match self.byte_order {
                    ByteOrder::Little => u64::from_le_bytes(raw),
                    ByteOrder::Big => u64::from_be_bytes(raw),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_the_eight_dialects_are_those_of_the_format() {
        let sizes: Vec<_> = Dialect::ALL[..4]
            .iter()
            .map(|dialect| {
                (
                    dialect.header_bytes(),
                    dialect.pointer_base(),
                    dialect.tree_record_bytes(),
                    dialect.meta_record_bytes(),
                    dialect.big_payload_bytes(),
                )
            })
            .collect();
        assert_eq!(
            sizes,
            [(16, 0, 48, 136, 8), (12, 0, 28, 80, 4), (24, 24, 48, 136, 24), (16, 16, 28, 80, 12)]
        );
    }

    #[test]
    fn a_dialect_is_found_by_magic_number_and_version() {
        for dialect in Dialect::ALL {
            let mut head = vec![0; 64];
            let at = dialect.header_bytes() as usize;
            for (offset, number) in [(at, MAGIC), (at + 4, dialect.data_version())] {
                let bytes = match dialect.byte_order {
                    ByteOrder::Little => number.to_le_bytes(),
                    ByteOrder::Big => number.to_be_bytes(),
                };
                head[offset..offset + 4].copy_from_slice(&bytes);
            }
            assert_eq!(Dialect::detect(&head).expect("a known dialect"), dialect);
        }
    }

    #[test]
    fn an_unknown_version_is_named() {
        for (version, word) in [(2, "version 2"), (999, "version 999"), (0, "version 0")] {
            let mut head = vec![0; 64];
            head[16..20].copy_from_slice(&MAGIC.to_le_bytes());
            head[20..24].copy_from_slice(&u32::to_le_bytes(version));
            match Dialect::detect(&head) {
                Err(WalkError::Unsupported { found, hint, .. }) => {
                    assert!(found.starts_with(word), "{found}");
                    assert_eq!(hint.contains("MDB_DEVEL"), version == 999);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
