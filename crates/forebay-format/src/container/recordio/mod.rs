//! `RecordIO`: `MXNet`'s records back to back, each with a magic number and its length before it.
//!
//! A part is `u32 magic`, `u32 kind << 29 | length`, the data, and zeros up to a multiple of four
//! bytes, all little-endian. Kind 0 is a whole record. A record whose data hold the magic number at
//! a multiple of four bytes is cut there into parts (1 first, 2 middle, 3 last), and the magic
//! number itself is left out. [`walk`] goes from header to header and checks every one; it does not
//! read the data. [`IndexFile`] is the list of offsets that writers may put beside the file. The
//! layout to the byte is `docs/formats/recordio.md`. Source: dmlc-core's `recordio.h`.

mod framing;
mod index_file;

pub(crate) use framing::RecordIo;
pub use index_file::IndexFile;

use crate::Error;
use crate::file::HeaderScan;
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, Part, PartPiece, RecordClass};

/// The magic number before every part.
pub const MAGIC: u32 = 0xced7_230a;

/// Bytes before the data of a part \[bytes\]: the magic number, and kind and length.
pub const HEAD_BYTES: u32 = 8;

/// Parts start at multiples of this \[bytes\].
const STEP_BYTES: u32 = 4;

/// Most parts of one record.
///
/// Random data hold the magic number once in 16 GiB. The bound keeps the description of a record
/// below a thousand bytes, so that a block of such records stays within the limits of sidecar
/// readers.
pub const MAX_PARTS: usize = 64;

/// Position of a part in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartKind {
    Whole,
    First,
    Middle,
    Last,
}

impl PartKind {
    fn of(head: u32) -> Option<Self> {
        match head >> 29 {
            0 => Some(Self::Whole),
            1 => Some(Self::First),
            2 => Some(Self::Middle),
            3 => Some(Self::Last),
            _ => None,
        }
    }

    /// Whether another part of the record follows.
    fn continues(self) -> bool {
        matches!(self, Self::First | Self::Middle)
    }
}

/// How the records of a file lie that are not in parts.
pub(crate) fn class() -> RecordClass {
    RecordClass {
        head_bytes: HEAD_BYTES,
        align_bytes: STEP_BYTES,
        step_bytes: STEP_BYTES,
        ..RecordClass::tight("record")
    }
}

/// Goes from header to header of a file. `each` gets for every record its start and its location: a
/// plain entry of class 0, or, where the record is in parts, a unit of several extents.
///
/// Fails with [`Error::Corrupt`] where a header is invalid, parts are out of order, or a part does
/// not end within the file.
pub fn walk(
    input: &Input,
    progress: &dyn Fn(u64) -> bool,
    each: &mut dyn FnMut(u64, IndexEntry) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut headers = HeaderScan::new(input, progress);
    let mut at = 0;
    while at < input.bytes() {
        let start = at;
        let (kind, length, end) = part_at(&mut headers, at)?;
        at = end;
        if kind == PartKind::Whole {
            each(start, IndexEntry::Plain { class: 0, start, length })?;
            continue;
        }
        if kind != PartKind::First {
            return Err(out_of_order(input, start, "a whole record or a first part", kind));
        }
        let mut pieces = vec![extent(start, length, kind)];
        loop {
            let (kind, length, end) = part_at(&mut headers, at)?;
            if !matches!(kind, PartKind::Middle | PartKind::Last) {
                return Err(out_of_order(input, at, "a middle or last part", kind));
            }
            if pieces.len() == MAX_PARTS {
                return Err(input.unsupported(
                    format!("a record of more than {MAX_PARTS} parts"),
                    format!("the record at offset {start} continues at offset {at}"),
                    "its data contain the magic number of RecordIO many times; store it compressed",
                ));
            }
            if length > 0 || kind == PartKind::Middle {
                pieces.push(extent(at, length, kind));
            }
            at = end;
            if kind == PartKind::Last {
                break;
            }
        }
        let length = pieces
            .iter()
            .map(|piece| match piece {
                PartPiece::Extent { length, .. } => *length,
                PartPiece::Literal(bytes) => bytes.len() as u64,
            })
            .sum();
        let part = Part { pieces, codecs: 0, decoded_bytes: length, guard: 0, offset: 0, length };
        each(start, IndexEntry::Exception(vec![part]))?;
    }
    Ok(())
}

/// Reads the header at `at`: the kind of the part, the length of its data, and where it ends.
fn part_at(headers: &mut HeaderScan<'_>, at: u64) -> Result<(PartKind, u64, u64), Error> {
    let input = headers.input();
    let header: [u8; HEAD_BYTES as usize] = headers.get(at, "RecordIO: header of a part")?;
    let (magic, head) = header.split_at(4);
    let number = |bytes: &[u8]| u32::from_le_bytes(*bytes.first_chunk().expect("4 bytes"));
    let (magic, head) = (number(magic), number(head));
    if magic != MAGIC {
        let (expected, found) = (format!("{MAGIC:#010x}"), format!("{magic:#010x}"));
        return Err(input.corrupt(at, "RecordIO: magic number", expected, found));
    }
    let Some(kind) = PartKind::of(head) else {
        let found = (head >> 29).to_string();
        return Err(input.corrupt(at + 4, "RecordIO: kind of a part", "0 to 3".to_owned(), found));
    };
    let length = u64::from(head & 0x1fff_ffff);
    let left = input.bytes() - at - u64::from(HEAD_BYTES);
    let padded = length.next_multiple_of(u64::from(STEP_BYTES));
    if padded > left {
        let found = format!("{length} bytes and {left} bytes to the end of the file");
        return Err(input.corrupt(
            at + 4,
            "RecordIO: length of a part",
            format!("at most {left} bytes, padding included"),
            found,
        ));
    }
    // The magic number was cut out at a multiple of four bytes.
    if kind.continues() && padded != length {
        let expected = format!("a multiple of {STEP_BYTES} bytes before another part");
        return Err(input.corrupt(at + 4, "RecordIO: length of a part", expected, length.to_string()));
    }
    Ok((kind, length, at + u64::from(HEAD_BYTES) + padded))
}

