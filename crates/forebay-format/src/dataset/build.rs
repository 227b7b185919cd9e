//! Building an index: one scan per file, then schema inference from a few records.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay_types::{Extent, Layout, Located, Piece, SampleId, ShardId};
use serde::Serialize;

use super::read::OpenFiles;
use super::verify::{Units, single_extent};
use super::{Dataset, Progress, Shard};
use crate::container::{self, Column, Container, ScanSummary};
use crate::decoded_units::DecodedUnits;
use crate::index::sidecar::{MAX_CLASSES, MAX_COLUMNS, ShardInfo, Writer};
use crate::schema::Schema;
use crate::schema::infer::{ProbedRecord, SchemaInference, of_fields};
use crate::{Error, Index, SchemaChoice, SchemaError};

/// An index, just built.
#[derive(Clone, Debug)]
pub struct BuiltIndex {
    /// The sidecar.
    pub bytes: Vec<u8>,
    /// Cost and findings of the build.
    pub report: IndexReport,
}

/// What building an index cost and what was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IndexReport {
    /// Samples in the index.
    pub samples: u64,
    /// Records that are not samples, by name.
    pub excluded: BTreeMap<String, u64>,
    /// Databases with names of their own beside the records.
    pub named_databases: u64,
    /// Size of the data files \[bytes\].
    pub file_bytes: u64,
    /// Bytes read to build the index.
    pub read_bytes: u64,
    /// Reads for these.
    pub reads: u64,
    /// Time taken \[s\].
    pub seconds: f64,
    /// Size of the sidecar \[bytes\].
    pub sidecar_bytes: u64,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

impl Dataset {
    /// Scans the files, one after the other, and makes an index of them. Issues up to `threads`
    /// reads at the same time if the format can.
    ///
    /// `progress` is called often; `false` ends the scan with [`Error::Interrupted`].
    pub fn build_index(
        &self,
        threads: usize,
        progress: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<BuiltIndex, Error> {
        self.build_index_with(progress, |shard, writer, progress| {
            self.files[shard].add_to(writer, threads, progress)
        })
    }

    /// Makes an index of the samples that `add` adds to the writer, shard by shard. `add` gets the
    /// number of the shard and reports how much of it is done.
    pub fn build_index_with<E: From<Error>>(
        &self,
        progress: &dyn Fn(Progress) -> bool,
        mut add: impl FnMut(usize, &mut Writer, &dyn Fn(u64) -> bool) -> Result<ScanSummary, E>,
    ) -> Result<BuiltIndex, E> {
        let mut builder = IndexBuilder::new(self)?;
        let (what, _) = self.files[0].progress_unit();
        let totals: Option<Vec<u64>> = self.files.iter().map(|file| file.progress_unit().1).collect();
        let total = totals.as_ref().map_or(0, |totals| totals.iter().sum());
        for (shard, file) in self.files.iter().enumerate() {
            let before =
                totals.as_ref().map_or(builder.writer.samples(), |totals| totals[..shard].iter().sum());
            let report = |done| progress(Progress { what, done: before + done, total });
            let summary = add(shard, builder.begin_shard(shard), &report)?;
            file.check_unchanged()?;
            builder.end_shard(shard, summary);
        }
        let total = if totals.is_some() { total } else { builder.writer.samples() };
        progress(Progress { what, done: total, total });
        Ok(builder.finish()?)
    }

    /// The files whose structure another library has to find before an index is built, by number.
    pub fn unknown_structures(&self) -> Vec<usize> {
        (0..self.files.len()).filter(|shard| self.files[*shard].needs_structure()).collect()
    }

    /// Takes the structure of a file from the library that found it, as untrusted input.
    pub fn set_structure(&self, shard: usize, structure: &[u8]) -> Result<(), Error> {
        self.files[shard].set_structure(structure)
    }

    /// The sidecar's description of a shard; the writer fills in the number of samples.
    fn describe_shard(&self, number: usize) -> ShardInfo {
        let Shard { bytes, modified_ns, .. } = self.shards[number];
        let state = self.files[number].state();
        ShardInfo { name: self.shards[number].name(), bytes, modified_ns, samples: 0, state }
    }
}

/// An index in the making: takes the samples of one shard after the other.
pub(super) struct IndexBuilder<'a> {
    dataset: &'a Dataset,
    started: Instant,
    columns: Vec<Column>,
    /// For each shard the numbers of its columns' first classes.
    first_classes: Vec<Vec<u8>>,
    pub(crate) writer: Writer,
    /// Of all shards, as far as errors need it.
    summary: ScanSummary,
    pub(crate) report: IndexReport,
}

