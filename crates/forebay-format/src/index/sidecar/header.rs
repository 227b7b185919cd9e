//! The first bytes of a sidecar: how large its parts are, and what they are checked against.

use std::ops::Range;

use super::{MAGIC, VERSION};
use crate::SidecarError;

/// Length of the header \[bytes\].
pub(crate) const HEADER_BYTES: usize = 80;

/// Length of a directory entry \[bytes\].
pub(crate) const DIRECTORY_ENTRY_BYTES: usize = 8;

/// Most records per block that a reader accepts: bounds the memory of one expanded block to 1 MiB,
/// and the index of a record in its block to 16 bits.
const MAX_BLOCK_RECORDS: u32 = 1 << 16;

/// Largest meta part after decompression \[bytes\]: 100,000 shards take 50 MiB.
const MAX_META_BYTES: u32 = 1 << 26;

/// Most columns.
pub(crate) const MAX_COLUMNS: usize = 1024;

/// The first [`HEADER_BYTES`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SidecarHeader {
    pub(crate) fingerprint: u128,
    pub(crate) samples: u64,
    pub(crate) columns: u32,
    pub(crate) block_records: u32,
    /// Number of blocks of all columns.
    pub(crate) blocks: u32,
    pub(crate) meta_stored_bytes: u32,
    pub(crate) meta_bytes: u32,
    pub(crate) meta_checksum: u32,
    pub(crate) directory_checksum: u32,
    pub(crate) file_bytes: u64,
}

impl SidecarHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(self.columns.to_le_bytes());
        out.extend(self.fingerprint.to_le_bytes());
        out.extend(self.samples.to_le_bytes());
        out.extend(self.file_bytes.to_le_bytes());
        for number in [
            self.block_records,
            self.blocks,
            self.meta_stored_bytes,
            self.meta_bytes,
            self.meta_checksum,
            self.directory_checksum,
            0,
        ] {
            out.extend(number.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&out);
        out.extend(checksum.to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&out);
        header
    }

    /// Decodes and checks the header of a file of `file_bytes` bytes.
    pub(crate) fn decode(head: &[u8], file_bytes: u64) -> Result<Self, SidecarError> {
        let magic = &head[..head.len().min(MAGIC.len())];
        if magic != MAGIC {
            return Err(SidecarError::Magic { expected: MAGIC, found: magic.to_vec() });
        }
        let u32_at = |at: usize| {
            head.get(at..at + 4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        // The version comes first: all that follows may differ in another one.
        if let Some(found) = u32_at(8).filter(|version| *version != VERSION) {
            return Err(SidecarError::Version { expected: VERSION, found });
        }
        let Some(head) = head.get(..HEADER_BYTES) else {
            return Err(SidecarError::damaged(
                0,
                "length",
                format!("{HEADER_BYTES} bytes or more"),
                head.len(),
            ));
        };
        let u32_of = |at: usize| u32_at(at).unwrap_or_default();
        let u64_of = |at: usize| u64::from(u32_of(at)) | u64::from(u32_of(at + 4)) << 32;
        let (expected, found) = (crc32c::crc32c(&head[..76]), u32_of(76));
        if expected != found {
            let (expected, found) = (format!("{expected:#010x}"), format!("{found:#010x}"));
            return Err(SidecarError::damaged(76, "header checksum", expected, found));
        }
        let header = Self {
            columns: u32_of(12),
            fingerprint: u128::from(u64_of(16)) | u128::from(u64_of(24)) << 64,
            samples: u64_of(32),
            file_bytes: u64_of(40),
            block_records: u32_of(48),
            blocks: u32_of(52),
            meta_stored_bytes: u32_of(56),
            meta_bytes: u32_of(60),
            meta_checksum: u32_of(64),
            directory_checksum: u32_of(68),
        };
        if header.file_bytes != file_bytes {
            return Err(SidecarError::damaged(40, "length of the file", header.file_bytes, file_bytes));
        }
        for (at, what, most, found) in [
            (12, "columns", MAX_COLUMNS as u32, header.columns),
            (48, "records per block", MAX_BLOCK_RECORDS, header.block_records),
            (60, "meta bytes", MAX_META_BYTES, header.meta_bytes),
        ] {
            if found == 0 || found > most {
                return Err(SidecarError::damaged(at, what, format!("1 to {most}"), found));
            }
        }
        Ok(header)
    }

    /// Where the meta part lies \[bytes\].
    pub(crate) fn meta_range(&self) -> Range<usize> {
        HEADER_BYTES..HEADER_BYTES + self.meta_stored_bytes as usize
    }

    /// Where the directory lies \[bytes\].
    pub(crate) fn directory_range(&self) -> Range<usize> {
        let start = self.meta_range().end;
        start..start + self.blocks as usize * DIRECTORY_ENTRY_BYTES
    }
}
