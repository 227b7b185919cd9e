//! The interface between a dataset and the formats: [`Container`], one file of a dataset.
//!
//! A format reduces a file to the locations of its samples' columns; all other code is the same for
//! all formats.

pub mod array_record;
pub mod arrow;
mod columns;
mod directory;
pub(crate) mod folder;
pub mod hdf5;
mod index_json;
mod length_delimited;
pub mod litdata;
pub mod lmdb;
pub mod mds;
pub mod npy;
pub mod offset_table;
pub mod parquet;
mod raw;
pub mod recordio;
pub(crate) mod registry;
mod signature;
pub mod tar;
pub mod tfrecord;
mod tokens;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use forebay_types::Field;
use xxhash_rust::xxh3::xxh3_128;

use crate::file::Input;
use crate::index::Index;
use crate::index::sidecar::{NameTable, RecordClass, ShardInfo, ShardState, Tiles, Writer};
use crate::schema::opaque_field;
use crate::{Error, Format, Schema, SchemaChoice, SidecarError};

/// One file of a dataset, open for reading; its headers were read and checked.
pub(crate) trait Container: Any + fmt::Debug + Send + Sync {
    /// The file.
    fn input(&self) -> &Input;

    /// The state of the file besides its size and modification time, to detect changes.
    fn state(&self) -> ShardState;

    /// The columns of a sample and the layout of their bytes. All files of a dataset must have the
    /// same fields.
    fn columns(&self) -> Result<Vec<Column>, Error>;

    /// The schema that records of this format usually have, if the format has one column of opaque
    /// records; `None` if its columns are fields.
    fn usual_schema(&self) -> Option<SchemaChoice> {
        None
    }

    /// What the integers of each column count, where their type does not say; empty where no column
    /// has such integers.
    fn units(&self) -> Vec<Option<&str>> {
        Vec::new()
    }

    /// Number of records, excluded ones included; `None` if the headers do not say.
    fn entries(&self) -> Option<u64> {
        None
    }

    /// Whether the headers say that there is no sample, so that there may be no columns to compare
    /// with those of other files.
    fn is_empty(&self) -> bool {
        self.entries() == Some(0)
    }

    /// The file or directory whose modification time shows that the samples are others.
    fn changes_with(&self) -> &Path {
        self.input().path()
    }

    /// The unit in which [`Container::add_to`] reports progress, and the total if it is known
    /// beforehand.
    fn progress_unit(&self) -> (&'static str, Option<u64>) {
        ("bytes", Some(self.input().bytes()))
    }

    /// Adds all samples, in order, to an index under construction. Issues up to `threads` reads at
    /// the same time if the format can.
    ///
    /// `progress` is called often, with how far the scan is ([`Container::progress_unit`]); `false`
    /// ends it with [`Error::Interrupted`].
    fn add_to(
        &self,
        writer: &mut Writer,
        threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error>;

    /// How the bytes of a column lie in this file, where the format has chunks of many samples.
    fn chunks(&self, column: usize) -> Option<ChunkShape> {
        let _ = column;
        None
    }

    /// Whether another library has to find the structure of this file before an index can be built.
    fn needs_structure(&self) -> bool {
        false
    }

    /// Takes the structure of this file, which another library found.
    fn set_structure(&self, structure: &[u8]) -> Result<(), Error> {
        let _ = structure;
        Ok(())
    }

    /// Facts for `forebay inspect` besides the size; keys and values.
    fn describe(&self) -> serde_json::Map<String, serde_json::Value> {
        serde_json::Map::new()
    }

    /// Names of the classes of this file, sorted; none if it names none.
    fn class_names(&self) -> &[Vec<u8>] {
        &[]
    }

    /// Takes the names of the classes of all files, sorted: their order gives the labels.
    fn number_classes(&self, names: &[Vec<u8>]) {
        let _ = names;
    }

    /// Compares a sidecar's description of shard `shard`, which is this file, with the file,
    /// besides size and state.
    fn check_index(&self, index: &Index, shard: usize) -> Result<(), SidecarError> {
        let _ = (index, shard);
        Ok(())
    }

    /// Compares the checksums that are not those of single samples, which reading a sample
    /// compares, with the file: of headers, and of members that hold many samples. `progress` as in
    /// [`Container::add_to`].
    fn check_sums(&self, progress: &dyn Fn(u64) -> bool) -> Result<(), Error> {
        let _ = progress;
        Ok(())
    }

    /// Why a dataset of such files has no samples, and advice to the user: `found` and `hint` of
    /// the error. `summary` is that of the scans of all files, `excluded` the names of records that
    /// are not samples.
    fn explain_empty(&self, summary: &ScanSummary, excluded: &[&str]) -> (String, String) {
        let _ = summary;
        if !excluded.is_empty() {
            let found = format!("only what is not a sample: {}", excluded.join(", "));
            return (found, "pass the files with the samples themselves; links are not followed".to_owned());
        }
        ("no sample in any file".to_owned(), String::new())
    }

    /// [`Error::Modified`] where the file is not what was opened.
    fn check_unchanged(&self) -> Result<(), Error> {
        self.input().check_unchanged()
    }
}

/// What an index keeps for each sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// The field that it is, where columns are fields.
    pub(crate) field: Field,
    /// Kinds of records.
    pub(crate) classes: Vec<RecordClass>,
}