impl<'a> IndexBuilder<'a> {
    pub(crate) fn new(dataset: &'a Dataset) -> Result<Self, Error> {
        let started = Instant::now();
        let (columns, first_classes) = merge_columns(&dataset.files)?;
        let mut writer = Writer::new(columns.iter().map(|column| column.classes.clone()).collect());
        let files: Vec<&dyn Container> = dataset.files.iter().map(|file| &**file).collect();
        container::tile(&mut writer, columns.len(), &files);
        let (summary, report) = Default::default();
        Ok(Self { dataset, started, columns, first_classes, writer, summary, report })
    }

    /// Begins a shard and returns the writer for its samples.
    pub(crate) fn begin_shard(&mut self, shard: usize) -> &mut Writer {
        self.writer.first_classes(&self.first_classes[shard]);
        &mut self.writer
    }

    /// Ends a shard.
    pub(crate) fn end_shard(&mut self, shard: usize, summary: ScanSummary) {
        for (name, count) in summary.excluded {
            (0..count).for_each(|_| self.writer.exclude(&name));
        }
        if let Some(names) = summary.names {
            self.writer.names(names);
        }
        let described = self.dataset.describe_shard(shard);
        let bytes = summary.bytes.unwrap_or(described.bytes);
        self.writer.end_shard(ShardInfo { bytes, ..described });
        let input = self.dataset.files[shard].input();
        self.report.file_bytes += bytes;
        self.report.reads += summary.reads + input.reads();
        self.report.read_bytes += summary.read_bytes + input.read_bytes();
        self.report.named_databases += summary.named_databases;
        self.report.warnings.extend(summary.warnings);
        self.summary.database_names.extend(summary.database_names);
        self.summary.pairs |= summary.pairs;
    }

    /// Infers the schema, which reads a few records, and makes the sidecar.
    pub(crate) fn finish(mut self) -> Result<BuiltIndex, Error> {
        let dataset = self.dataset;
        self.report.excluded = self.writer.summary().excluded.clone();
        if self.writer.samples() == 0 {
            let excluded: Vec<&str> = self.report.excluded.keys().map(String::as_str).collect();
            let (found, hint) = dataset.files[0].explain_empty(&self.summary, &excluded);
            let what = "a dataset without samples".to_owned();
            return Err(Error::Unsupported { path: dataset.shards[0].path.clone(), what, found, hint });
        }
        let bytes = self.sidecar()?;
        let Self { started, writer, mut report, .. } = self;
        report.samples = writer.samples();
        report.sidecar_bytes = bytes.len() as u64;
        report.seconds = started.elapsed().as_secs_f64();
        Ok(BuiltIndex { bytes, report })
    }

    /// Infers the schema, and makes the sidecar. Records are read through an index without a
    /// schema, whose sidecar then gets it.
    fn sidecar(&mut self) -> Result<Vec<u8>, Error> {
        let Dataset { files, options, format, fingerprint, .. } = self.dataset;
        let (path, choice) = (files[0].input().path(), options.schema);
        if self.summary.pairs && choice == SchemaChoice::Auto {
            return Err(refuse_pairs(path));
        }
        let Some(usual) = files[0].usual_schema() else {
            let fields = self.columns.iter().map(|column| column.field.clone()).collect();
            let schema = of_fields(path, *format, choice, fields)?;
            return Ok(self.writer.finish(*format, schema, *fingerprint));
        };
        let (index, records) = (OnceCell::new(), OnceCell::new());
        let inference = SchemaInference { path, choice, usual, fields: &options.fields };
        let found = inference.infer(self.writer.samples(), &mut |sample| {
            if index.get().is_none() {
                let bytes = self.writer.finish(*format, Schema::Raw, *fingerprint);
                let _ = index.set(self.dataset.index(Arc::new(bytes))?);
            }
            let index = index.get().expect("just made");
            records.get_or_init(|| RecordReader::new(self.dataset, index)).record(sample)
        });
        if let Some(records) = records.get() {
            self.report.reads += records.reads.get();
            self.report.read_bytes += records.read_bytes.get();
        }
        match (found, index.get()) {
            (Ok(schema), Some(index)) => Ok(index.sidecar_with(schema)),
            (Ok(schema), None) => Ok(self.writer.finish(*format, schema, *fingerprint)),
            (Err(Error::Schema { sample, source, .. }), Some(index)) => {
                Err(self.dataset.misplaced(index, sample, source))
            }
            (Err(error), _) => Err(error),
        }
    }
}

/// The error of records of which two are a sample: an image and its label.
fn refuse_pairs(path: &Path) -> Error {
    let shown = path.parent().filter(|_| path.ends_with("data.mdb")).unwrap_or(path).display();
    Error::Unsupported {
        path: path.to_owned(),
        what: "a sample that is two records".to_owned(),
        found: "image-000000001 and label-000000001".to_owned(),
        hint: format!(
            "forebay convert {shown} TARGET.tar writes samples of two fields; schema=\"raw\" reads each record as a sample"
        ),
    }
}