/// Location of the data of the part at `at`. The magic number that was left out after a part is
/// read from the start of the next header.
fn extent(at: u64, length: u64, kind: PartKind) -> PartPiece {
    let magic_bytes = if kind.continues() { size_of_val(&MAGIC) as u64 } else { 0 };
    PartPiece::Extent { offset: at + u64::from(HEAD_BYTES), length: length + magic_bytes }
}

fn out_of_order(input: &Input, at: u64, expected: &str, found: PartKind) -> Error {
    let found = match found {
        PartKind::Whole => "a whole record",
        PartKind::First => "a first part",
        PartKind::Middle => "a middle part",
        PartKind::Last => "a last part",
    };
    input.corrupt(at + 4, "RecordIO: kind of a part", expected.to_owned(), found.to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    /// A part, as dmlc-core writes it.
    fn part(kind: u32, data: &[u8]) -> Vec<u8> {
        let mut out = [MAGIC.to_le_bytes(), (kind << 29 | data.len() as u32).to_le_bytes()].concat();
        out.extend(data);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    /// The records of a file.
    fn records(file: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mut records = Vec::new();
        let input = Input::from_source(Path::new("x"), Arc::new(file.to_vec())).expect("a file in memory");
        walk(&input, &|_| true, &mut |_, entry| {
            records.push(match entry {
                IndexEntry::Plain { start, length, .. } => {
                    let start = (start + u64::from(HEAD_BYTES)) as usize;
                    file[start..start + length as usize].to_vec()
                }
                IndexEntry::Exception(parts) => parts[0]
                    .pieces
                    .iter()
                    .flat_map(|piece| match piece {
                        PartPiece::Extent { offset, length } => {
                            &file[*offset as usize..(offset + length) as usize]
                        }
                        PartPiece::Literal(bytes) => bytes,
                    })
                    .copied()
                    .collect(),
            });
            Ok(())
        })
        .map_err(|error| error.to_string())?;
        Ok(records)
    }

    #[test]
    fn records_and_parts_are_joined_with_the_magic_number() {
        let magic = MAGIC.to_le_bytes();
        let file = [
            part(0, b"whole"),
            part(1, b"four"),
            part(2, b""),
            part(2, b"eight by"),
            part(3, b"end"),
            part(1, b""),
            part(3, b""),
            part(0, b""),
        ]
        .concat();
        let joined = [b"four", &magic[..], &magic, b"eight by", &magic, b"end"].concat();
        assert_eq!(records(&file), Ok(vec![b"whole".to_vec(), joined, magic.to_vec(), vec![]]));
        assert_eq!(records(&[]), Ok(vec![]));
    }

    #[test]
    fn damage_is_named_with_its_place() {
        let mut padding = part(0, b"abcde");
        padding.truncate(14);
        for (file, text) in [
            (vec![1; 8], "magic number at offset 0: expected 0xced7230a, found 0x01010101"),
            (
                part(0, b"data")[..6].to_vec(),
                "header of a part at offset 0: expected 8 bytes, found the end of the file after 6",
            ),
            (part(0, b"data")[..11].to_vec(), "length of a part at offset 4: expected at most 3 bytes"),
            (padding, "length of a part at offset 4: expected at most 6 bytes"),
            (part(4, b""), "kind of a part at offset 4: expected 0 to 3, found 4"),
            (
                part(3, b""),
                "kind of a part at offset 4: expected a whole record or a first part, found a last part",
            ),
            (part(1, b""), "header of a part at offset 8: expected 8 bytes"),
            (
                [part(1, b""), part(0, b"")].concat(),
                "kind of a part at offset 12: expected a middle or last part, found a whole",
            ),
            (
                [part(1, b"abc"), part(3, b"")].concat(),
                "length of a part at offset 4: expected a multiple of 4 bytes before another part, found 3",
            ),
        ] {
            let error = records(&file).expect_err("broken");
            assert!(error.starts_with("x: RecordIO: ") && error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_record_of_very_many_parts_is_refused() {
        let parts = |middle| [part(1, b""), part(2, b"").repeat(middle), part(3, b"end")].concat();
        assert_eq!(
            records(&parts(MAX_PARTS - 2)).expect("as many as allowed")[0].len(),
            4 * (MAX_PARTS - 1) + 3
        );
        let error = records(&parts(MAX_PARTS - 1)).expect_err("too many");
        assert!(error.contains("a record of more than 64 parts"), "{error}");
    }
}
