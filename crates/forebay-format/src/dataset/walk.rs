//! Building an index of any format but LMDB: a walk per file, and a look at a few samples.

use std::sync::Arc;
use std::time::Instant;

use forebay_types::{Layout, Located, Piece, SampleId, ShardId};

use super::build::IndexReport;
use super::{BuiltIndex, Dataset, Files, Progress};
use crate::container::{self, Column, Container};
use crate::sidecar::{ShardInfo, Writer};
use crate::{Error, Format, Index, Schema, SchemaError};

impl Dataset {
    /// The files of which another library has to find the structure before an index is built, by number.
    pub fn unknown_structures(&self) -> Vec<usize> {
        let Files::Other(files) = &self.files else { return Vec::new() };
        (0..files.len()).filter(|shard| files[*shard].needs_structure()).collect()
    }

    /// Takes the structure of a file from who has found it: bytes that are checked like any other input.
    pub fn tell_structure(&self, shard: usize, structure: &[u8]) -> Result<(), Error> {
        match &self.files {
            Files::Lmdb(_) => Ok(()),
            Files::Other(files) => files[shard].tell_structure(structure),
        }
    }

    /// Walks the files, one after the other, and makes an index of them.
    pub(super) fn build_from_files(
        &self,
        files: &[Arc<dyn Container>],
        progress: &dyn Fn(Progress) -> bool,
    ) -> Result<BuiltIndex, Error> {
        let started = Instant::now();
        let columns = files[0].columns()?;
        for file in &files[1..] {
            refuse_other_columns(&columns, &**file, &*files[0])?;
        }
        let mut writer = Writer::new(columns.iter().map(|column| column.classes.clone()).collect());
        let all: Vec<&dyn Container> = files.iter().map(|file| &**file).collect();
        container::tile(&mut writer, columns.len(), &all);
        let mut report = IndexReport::default();
        let by_files = self.format == Format::Folder;
        let what = if by_files { "files" } else { "bytes" };
        // How many files a folder has is known when all are found.
        let total = if by_files { 0 } else { self.shards.iter().map(|shard| shard.bytes).sum() };
        for (number, file) in files.iter().enumerate() {
            let before = if by_files { writer.samples() } else { report.file_bytes };
            let tell = |done| progress(Progress { what, done: before + done, total });
            let walked = file.add_to(&mut writer, &tell)?;
            for (name, count) in walked.excluded {
                (0..count).for_each(|_| writer.exclude(&name));
            }
            report.warnings.extend(walked.warnings);
            if let Some(names) = walked.names {
                writer.names(names);
            }
            file.check_unchanged()?;
            let described = self.describe_shard(number);
            let bytes = walked.bytes.unwrap_or(described.bytes);
            writer.end_shard(ShardInfo { bytes, ..described });
            report.file_bytes += bytes;
        }
        let all = if by_files { writer.samples() } else { total };
        progress(Progress { what, done: all, total: all });
        if writer.samples() == 0 {
            return Err(Error::Unsupported {
                path: self.shards[0].path.clone(),
                what: "a dataset without samples".to_owned(),
                found: "no sample in any file".to_owned(),
                hint: String::new(),
            });
        }
        let schema = self.look_for_schema(&writer, &columns, &*files[0])?;
        report.samples = writer.samples();
        report.excluded = writer.summary().excluded.clone();
        let bytes = writer.finish(self.format, schema, self.fingerprint);
        report.sidecar_bytes = bytes.len() as u64;
        for file in files {
            report.reads += file.input().reads();
            report.read_bytes += file.input().read_bytes();
        }
        report.seconds = started.elapsed().as_secs_f64();
        Ok(BuiltIndex { bytes, report })
    }

    /// Finds the schema. What a sample's columns hold is read by an index without one.
    fn look_for_schema(
        &self,
        writer: &Writer,
        columns: &[Column],
        file: &dyn Container,
    ) -> Result<Schema, Error> {
        let fields = columns.iter().map(|column| column.field.clone()).collect();
        let plain = if columns.len() == 1 { Schema::Raw } else { Schema::Fields(fields) };
        let mut index = None;
        let found = file.schema(self.options.schema, columns, writer.samples(), &mut |sample| {
            if index.is_none() {
                let bytes = writer.finish(self.format, plain.clone(), self.fingerprint);
                index = Some(self.index(Arc::new(bytes))?);
            }
            self.read_columns(index.as_ref().expect("just made"), SampleId(sample))
        });
        found.map_err(|error| match (error, &index) {
            (Error::Schema { sample, source, .. }, Some(index)) => self.misplaced(index, sample, source),
            (error, _) => error,
        })
    }

    /// The error of a sample that does not fit its schema, with the place that only the index knows.
    fn misplaced(&self, index: &Index, sample: u64, source: Box<SchemaError>) -> Error {
        let mut located = Located::default();
        if let Err(error) = index.locate(&[SampleId(sample)], &mut located) {
            return error;
        }
        let extent = located.pieces().iter().find_map(|piece| match piece {
            Piece::Extent(extent) => Some(*extent),
            Piece::Literal { .. } => None,
        });
        let (shard, offset) = extent.map_or((ShardId(0), 0), |extent| (extent.shard, extent.offset));
        match self.path_of(index, shard) {
            Ok(path) => Error::Schema { path, sample, offset, source },
            Err(error) => error,
        }
    }
}

/// Refuses a file whose samples have other columns than those of the first one.
fn refuse_other_columns(
    columns: &[Column],
    file: &dyn Container,
    first: &dyn Container,
) -> Result<(), Error> {
    let found = file.columns()?;
    if found == columns {
        return Ok(());
    }
    let differs = columns.iter().zip(&found).find(|(expected, found)| expected != found);
    let (expected, found) = match differs {
        Some((expected, found)) => (told(expected), told(found)),
        None => (format!("{} fields", columns.len()), format!("{} fields", found.len())),
    };
    let what = format!("samples that are not like those of {}", first.input().path().display());
    let hint = "open files with other fields as another dataset, or name what they share in fields=";
    Err(file.input().unsupported(what, format!("{found} instead of {expected}"), hint))
}

/// A field, for a message.
fn told(column: &Column) -> String {
    let field = &column.field;
    let shape = match (&field.layout, &field.numpy) {
        (Layout::Ragged, _) => return format!("{:?} of {}, varying length", field.name, field.dtype.name()),
        // The last axis is the bytes of an item.
        (Layout::Dense(shape), Some(_)) => &shape[..shape.len().saturating_sub(1)],
        (Layout::Dense(shape), None) => &shape[..],
    };
    let dtype = field.numpy.as_deref().unwrap_or(field.dtype.name());
    format!("{:?} of {dtype}, shape {shape:?}", field.name)
}
