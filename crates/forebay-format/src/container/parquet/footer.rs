//! The footer: its place, and the fields of it that are used, for the crate to read.
//!
//! The crate refuses a whole footer for one annotation of a type that it does not know. Then the
//! elements of the schema are tried one by one, and those that it refuses lose their annotations:
//! only their columns are not read. The same holds for columns that are marked as encrypted.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use crate::Error;
use crate::codec::parquet::thrift::{
    BINARY, I32, I64, LIST, Malformed, Reader, STRUCT, Shape, Writer, copy_struct,
};
use crate::file::Input;

/// First and last bytes of a file.
const MAGIC: [u8; 4] = *b"PAR1";

/// Last bytes of a file whose footer is encrypted.
const ENCRYPTED_MAGIC: [u8; 4] = *b"PARE";

/// What a footer says.
pub(super) struct Footer {
    pub(super) metadata: ParquetMetaData,
    /// Why columns are not read, by their number.
    pub(super) refused: BTreeMap<usize, String>,
}

/// Reads the footer: its bytes and their place.
pub(super) fn read(input: &Input) -> Result<(u64, Vec<u8>), Error> {
    let mut tail = [0; 8];
    let at = input.bytes().saturating_sub(8);
    input.read(at, &mut tail, "end of the Parquet file")?;
    if tail[4..] == ENCRYPTED_MAGIC {
        let hint =
            "decrypt it: read it with its keys, for example with pyarrow, and write it without encryption";
        return Err(input.unsupported(
            "Parquet with an encrypted footer",
            "PARE at its end".to_owned(),
            hint,
        ));
    }
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

/// `SchemaElement` without converted and logical type, scale and precision.
const BARE_ELEMENT: &[(i16, Shape)] = &[
    (1, Shape::Whole(I32)),
    (2, Shape::Whole(I32)),
    (3, Shape::Whole(I32)),
    (4, Shape::Whole(BINARY)),
    (5, Shape::Whole(I32)),
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

/// Reads the bytes of a footer.
pub(super) fn parse(footer: &[u8]) -> Result<Footer, String> {
    let text = |Malformed(found): Malformed| found.to_owned();
    let mut refused = encrypted(footer).map_err(text)?;
    let used = used(footer).map_err(text)?;
    let metadata = decode(&used).or_else(|error| {
        let (bare, odd) = without_odd_types(&used).map_err(text)?;
        if odd.is_empty() {
            return Err(error);
        }
        refused.extend(odd);
        decode(&bare)
    })?;
    Ok(Footer { metadata, refused })
}

fn decode(used: &[u8]) -> Result<ParquetMetaData, String> {
    let decode = AssertUnwindSafe(|| ParquetMetaDataReader::decode_metadata(used));
    catch_unwind(decode).map_err(|_| "damaged metadata".to_owned())?.map_err(|error| error.to_string())
}

/// The columns that a row group marks as encrypted: `ColumnCryptoMetaData`, or metadata that are
/// encrypted themselves.
fn encrypted(footer: &[u8]) -> Result<BTreeMap<usize, String>, Malformed> {
    let mut found = BTreeMap::new();
    Reader::new(footer).structures(4, &mut |_, group| {
        group.structures(1, &mut |column, chunk| {
            let mut last = 0;
            while let Some((number, kind)) = chunk.field(&mut last)? {
                if matches!((number, kind), (8, STRUCT) | (9, BINARY)) {
                    found.insert(column, "it is marked as encrypted".to_owned());
                }
                chunk.skip(kind)?;
            }
            Ok(())
        })
    })?;
    Ok(found)
}

/// A footer of used fields without the annotations that the crate refuses, and their columns.
fn without_odd_types(used: &[u8]) -> Result<(Vec<u8>, BTreeMap<usize, String>), Malformed> {
    let (mut from, mut into, mut last) = (Reader::new(used), Writer::default(), 0);
    let (mut columns, mut odd) = (0, BTreeMap::new());
    while let Some((number, kind)) = from.field(&mut last)? {
        into.field(number, kind);
        if (number, kind) != (2, LIST) {
            into.bytes.extend_from_slice(from.whole(kind)?);
            continue;
        }
        let (count, items) = from.list()?;
        into.list(count, items);
        for _ in 0..count {
            let element = from.whole(STRUCT)?;
            let (mut fields, mut last, mut is_column) = (Reader::new(element), 0, false);
            while let Some((number, kind)) = fields.field(&mut last)? {
                is_column |= number == 1;
                fields.skip(kind)?;
            }
            match decode(&of_one(element)) {
                Err(error) if is_column => {
                    odd.insert(columns, error);
                    copy_struct(&mut Reader::new(element), BARE_ELEMENT, &mut into)?;
                }
                _ => into.bytes.extend_from_slice(element),
            }
            columns += usize::from(is_column);
        }
    }
    into.end();
    Ok((into.bytes, odd))
}

/// The footer of a file without rows whose schema is this element.
fn of_one(element: &[u8]) -> Vec<u8> {
    let mut into = Writer::default();
    into.integer_field(1, 1);
    into.field(2, LIST);
    into.list(2, STRUCT);
    into.field(4, BINARY);
    into.bytes.extend_from_slice(b"\x01x");
    into.integer_field(5, 1);
    into.end();
    into.bytes.extend_from_slice(element);
    into.field(3, I64);
    into.integer(0);
    into.field(4, LIST);
    into.list(0, STRUCT);
    into.end();
    into.bytes
}

/// The footer with the fields only that are used.
fn used(footer: &[u8]) -> Result<Vec<u8>, Malformed> {
    let (mut from, mut into) = (Reader::new(footer), Writer::default());
    copy_struct(&mut from, FILE, &mut into)?;
    check_depth(&into.bytes)?;
    Ok(into.bytes)
}

/// Refuses a schema of more levels than [`MAX_DEPTH`].
fn check_depth(footer: &[u8]) -> Result<(), Malformed> {
    // Children that are still to come, of each group that the next element is in.
    let mut groups: Vec<i64> = Vec::new();
    Reader::new(footer).structures(2, &mut |_, element| {
        let (mut children, mut last) = (0, 0);
        while let Some((number, kind)) = element.field(&mut last)? {
            match (number, kind) {
                (5, I32) => children = element.integer()?,
                _ => element.skip(kind)?,
            }
        }
        while groups.pop_if(|left| *left <= 0).is_some() {}
        if let Some(left) = groups.last_mut() {
            *left -= 1;
        }
        if children > 0 {
            groups.push(children);
        }
        if groups.len() > MAX_DEPTH { Err(Malformed("a schema of too many levels")) } else { Ok(()) }
    })
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
