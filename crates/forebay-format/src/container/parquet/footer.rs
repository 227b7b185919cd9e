//! The footer: its place, and the fields of it that are used, for the crate to read.

use crate::Error;
use crate::codec::parquet::thrift::{
    BINARY, I32, I64, LIST, Malformed, Reader, STRUCT, Shape, Writer, copy_struct,
};
use crate::file::Input;

/// First and last bytes of a file.
const MAGIC: [u8; 4] = *b"PAR1";

/// Reads the footer: its bytes and their place.
pub(super) fn read(input: &Input) -> Result<(u64, Vec<u8>), Error> {
    let mut tail = [0; 8];
    let at = input.bytes().saturating_sub(8);
    input.read(at, &mut tail, "end of the Parquet file")?;
    if tail[4..] != MAGIC {
        return Err(input.corrupt(at + 4, "end of the Parquet file", "PAR1", crate::error::hex(&tail[4..])));
    }
    let length = u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]);
    let start = at.checked_sub(u64::from(length));
    let start = start
        .ok_or_else(|| input.corrupt(at, "length of the Parquet footer", format!("at most {at}"), length))?;
    let mut footer = vec![0; length as usize];
    input.read(start, &mut footer, "Parquet footer")?;
    Ok((start, footer))
}

/// Deepest nesting of a schema, which the crate follows by recursion.
const MAX_DEPTH: usize = 256;

/// `FileMetaData` of `parquet.thrift`.
const FILE: &[(i16, Shape)] = &[
    (1, Shape::Whole(I32)),
    (2, Shape::Structs(SCHEMA_ELEMENT)),
    (3, Shape::Whole(I64)),
    (4, Shape::Structs(ROW_GROUP)),
    (5, Shape::Structs(KEY_VALUE)),
    (6, Shape::Whole(BINARY)),
];

/// `SchemaElement`: type, length, repetition, name, children, converted and logical type. A
/// repetition that is missing is that of a required field.
const SCHEMA_ELEMENT: &[(i16, Shape)] = &[
    (1, Shape::Whole(I32)),
    (2, Shape::Whole(I32)),
    (3, Shape::OrZero),
    (4, Shape::Whole(BINARY)),
    (5, Shape::Whole(I32)),
    (6, Shape::Whole(I32)),
    (7, Shape::Whole(I32)),
    (8, Shape::Whole(I32)),
    (10, Shape::Whole(STRUCT)),
];

/// `RowGroup`: columns, bytes, rows.
const ROW_GROUP: &[(i16, Shape)] =
    &[(1, Shape::Structs(COLUMN_CHUNK)), (2, Shape::Whole(I64)), (3, Shape::Whole(I64))];

/// `ColumnChunk`: another file's path, offset, metadata.
const COLUMN_CHUNK: &[(i16, Shape)] =
    &[(1, Shape::Whole(BINARY)), (2, Shape::Whole(I64)), (3, Shape::Struct(COLUMN))];

/// `ColumnMetaData`: type, encodings, path, codec, values, lengths, offsets, statistics.
const COLUMN: &[(i16, Shape)] = &[
    (1, Shape::Whole(I32)),
    (2, Shape::Values(I32)),
    (3, Shape::Values(BINARY)),
    (4, Shape::Whole(I32)),
    (5, Shape::Whole(I64)),
    (6, Shape::Whole(I64)),
    (7, Shape::Whole(I64)),
    (9, Shape::Whole(I64)),
    (11, Shape::Whole(I64)),
    (12, Shape::Struct(STATISTICS)),
];

/// `Statistics`: the number of nulls.
const STATISTICS: &[(i16, Shape)] = &[(3, Shape::Whole(I64))];

/// `KeyValue`.
const KEY_VALUE: &[(i16, Shape)] = &[(1, Shape::Whole(BINARY)), (2, Shape::Whole(BINARY))];

/// The footer with the fields only that are used.
pub(super) fn used(footer: &[u8]) -> Result<Vec<u8>, Malformed> {
    let (mut from, mut into) = (Reader::new(footer), Writer::default());
    copy_struct(&mut from, FILE, &mut into)?;
    check_depth(&into.bytes)?;
    Ok(into.bytes)
}

/// Refuses a schema of more levels than [`MAX_DEPTH`].
fn check_depth(footer: &[u8]) -> Result<(), Malformed> {
    let (mut from, mut last) = (Reader::new(footer), 0);
    // Children that are still to come, of each group that the next element is in.
    let mut groups: Vec<i64> = Vec::new();
    while let Some((number, kind)) = from.field(&mut last)? {
        if (number, kind) != (2, LIST) {
            from.skip(kind)?;
            continue;
        }
        let (count, _) = from.list()?;
        for _ in 0..count {
            let (mut children, mut last) = (0, 0);
            while let Some((number, kind)) = from.field(&mut last)? {
                match (number, kind) {
                    (5, I32) => children = from.integer()?,
                    _ => from.skip(kind)?,
                }
            }
            while groups.pop_if(|left| *left <= 0).is_some() {}
            if let Some(left) = groups.last_mut() {
                *left -= 1;
            }
            if children > 0 {
                groups.push(children);
            }
            if groups.len() > MAX_DEPTH {
                return Err(Malformed("a schema of too many levels"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A footer of so many groups, each in the one before.
    fn nested(groups: usize) -> Vec<u8> {
        let mut footer = b"\x29\xfc".to_vec();
        footer.extend([(groups % 128) as u8 | 0x80, (groups / 128) as u8]);
        footer.extend(b"\x48\x01x\x15\x02\x00".repeat(groups));
        footer.push(0);
        footer
    }

    #[test]
    fn schemas_that_would_fill_the_stack_are_refused() {
        assert!(used(&nested(MAX_DEPTH)).is_ok());
        assert!(used(&nested(MAX_DEPTH + 1)).is_err());
        assert!(used(&nested(16_000)).is_err());
    }
}
