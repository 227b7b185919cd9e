//! Parquet: column chunks of row groups as coded units.
//!
//! Opening reads the footer (`footer.rs`), by the crate `parquet`. A column chunk is a unit that
//! all rows of its row group share: it is read and decoded once, to values back to back, and a
//! sample is a range of them. An index also decodes the chunks of strings and lists once, for their
//! lengths. Schema and refusals: `docs/formats/parquet.md`.

mod footer;
mod lengths;
mod schema;

use std::path::Path;

use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::statistics::Statistics;

use self::footer::Footer;
use self::lengths::Lengths;
use self::schema::ParquetField;
use crate::codec::parquet::pages::{most_values, span};
use crate::codec::parquet::{compression, read};
use crate::codec::{Codec, ParquetColumn, ParquetNulls};
use crate::container::arrow::ArrowFields;
use crate::container::columns::{choose, null_error, with_masks};
use crate::container::{Column, Container, ScanSummary, check_state, header_digest};
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, RecordClass, ShardState, Writer};
use crate::{Error, Nulls, OpenOptions};

/// Key of the Arrow schema in the footer, which most writers keep there.
const ARROW_SCHEMA: &str = "ARROW:schema";

/// Rows between two reports of progress.
const ROWS_AT_ONCE: usize = 1 << 16;

/// An opened file.
#[derive(Debug)]
pub(crate) struct ParquetFile {
    input: Input,
    metadata: ParquetMetaData,
    columns: Vec<ParquetField>,
    fault: Option<Fault>,
    state: ShardState,
}

/// The rows of a column in one row group.
struct Rows {
    /// Start of their values among the decoded bytes of the shard.
    start: u64,
    lengths: RowLengths,
}

enum RowLengths {
    All(u64),
    Each(Vec<u64>),
}

/// What a writer is known to have written wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Data pages of version 2 are compressed also where they say that they are not: `parquet-cpp`
    /// before 2.0.0, of pyarrow before 3 (ARROW-10353).
    AlwaysCompressed,
    /// The length of a chunk lacks the header of its dictionary: `parquet-mr` before 1.2.9
    /// (PARQUET-816).
    ShortChunks,
}

/// Most bytes of a dictionary's header that the length of a chunk may lack, as in other readers.
const MAX_DICTIONARY_HEADER_BYTES: u64 = 100;

impl Fault {
    fn of(created_by: Option<&str>) -> Option<Self> {
        let version = |text: &str| -> Option<[u32; 3]> {
            let mut parts = text.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
            Some([parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?])
        };
        let writer = created_by?;
        match writer.split_once(" version ").unwrap_or((writer, "0.0.0")) {
            ("parquet-cpp", text) if version(text)? < [2, 0, 0] => Some(Self::AlwaysCompressed),
            ("parquet-mr", text) if version(text)? < [1, 2, 9] => Some(Self::ShortChunks),
            _ => None,
        }
    }
}

/// The state of a file with this footer. Sidecars of files that were read wrongly do not fit.
fn state_of(footer: &[u8], fault: Option<Fault>) -> ShardState {
    match fault {
        None => header_digest(footer),
        Some(Fault::AlwaysCompressed) => header_digest(&[footer, b"compressed"].concat()),
        Some(Fault::ShortChunks) => header_digest(&[footer, b"short"].concat()),
    }
}

