//! Parquet: the pages of a column chunk, decoded by the crate `parquet`.
//!
//! The headers of the pages are checked first (`pages.rs`). The values come out back to back: fixed
//! ones in their width, byte strings without their lengths. [`read`] also returns the levels and
//! lengths, which an index needs. The crate may panic on damaged pages; [`decode`] makes an error
//! of that.

pub(crate) mod pages;
pub(crate) mod thrift;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;

use parquet::basic::{Compression, GzipLevel, Type as PhysicalType, ZstdLevel};
use parquet::column::page::PageReader;
use parquet::column::reader::{ColumnReaderImpl, GenericColumnReader};
use parquet::data_type::{
    AsBytes, BoolType, ByteArrayType, DataType, DoubleType, FixedLenByteArrayType, FloatType, Int32Type,
    Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor, ColumnPath, Type};
use serde::{Deserialize, Serialize};

use self::pages::Compressed;
use super::CodecError;

pub(super) const NAME: &str = "parquet";

/// Records that are decoded at once: bounds the levels in memory.
const BATCH_RECORDS: usize = 4096;

/// Most nested lists and structures that a column may claim.
const MAX_LEVEL: i16 = 256;

/// How the pages of a column are encoded, as its file's schema says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParquetColumn {
    /// Physical type, such as `INT32`.
    pub physical: String,
    /// Bytes of a value that are kept, from the first on; of a fixed array all of them; 0 for byte
    /// strings \[bytes\].
    pub item_bytes: u32,
    /// Compression of the pages, such as `SNAPPY`.
    pub compression: String,
    /// Definition level of a value that is there.
    pub definition: i16,
    /// Levels of repetition: the number of lists around a value.
    pub repetition: i16,
    /// Whether data pages of version 2 are compressed also where they say that they are not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub always_compressed: bool,
    /// What becomes of nulls.
    #[serde(default, skip_serializing_if = "ParquetNulls::is_none")]
    pub nulls: ParquetNulls,
}

/// What becomes of the nulls of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParquetNulls {
    /// There are none: the index has found that.
    #[default]
    None,
    /// A value of zeros, or an empty string; an empty list.
    Zeros,
    /// Of each row a byte instead of its value: 1 where its definition level is this or higher.
    Mask(i16),
}

impl ParquetNulls {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// What a batch of records holds besides its values.
pub(crate) struct Records<'a> {
    /// Rows that begin in the batch, and values in it.
    pub(crate) rows: usize,
    pub(crate) values: usize,
    /// Levels; empty where a column has none.
    pub(crate) definition: &'a [i16],
    pub(crate) repetition: &'a [i16],
}

/// What [`read`] hands on.
pub(crate) trait Sink {
    /// Takes the next value.
    fn value(&mut self, value: &[u8]) -> Result<(), CodecError>;

    /// Takes the levels of a batch, after its values.
    fn records(&mut self, records: &Records<'_>) -> Result<(), CodecError>;
}

impl ParquetColumn {
    /// Checks what a file claims.
    pub(super) fn check(&self) -> bool {
        let width = match PhysicalType::from_str(&self.physical) {
            Ok(PhysicalType::BOOLEAN) => self.item_bytes == 1,
            Ok(PhysicalType::INT32) => matches!(self.item_bytes, 1 | 2 | 4),
            Ok(PhysicalType::FLOAT) => self.item_bytes == 4,
            Ok(PhysicalType::INT64 | PhysicalType::DOUBLE) => self.item_bytes == 8,
            Ok(PhysicalType::FIXED_LEN_BYTE_ARRAY) => (1..=1 << 30).contains(&self.item_bytes),
            Ok(PhysicalType::BYTE_ARRAY) => self.item_bytes == 0,
            Ok(PhysicalType::INT96) | Err(_) => false,
        };
        let levels = [self.definition, self.repetition].iter().all(|level| (0..=MAX_LEVEL).contains(level));
        width && levels && compression(&self.compression).is_some()
    }

    /// How the pages are compressed.
    fn compressed(&self) -> Compressed {
        match (compression(&self.compression), self.always_compressed) {
            (Some(Compression::UNCOMPRESSED) | None, _) => Compressed::Never,
            (Some(_), false) => Compressed::Declared,
            (Some(_), true) => Compressed::Always,
        }
    }

    fn descriptor(&self) -> Result<(ColumnDescPtr, Compression), ParquetError> {
        let physical = PhysicalType::from_str(&self.physical)?;
        let mut builder = Type::primitive_type_builder("values", physical);
        if physical == PhysicalType::FIXED_LEN_BYTE_ARRAY {
            builder = builder.with_length(self.item_bytes as i32);
        }
        let column = Arc::new(builder.build()?);
        let path = ColumnPath::new(vec!["values".to_owned()]);
        let descriptor = ColumnDescriptor::new(column, self.definition, self.repetition, path);
        let unknown = || ParquetError::General(format!("compression {}", self.compression));
        Ok((Arc::new(descriptor), compression(&self.compression).ok_or_else(unknown)?))
    }
}

/// The compression of this name, if pages of it are decoded.
pub(crate) fn compression(name: &str) -> Option<Compression> {
    Some(match name {
        "UNCOMPRESSED" => Compression::UNCOMPRESSED,
        "SNAPPY" => Compression::SNAPPY,
        "GZIP" => Compression::GZIP(GzipLevel::default()),
        "LZ4" => Compression::LZ4,
        "LZ4_RAW" => Compression::LZ4_RAW,
        "ZSTD" => Compression::ZSTD(ZstdLevel::default()),
        _ => return None,
    })
}

/// Hands all values and levels of a column chunk to `sink`.
pub(crate) fn read(column: &ParquetColumn, encoded: &[u8], sink: &mut dyn Sink) -> Result<(), CodecError> {
    let attempt = AssertUnwindSafe(|| read_chunk(column, encoded, sink));
    catch_unwind(attempt).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(wrong(text.unwrap_or_else(|| "damaged pages".to_owned())))
    })
}