/// Reads records for schema inference, and counts that.
struct RecordReader<'a> {
    dataset: &'a Dataset,
    index: &'a Index,
    files: OpenFiles<'a>,
    reads: Cell<u64>,
    read_bytes: Cell<u64>,
}

impl<'a> RecordReader<'a> {
    fn new(dataset: &'a Dataset, index: &'a Index) -> Self {
        let (reads, read_bytes) = Default::default();
        Self { dataset, index, files: OpenFiles::new(dataset, index), reads, read_bytes }
    }

    fn count(&self, bytes: usize) {
        self.reads.set(self.reads.get() + 1);
        self.read_bytes.set(self.read_bytes.get() + bytes as u64);
    }

    /// The record of a sample. Reads only the requested part if the format has no checksums of
    /// records and stores the record in one piece, else the whole record.
    fn record(&self, sample: u64) -> Result<ProbedRecord<'_>, Error> {
        let mut located = Located::default();
        self.index.locate(&[SampleId(sample)], &mut located)?;
        if let Some(extent) = single_extent(&located, 0).filter(|_| !self.index.has_checksums()) {
            let slice = located.slices(0, 0)[0];
            let read = move |at: u64, into: &mut [u8]| {
                self.count(into.len());
                self.files.read(Extent { offset: extent.offset + slice.offset + at, ..extent }, into)
            };
            return Ok(ProbedRecord { bytes: slice.length, read: Box::new(read) });
        }
        let (units, decoded) = (&mut Units::default(), DecodedUnits::default());
        let mut columns =
            self.dataset.read_located(&self.files, self.index, &located, 0, (units, &decoded))?;
        let record = columns.swap_remove(0);
        self.count(record.len());
        Ok(ProbedRecord::whole(record))
    }
}

impl Dataset {
    /// The error of a sample that does not fit its schema, with the offset from the index.
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

/// The columns of all files together, and for each file the numbers of its columns' first classes.
fn merge_columns(files: &[Arc<dyn Container>]) -> Result<(Vec<Column>, Vec<Vec<u8>>), Error> {
    let first = files.iter().position(|file| !file.is_empty()).unwrap_or_default();
    let mut columns = files[first].columns()?;
    if columns.len() > MAX_COLUMNS {
        return Err(Error::Unsupported {
            path: files[first].input().path().to_owned(),
            what: format!("a dataset of more than {MAX_COLUMNS} fields"),
            found: format!("{} of them", columns.len()),
            hint: "name some with fields=".to_owned(),
        });
    }
    let mut first_classes = Vec::with_capacity(files.len());
    for (number, file) in files.iter().enumerate() {
        // A file without samples may not know its fields.
        if number == first || file.is_empty() {
            first_classes.push(vec![0; columns.len()]);
            continue;
        }
        let found = file.columns()?;
        refuse_other_fields(&columns, &found, &**file, &*files[first])?;
        let mut first = Vec::with_capacity(columns.len());
        for (column, found) in columns.iter_mut().zip(found) {
            let count = found.classes.len();
            first.push(column.add_classes(found.classes) as u8);
            if column.classes.len() > MAX_CLASSES {
                return Err(Error::Usage {
                    message: format!(
                        "{}: its records lie as in none of {} kinds of files before it (page size, LMDB version)",
                        file.input().path().display(),
                        column.classes.len() / count - 1
                    ),
                    hint: format!("a dataset mixes at most {}; rewrite some of them", MAX_CLASSES / count),
                });
            }
        }
        first_classes.push(first);
    }
    Ok((columns, first_classes))
}

/// Refuses a file whose samples have other fields than those of the first one.
fn refuse_other_fields(
    columns: &[Column],
    found: &[Column],
    file: &dyn Container,
    first: &dyn Container,
) -> Result<(), Error> {
    let differs = columns.iter().zip(found).find(|(expected, found)| expected.field != found.field);
    let units = [first.units(), file.units()];
    let of_unit = units[0].iter().zip(&units[1]).zip(columns).find(|((first, other), _)| first != other);
    let (expected, found) = match (differs, of_unit) {
        (Some((expected, found)), _) => (describe(expected), describe(found)),
        (None, _) if columns.len() != found.len() => {
            (format!("{} fields", columns.len()), format!("{} fields", found.len()))
        }
        (None, Some(((first, other), column))) => {
            let counts =
                |unit: Option<&str>| format!("{:?} in {}", column.field.name, unit.unwrap_or("no unit"));
            (counts(*first), counts(*other))
        }
        (None, None) => return Ok(()),
    };
    let what = format!("samples that are not like those of {}", first.input().path().display());
    let hint = "open files with other fields as another dataset, or select the shared fields with fields=";
    Err(file.input().unsupported(what, format!("{found} instead of {expected}"), hint))
}

/// A field, for a message.
fn describe(column: &Column) -> String {
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
