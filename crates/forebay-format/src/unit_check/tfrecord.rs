//! The lengths and checksums around a record.

use std::path::Path;

use crate::Error;

/// Bytes before a record's data \[bytes\]: length and its checksum.
pub const HEAD_BYTES: u32 = 12;

/// Bytes after a record's data \[bytes\]: their checksum.
pub const TAIL_BYTES: u32 = 4;

/// Added to a rotated checksum, so that a checksum of data that hold checksums stays a good one.
const MASK_DELTA: u32 = 0xa282_ead8;

/// The checksum of `TFRecord`.
pub fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK_DELTA)
}

/// The length in a record's header; `None` where its checksum is another.
pub fn length_of(header: &[u8; HEAD_BYTES as usize]) -> Option<u64> {
    let (length, stored) = header.split_at(8);
    let stored = u32::from_le_bytes(stored.try_into().ok()?);
    (stored == masked_crc32c(length)).then(|| u64::from_le_bytes(*length.first_chunk().expect("8 bytes")))
}

/// Checks the data of a record: `unit` holds the bytes that a walk located at `start`, header and
/// checksum included.
pub fn check_record(unit: &[u8], start: u64, path: &Path) -> Result<(), Error> {
    let (head, behind) = unit.split_at(unit.len().min(HEAD_BYTES as usize));
    let (data, tail) = behind.split_at(behind.len().saturating_sub(TAIL_BYTES as usize));
    check_parts(head, data, tail, start, path)
}

/// The same for a record whose header, data and checksum do not lie together.
pub(crate) fn check_parts(
    head: &[u8],
    data: &[u8],
    tail: &[u8],
    start: u64,
    path: &Path,
) -> Result<(), Error> {
    let corrupt = |offset: u64, what: &str, expected: String, found: String| Error::Corrupt {
        path: path.to_owned(),
        offset,
        what: what.to_owned(),
        expected,
        found,
    };
    let data_bytes = data.len() as u64;
    let (Ok(head), Ok(stored)) = (head.try_into(), tail.try_into()) else {
        let found = format!("{} bytes", head.len() + data.len() + tail.len());
        return Err(corrupt(start, "TFRecord: record", "16 bytes or more".to_owned(), found));
    };
    // The file may have changed since the scan.
    let length = length_of(head);
    if length != Some(data_bytes) {
        let found = length.map_or("a wrong checksum".to_owned(), |length| format!("{length} bytes"));
        return Err(corrupt(start, "TFRecord: length of a record", format!("{data_bytes} bytes"), found));
    }
    let (expected, found) = (masked_crc32c(data), u32::from_le_bytes(stored));
    if expected == found {
        return Ok(());
    }
    let offset = start + u64::from(HEAD_BYTES) + data_bytes;
    let (expected, found) = (format!("{expected:#010x}"), format!("{found:#010x}"));
    Err(corrupt(offset, "TFRecord: checksum of the data of a record", expected, found))
}