fn wrong(found: impl ToString) -> CodecError {
    CodecError::new(NAME, "pages", "those of the column", found)
}

fn read_chunk(column: &ParquetColumn, encoded: &[u8], sink: &mut dyn Sink) -> Result<(), CodecError> {
    let (descriptor, compression) = column.descriptor().map_err(wrong)?;
    let encoded = pages::checked(encoded, column.compressed())?;
    let pages = || -> Result<Box<dyn PageReader>, ParquetError> {
        let chunk = ColumnChunkMetaData::builder(Arc::clone(&descriptor))
            .set_compression(compression)
            .set_data_page_offset(0)
            .set_total_compressed_size(encoded.len() as i64)
            .build()?;
        let bytes = Arc::new(bytes::Bytes::from(encoded));
        Ok(Box::new(SerializedPageReader::new(bytes, &chunk, 0, None)?))
    };
    let pages = pages().map_err(wrong)?;
    match descriptor.physical_type() {
        PhysicalType::BOOLEAN => read_values::<BoolType>(column, &descriptor, pages, sink),
        PhysicalType::INT32 => read_values::<Int32Type>(column, &descriptor, pages, sink),
        PhysicalType::INT64 => read_values::<Int64Type>(column, &descriptor, pages, sink),
        PhysicalType::FLOAT => read_values::<FloatType>(column, &descriptor, pages, sink),
        PhysicalType::DOUBLE => read_values::<DoubleType>(column, &descriptor, pages, sink),
        PhysicalType::BYTE_ARRAY => read_values::<ByteArrayType>(column, &descriptor, pages, sink),
        PhysicalType::FIXED_LEN_BYTE_ARRAY => {
            read_values::<FixedLenByteArrayType>(column, &descriptor, pages, sink)
        }
        PhysicalType::INT96 => Err(wrong("INT96")),
    }
}

fn read_values<T: DataType>(
    column: &ParquetColumn,
    descriptor: &ColumnDescPtr,
    pages: Box<dyn PageReader>,
    sink: &mut dyn Sink,
) -> Result<(), CodecError> {
    let mut reader: ColumnReaderImpl<T> = GenericColumnReader::new(Arc::clone(descriptor), pages);
    let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
    let zeros =
        if column.nulls == ParquetNulls::Zeros { vec![0; column.item_bytes as usize] } else { Vec::new() };
    loop {
        values.clear();
        definition.clear();
        repetition.clear();
        let (rows, count, levels) = reader
            .read_records(BATCH_RECORDS, Some(&mut definition), Some(&mut repetition), &mut values)
            .map_err(wrong)?;
        if rows == 0 && levels == 0 {
            return Ok(());
        }
        let (definition, repetition) = (&definition[..], &repetition[..]);
        let mut found = values[..count].iter().map(|value| {
            let bytes = value.as_bytes();
            let kept =
                if column.item_bytes == 0 { Some(bytes) } else { bytes.get(..column.item_bytes as usize) };
            kept.ok_or_else(|| wrong(format!("a value of {} bytes", bytes.len())))
        });
        match column.nulls {
            ParquetNulls::Zeros if column.repetition == 0 && column.definition > 0 => {
                for level in definition {
                    let value = if *level == column.definition { found.next() } else { Some(Ok(&zeros[..])) };
                    sink.value(value.unwrap_or_else(|| Err(wrong("fewer values than levels")))?)?;
                }
            }
            ParquetNulls::None | ParquetNulls::Zeros => found.try_for_each(|value| sink.value(value?))?,
            ParquetNulls::Mask(_) if column.definition == 0 => {
                (0..rows).try_for_each(|_| sink.value(&[1]))?;
            }
            ParquetNulls::Mask(there) => {
                for (place, level) in definition.iter().enumerate() {
                    if repetition.get(place).is_none_or(|repeated| *repeated == 0) {
                        sink.value(&[u8::from(*level >= there)])?;
                    }
                }
            }
        }
        sink.records(&Records { rows, values: count, definition, repetition })?;
    }
}

/// Values, back to back.
struct Fill<'a> {
    into: &'a mut [u8],
    filled: usize,
}

impl Sink for Fill<'_> {
    fn value(&mut self, value: &[u8]) -> Result<(), CodecError> {
        let (wanted, end) = (self.into.len(), self.filled + value.len());
        let place =
            self.into.get_mut(self.filled..end).ok_or_else(|| CodecError::length(NAME, wanted, "more"))?;
        place.copy_from_slice(value);
        self.filled = end;
        Ok(())
    }

    fn records(&mut self, _: &Records<'_>) -> Result<(), CodecError> {
        Ok(())
    }
}

/// Decodes exactly `into`.
pub(super) fn decode(column: &ParquetColumn, encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    let mut fill = Fill { into, filled: 0 };
    read(column, encoded, &mut fill)?;
    let (filled, wanted) = (fill.filled, into.len());
    if filled == wanted { Ok(()) } else { Err(CodecError::length(NAME, wanted, filled)) }
}