impl ParquetFile {
    /// Opens a file and reads its footer.
    pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        Self::new(Input::open(path)?, &options.fields, options.nulls)
    }

    fn new(input: Input, fields: &[String], nulls: Nulls) -> Result<Self, Error> {
        let (start, footer) = footer::read(&input)?;
        let Footer { metadata, refused } = footer::parse(&footer)
            .map_err(|found| input.corrupt(start, "Parquet footer", "valid metadata", found))?;
        let entries = metadata.file_metadata().key_value_metadata();
        let arrow = entries.into_iter().flatten().find(|entry| entry.key == ARROW_SCHEMA);
        let arrow =
            arrow.and_then(|entry| entry.value.as_deref()).map(ArrowFields::of_base64).unwrap_or_default();
        let mut offered = schema::candidates(metadata.file_metadata().schema_descr(), &arrow, &refused);
        let mut fields = fields.to_vec();
        if nulls == Nulls::Mask {
            offered = schema::with_masks(offered);
            fields = with_masks(&fields, |name| offered.iter().any(|(offered, ..)| offered == name));
        }
        let columns = choose(&input, offered, &fields)?;
        let fault = Fault::of(metadata.file_metadata().created_by());
        let state = state_of(&footer, fault);
        let file = Self { input, metadata, columns, fault, state };
        file.check_size(start)?;
        for group in file.metadata.row_groups() {
            for column in &file.columns {
                file.check_chunk(column, group.column(column.number))?;
            }
        }
        Ok(file)
    }

    /// Refuses more rows, or more bytes of columns, than the file can hold.
    fn check_size(&self, footer: u64) -> Result<(), Error> {
        let add = |sum: u64, number: i64| sum.saturating_add(u64::try_from(number).unwrap_or(u64::MAX));
        let (most_rows, file_bytes) = (most_values(self.input.bytes()), self.input.bytes());
        let rows = self.metadata.row_groups().iter().map(RowGroupMetaData::num_rows).fold(0, add);
        if rows > most_rows {
            let expected = format!("at most {most_rows} in {file_bytes} bytes");
            return Err(self.input.corrupt(footer, "rows of all row groups", expected, rows));
        }
        for field in &self.columns {
            let chunks = self.metadata.row_groups().iter().map(|group| group.column(field.number));
            let bytes = chunks.map(ColumnChunkMetaData::compressed_size).fold(0, add);
            if bytes > file_bytes {
                let what = format!("bytes of column {:?}", field.field.name);
                return Err(self.input.corrupt(footer, what, format!("at most {file_bytes}"), bytes));
            }
        }
        Ok(())
    }

    /// Refuses a column chunk that is not read.
    fn check_chunk(&self, column: &ParquetField, chunk: &ColumnChunkMetaData) -> Result<(), Error> {
        let name = &column.field.name;
        let codec = format!("{:?}", chunk.compression_codec());
        if compression(&codec).is_none() {
            let hint = "rewrite the file with zstd, or leave the column out with fields=";
            return Err(self.input.unsupported(format!("the compression of column {name:?}"), codec, hint));
        }
        if chunk.file_path().is_some_and(|path| !path.is_empty()) {
            let found = chunk.file_path().unwrap_or_default().to_owned();
            return Err(self.input.unsupported(
                format!("column {name:?}, which is in another file,"),
                found,
                "",
            ));
        }
        Ok(())
    }

    /// Place and length of a column chunk.
    fn place(&self, column: &ParquetField, chunk: &ColumnChunkMetaData) -> Result<(u64, u64), Error> {
        let first = chunk.dictionary_page_offset().filter(|offset| *offset > 0);
        let first = first.unwrap_or(chunk.data_page_offset()).min(chunk.data_page_offset());
        let length = chunk.compressed_size();
        let mut place = u64::try_from(first).ok().zip(u64::try_from(length).ok());
        if let (Some((start, length)), Some(Fault::ShortChunks)) = (&mut place, self.fault) {
            let left = self.input.bytes().saturating_sub(start.saturating_add(*length));
            let mut encoded = vec![0; (*length + left.min(MAX_DICTIONARY_HEADER_BYTES)) as usize];
            let count = self.input.read_most(*start, &mut encoded)?;
            *length = span(&encoded[..count], chunk.num_values() as u64).unwrap_or(*length as usize) as u64;
        }
        place
            .filter(|(first, length)| first.checked_add(*length).is_some_and(|end| end <= self.input.bytes()))
            .ok_or_else(|| {
                let what = format!("chunk of column {:?}", column.field.name);
                let expected = format!("bytes within {}", self.input.bytes());
                self.input.corrupt(first.max(0) as u64, what, expected, format!("{length} bytes"))
            })
    }

    /// Adds the unit of a column chunk, of a row group that begins with row `first_row`.
    fn add_chunk(
        &self,
        (column, field): (usize, &ParquetField),
        chunk: &ColumnChunkMetaData,
        (first_row, rows): (u64, u64),
        writer: &mut Writer,
    ) -> Result<Rows, Error> {
        if rows == 0 {
            return Ok(Rows { start: 0, lengths: RowLengths::All(0) });
        }
        let place = self.place(field, chunk)?;
        let codec = ParquetColumn {
            physical: field.physical.to_string(),
            item_bytes: field.item_bytes,
            compression: format!("{:?}", chunk.compression_codec()),
            definition: field.definition,
            repetition: field.repetition,
            always_compressed: self.fault == Some(Fault::AlwaysCompressed),
            nulls: field.nulls,
        };
        let what = || format!("chunk of column {:?}", field.field.name);
        let claimed = chunk.statistics().and_then(Statistics::null_count_opt);
        let is_plain = field.item_bytes > 0 && field.repetition == 0;
        if is_plain && (chunk.num_values() as u64 != rows) {
            return Err(self.input.corrupt(place.0, what(), format!("{rows} values"), chunk.num_values()));
        }
        let lengths = if matches!(field.nulls, ParquetNulls::Mask(_)) {
            RowLengths::All(1)
        } else if is_plain
            && (field.definition == 0 || claimed == Some(0) || field.nulls != ParquetNulls::None)
        {
            RowLengths::All(u64::from(field.item_bytes))
        } else {
            let mut encoded = vec![0; place.1 as usize];
            self.input.read(place.0, &mut encoded, &what())?;
            let mut found = Lengths::new(field);
            let broken = |error| self.input.corrupt(place.0, what(), "its pages", error);
            read(&codec, &encoded, &mut found).map_err(broken)?;
            found.end().map_err(broken)?;
            if let Some((row, is_row)) = found.null() {
                return Err(null_error(&self.input, &field.field.name, first_row + row, is_row));
            }
            if found.rows() != rows {
                return Err(self.input.corrupt(place.0, what(), format!("{rows} rows"), found.rows()));
            }
            RowLengths::Each(found.bytes())
        };
        let decoded_bytes = match &lengths {
            RowLengths::All(length) => rows.checked_mul(*length),
            RowLengths::Each(lengths) => Some(lengths.iter().sum()),
        };
        let codec = Codec::Parquet(codec);
        let decoded_bytes = decoded_bytes
            .filter(|bytes| crate::codec::is_plausible(std::slice::from_ref(&codec), place.1, *bytes))
            .ok_or_else(|| self.input.corrupt(place.0, what(), "a plausible number of rows", rows))?;
        let start = match decoded_bytes {
            0 => 0,
            _ => writer.push_unit(column, place, &[codec], decoded_bytes, rows),
        };
        Ok(Rows { start, lengths })
    }
}

