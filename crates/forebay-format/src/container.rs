//! The seam between a data set and the formats: what a format answers about one file.
//!
//! A format reduces a file to the places of its samples' columns; everything behind that is the same for all of them.
//! LMDB alone stands beside this seam, in [`crate::lmdb`]: its files are walked level by level, by cursors and by
//! recipes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use forebay_types::{Dtype, Field, Layout};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::file::Input;
use crate::npy::Arrays;
use crate::recordio::RecordIoFile;
use crate::sidecar::{Class, Entry, ShardState};
use crate::tfrecord::TfRecordFile;
use crate::{Error, OpenOptions, Schema, SchemaChoice, raw};

/// A container format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Lightning Memory-Mapped Database.
    Lmdb,
    /// An array of numpy.
    Npy,
    /// Arrays of numpy in a zip archive.
    Npz,
    /// Records of one size, one behind the other.
    Raw,
    /// `MXNet`'s `RecordIO`.
    RecordIo,
    /// `TensorFlow`'s `TFRecord`.
    TfRecord,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 6] = [Self::Lmdb, Self::Npy, Self::Npz, Self::Raw, Self::RecordIo, Self::TfRecord];

    /// The name, as in `format="lmdb"` and in sidecars.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lmdb => "lmdb",
            Self::Npy => "npy",
            Self::Npz => "npz",
            Self::Raw => "raw",
            Self::RecordIo => "recordio",
            Self::TfRecord => "tfrecord",
        }
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| Error::Usage {
            message: format!("there is no format {name:?}"),
            hint: format!("formats: {}", Self::ALL.map(Self::name).join(", ")),
        })
    }
}

/// One file of a data set, open for reading; its headers were read and checked.
pub(crate) trait Container: fmt::Debug + Send + Sync {
    /// The file.
    fn input(&self) -> &Input;

    /// What tells this state of the file from another, besides its size and its last change.
    fn state(&self) -> ShardState;

    /// The columns of a sample and how their bytes lie. All files of a data set must answer alike.
    fn columns(&self) -> Result<Vec<Column>, Error>;

    /// Finds how columns become fields. `look` reads the columns of any of the `samples` samples of the data set.
    fn schema(
        &self,
        choice: SchemaChoice,
        columns: &[Column],
        samples: u64,
        look: &mut Look<'_>,
    ) -> Result<Schema, Error> {
        let _ = (samples, look);
        plain_schema(self.input(), choice, columns)
    }

    /// Goes over all samples in order; `take` gets an entry for each column. `progress` is told how far into the file the
    /// walk is \[bytes\], often; `false` ends the walk with [`Error::Interrupted`].
    fn walk(
        &self,
        progress: &dyn Fn(u64) -> bool,
        take: &mut dyn FnMut(&[Entry]) -> Result<(), Error>,
    ) -> Result<Walked, Error>;

    /// What `forebay inspect` tells of this file besides its size; keys and values.
    fn describe(&self) -> serde_json::Map<String, serde_json::Value> {
        serde_json::Map::new()
    }

    /// Checks a stored unit of one extent that was read whole, of the file from `start` on: what the format keeps to check
    /// data by. Not done in the hot path, but by `forebay verify` and where single samples are read.
    fn check_unit(&self, start: u64, unit: &[u8]) -> Result<(), Error> {
        let _ = (start, unit);
        Ok(())
    }

    /// [`Error::Modified`] where the file is not what was opened.
    fn check_unchanged(&self) -> Result<(), Error> {
        self.input().check_unchanged()
    }
}

/// Reads the columns of a sample.
pub(crate) type Look<'a> = dyn FnMut(u64) -> Result<Vec<Vec<u8>>, Error> + 'a;

/// What an index keeps for each sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// The field that it is, where columns are fields.
    pub(crate) field: Field,
    /// Kinds of records.
    pub(crate) classes: Vec<Class>,
}

impl Column {
    /// The column of records whose bytes are nobody's business here.
    pub(crate) fn opaque(classes: Vec<Class>) -> Self {
        Self { field: Field::new("data", Dtype::Uint8, Layout::Ragged), classes }
    }
}

/// What a walk through a file found besides samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// Records that are not samples, by name.
    pub(crate) excluded: BTreeMap<String, u64>,
    /// What the user should know though all goes on.
    pub(crate) warnings: Vec<String>,
}

/// Opens a file of a format other than LMDB.
pub(crate) fn open(format: Format, path: &Path, options: &OpenOptions) -> Result<Arc<dyn Container>, Error> {
    Ok(match format {
        Format::Lmdb => unreachable!("LMDB files are databases"),
        Format::Npy => Arc::new(Arrays::npy(Input::open(path)?, &options.fields)?),
        Format::Npz => Arc::new(Arrays::npz(Input::open(path)?, &options.fields)?),
        Format::Raw => Arc::new(raw::RawFile::open(path, options)?),
        Format::RecordIo => Arc::new(RecordIoFile::open(path, options)?),
        Format::TfRecord => Arc::new(TfRecordFile::open(path, options)?),
    })
}

/// The schema of columns that are fields; of one opaque column, raw records.
pub(crate) fn plain_schema(input: &Input, choice: SchemaChoice, columns: &[Column]) -> Result<Schema, Error> {
    if !matches!(choice, SchemaChoice::Auto | SchemaChoice::Raw) {
        return Err(Error::Usage {
            message: format!(
                "{}: schema {:?} does not fit this format",
                input.path().display(),
                choice.name()
            ),
            hint: "leave out schema=".to_owned(),
        });
    }
    match columns {
        [column] if *column == Column::opaque(column.classes.clone()) => Ok(Schema::Raw),
        columns => Ok(Schema::Fields(columns.iter().map(|column| column.field.clone()).collect())),
    }
}

/// The state of a file that is known by its headers.
pub(crate) fn state_of(headers: &[u8]) -> ShardState {
    ShardState::File { digest: format!("{:032x}", xxh3_128(headers)) }
}