impl Column {
    /// The column of opaque records.
    pub(crate) fn opaque(classes: Vec<RecordClass>) -> Self {
        Self { field: opaque_field(), classes }
    }

    /// Adds the classes of another file, unless they exist, and returns the number of their first
    /// one.
    pub(crate) fn add_classes(&mut self, classes: Vec<RecordClass>) -> usize {
        let known = self.classes.chunks(classes.len()).position(|known| known == classes);
        let first = known.map_or(self.classes.len(), |known| known * classes.len());
        if known.is_none() {
            self.classes.extend(classes);
        }
        first
    }
}

/// How the bytes of a column lie in a file of a format that has chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkShape {
    /// Length of an element \[bytes\].
    pub(crate) item_bytes: u32,
    /// Shape of a sample, in elements.
    pub(crate) sample: Vec<u64>,
    /// Shape of a chunk: rows, then as samples.
    pub(crate) shape: Vec<u64>,
    /// Whether the file needs tiles: it has chunks, or its samples have a codec. Else these are
    /// single samples.
    pub(crate) is_cut: bool,
}

/// Declares the tiled columns to the writer: those for which some file has chunks.
pub(crate) fn tile(writer: &mut Writer, columns: usize, files: &[&dyn Container]) {
    for column in 0..columns {
        let shapes: Option<Vec<ChunkShape>> = files.iter().map(|file| file.chunks(column)).collect();
        let Some(all) = shapes.filter(|shapes| shapes.iter().any(|shape| shape.is_cut)) else { continue };
        let (item_bytes, sample) = (all[0].item_bytes, all[0].sample.clone());
        let (mut shapes, mut shards) = (Vec::new(), Vec::new());
        for ChunkShape { shape, .. } in all {
            let known = shapes.iter().rposition(|known| *known == shape);
            shards.push(known.unwrap_or(shapes.len()) as u32);
            if known.is_none() {
                shapes.push(shape);
            }
        }
        writer.tile(column, Tiles { item_bytes, sample, chains: Vec::new(), shapes, shards });
    }
}

/// The index of one file alone.
pub(crate) fn index_alone(format: Format, file: &dyn Container) -> Result<Vec<u8>, Error> {
    let columns = file.columns()?;
    let mut writer = Writer::new(columns.iter().map(|column| column.classes.clone()).collect());
    tile(&mut writer, columns.len(), &[file]);
    file.add_to(&mut writer, 1, &|_| true)?;
    writer.end_shard(ShardInfo {
        name: file.input().path().display().to_string(),
        bytes: file.input().bytes(),
        modified_ns: 0,
        samples: 0,
        state: file.state(),
    });
    let fields = columns.into_iter().map(|column| column.field).collect();
    Ok(writer.finish(format, Schema::Fields(fields), 0))
}

/// Findings of a scan of a file besides samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanSummary {
    /// Records that are not samples, by name.
    pub excluded: BTreeMap<String, u64>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Size of all data \[bytes\], where it differs from that of the input.
    pub bytes: Option<u64>,
    /// Names of the samples' files, where they have files of their own.
    pub(crate) names: Option<NameTable>,
    /// Whether a sample is a pair of records (LMDB).
    pub(crate) pairs: bool,
    /// Number of databases with names of their own among the records (LMDB).
    pub named_databases: u64,
    /// The first of their names.
    pub database_names: Vec<String>,
    /// Reads that [`Container::input`] did not count.
    pub reads: u64,
    /// Bytes of those reads.
    pub read_bytes: u64,
}

/// [`Error::Modified`] where the state of a file is not the `expected` one; `what` was read again.
pub(crate) fn check_state(
    input: &Input,
    what: &str,
    expected: &ShardState,
    now: &ShardState,
) -> Result<(), Error> {
    if now == expected {
        return Ok(());
    }
    Err(input.modified(what, format!("{expected:?}"), format!("{now:?}")))
}

/// The state of a file that is known by its headers.
pub(crate) fn header_digest(headers: &[u8]) -> ShardState {
    ShardState::File { digest: format!("{:032x}", xxh3_128(headers)) }
}