impl Rows {
    /// Start and length of the next row's value, whose number is `row`.
    fn next(&mut self, row: usize) -> IndexEntry {
        let length = match &self.lengths {
            RowLengths::All(length) => *length,
            RowLengths::Each(lengths) => lengths[row],
        };
        let start = self.start;
        self.start += length;
        IndexEntry::Plain { class: 0, start, length }
    }
}

impl Container for ParquetFile {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        self.state.clone()
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        let column = |column: &ParquetField| Column {
            field: column.field.clone(),
            classes: vec![RecordClass::in_units("values")],
        };
        Ok(self.columns.iter().map(column).collect())
    }

    fn units(&self) -> Vec<Option<&str>> {
        let schema = self.metadata.file_metadata().schema_descr();
        self.columns.iter().map(|field| schema::unit(&schema.column(field.number))).collect()
    }

    fn entries(&self) -> Option<u64> {
        u64::try_from(self.metadata.file_metadata().num_rows()).ok()
    }

    fn progress_unit(&self) -> (&'static str, Option<u64>) {
        ("row groups", Some(self.metadata.num_row_groups() as u64))
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        _threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        let mut first_row = 0;
        for (number, group) in self.metadata.row_groups().iter().enumerate() {
            if !progress(number as u64) {
                return Err(Error::Interrupted);
            }
            let claimed = group.num_rows();
            let rows = u64::try_from(claimed).map_err(|_| {
                self.input.corrupt(0, format!("rows of row group {number}"), "0 or more", claimed)
            })?;
            let mut columns = self
                .columns
                .iter()
                .enumerate()
                .map(|column| {
                    self.add_chunk(column, group.column(column.1.number), (first_row, rows), writer)
                })
                .collect::<Result<Vec<Rows>, _>>()?;
            for row in 0..rows as usize {
                if row % ROWS_AT_ONCE == ROWS_AT_ONCE - 1 && !progress(number as u64) {
                    return Err(Error::Interrupted);
                }
                writer.push(columns.iter_mut().map(|column| column.next(row)));
            }
            first_row += rows;
        }
        Ok(ScanSummary::default())
    }

    fn describe(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut description = serde_json::Map::new();
        let groups = self.metadata.row_groups();
        description.insert("row_groups".to_owned(), groups.len().into());
        let largest = groups.iter().map(RowGroupMetaData::num_rows).max();
        description.insert("largest_row_group_rows".to_owned(), largest.into());
        if let Some(writer) = self.metadata.file_metadata().created_by() {
            description.insert("created_by".to_owned(), writer.into());
        }
        description
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        self.input.check_unchanged()?;
        let now = state_of(&footer::read(&self.input)?.1, self.fault);
        check_state(&self.input, "footer", &self.state, &now)
    }
}

/// Takes any bytes as a file, and opens and indexes or refuses it. For fuzzing.
#[doc(hidden)]
pub fn index_of_bytes(file: Vec<u8>) -> Result<Vec<u8>, Error> {
    let source: std::sync::Arc<dyn crate::file::ReadAt> = std::sync::Arc::new(file);
    let file = ParquetFile::new(Input::from_source(Path::new("memory.parquet"), source)?, &[], Nulls::Raise)?;
    crate::container::index_alone(crate::Format::Parquet, &file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_writers_are_known_by_name_and_version() {
        for (writer, fault) in [
            ("parquet-cpp version 1.5.1-SNAPSHOT", Some(Fault::AlwaysCompressed)),
            ("parquet-cpp version 2.0.0", None),
            ("parquet-mr", Some(Fault::ShortChunks)),
            ("parquet-mr version 1.2.8 (build x)", Some(Fault::ShortChunks)),
            ("parquet-mr version 1.2.9", None),
            ("parquet-mr version 1.10.1", None),
            ("parquet-mr version unknown", None),
            ("impala version 1.0.0", None),
        ] {
            assert_eq!(Fault::of(Some(writer)), fault, "{writer}");
        }
        assert_eq!(Fault::of(None), None);
    }
}
