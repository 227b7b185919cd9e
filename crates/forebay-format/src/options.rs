//! Options of opening a dataset.

use std::path::PathBuf;
use std::str::FromStr;

use forebay_types::{Dtype, Field};
use serde::{Deserialize, Serialize};

use crate::{Error, Format};

/// What to open in a file, and how to read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpenOptions {
    /// Name of a database within the file (LMDB); `None`: the main one.
    pub database: Option<String>,
    /// How records become fields.
    pub schema: SchemaChoice,
    /// The container format; `None`: found from the contents.
    pub format: Option<Format>,
    /// The fields to read, in this order; empty: all.
    pub fields: Vec<String>,
    /// The layout of the records of a raw file.
    pub raw: Option<RawLayout>,
    /// The windows of a file of tokens.
    #[serde(default)]
    pub tokens: Option<TokenLayout>,
    /// What counts the samples of a file of arrays.
    #[serde(default)]
    pub sample_axis: SampleAxis,
    /// The file that lists the samples of a folder.
    #[serde(default)]
    pub manifest: Option<Manifest>,
    /// Whether symbolic links in a folder are followed.
    #[serde(default)]
    pub follow_symlinks: bool,
    /// What becomes of nulls in the columns of a table.
    #[serde(default)]
    pub nulls: Nulls,
}

/// What becomes of nulls in the columns of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nulls {
    /// They are errors.
    #[default]
    Raise,
    /// A field of booleans tells them from values.
    Mask,
}

impl OpenOptions {
    /// A string that differs between options that lead to different indexes of the same files.
    pub(crate) fn key(&self, format: Format) -> Vec<u8> {
        let Self {
            database,
            schema,
            format: _,
            fields,
            raw,
            tokens,
            sample_axis,
            manifest,
            follow_symlinks,
            nulls,
        } = self;
        let mut key = format!("{}\0{database:?}\0{}", format.name(), schema.name()).into_bytes();
        if !fields.is_empty() || raw.is_some() {
            key.extend(serde_json::to_vec(&(fields, raw)).expect("numbers and text are JSON"));
        }
        if let Some(tokens) = tokens {
            // What readers check changes no sample.
            let tokens = TokenLayout { vocabulary: None, ..tokens.clone() };
            key.extend(b"\0tokens=");
            key.extend(serde_json::to_vec(&tokens).expect("numbers and text are JSON"));
        }
        if sample_axis.is_file() {
            key.extend(b"\0sample_axis=None");
        }
        if let Some(Manifest { path: _, reading }) = manifest {
            key.extend(format!("\0manifest={reading}").into_bytes());
        }
        if *follow_symlinks {
            key.extend(b"\0follow_symlinks");
        }
        if *nulls == Nulls::Mask {
            key.extend(b"\0nulls=mask");
        }
        key
    }
}

/// A file that lists files of a folder, which are samples, and says more of each.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Manifest {
    /// The file.
    pub path: PathBuf,
    /// How it is read, in the words of what reads it.
    pub reading: String,
}

/// The schema that the caller chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchemaChoice {
    /// The one that fits: `CaffeDatum` if records parse as such, else `Raw`.
    #[default]
    Auto,
    /// Records as they are.
    Raw,
    /// Records are Caffe's `Datum` messages.
    CaffeDatum,
    /// Records are `TensorFlow`'s `tf.train.Example` messages.
    TfExample,
    /// Records are `MXNet`'s image records.
    ImageRecord,
}

impl SchemaChoice {
    /// All choices and their names.
    pub const ALL: [(&'static str, Self); 5] = [
        ("auto", Self::Auto),
        ("raw", Self::Raw),
        ("caffe-datum", Self::CaffeDatum),
        ("tf-example", Self::TfExample),
        ("image-record", Self::ImageRecord),
    ];

    /// The name, as in `schema="caffe-datum"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Raw => "raw",
            Self::CaffeDatum => "caffe-datum",
            Self::TfExample => "tf-example",
            Self::ImageRecord => "image-record",
        }
    }
}

impl FromStr for SchemaChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, choice)| *choice).ok_or_else(|| {
            Error::Usage {
                message: format!("there is no schema {name:?}"),
                hint: format!("schemas: {}", Self::ALL.map(|(known, _)| known).join(", ")),
            }
        })
    }
}

/// The layout of a record of a raw file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RawLayout {
    /// Size of a record \[bytes\].
    pub record_bytes: u64,
    /// Bytes before the first record.
    pub header_bytes: u64,
    /// The fields to read and where each begins [bytes from the start of the record]; empty: one
    /// field `data`.
    pub fields: Vec<(Field, u64)>,
}

/// Which tokens of a file are a sample.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenLayout {
    /// Type of the tokens; `None`: as the file says.
    pub dtype: Option<Dtype>,
    /// Tokens of a sample, at least 1.
    pub window: u64,
    /// Tokens from the start of a sample to that of the next one, at least 1.
    pub stride: u64,
    /// What the bounds of documents do.
    pub documents: Documents,
    /// Bytes before the first token, of files that are nothing else; `None`: as the file says,
    /// whose first bytes are looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header_bytes: Option<u64>,
    /// Ids are below this, which readers check; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<u64>,
}

/// What the bounds of documents do to windows of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Documents {
    /// Nothing: windows go across them.
    #[default]
    Ignore,
    /// A window ends with its document, and the first one of a document begins with it.
    Cut,
}

/// What counts the samples of a file of arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SampleAxis {
    /// The first axis, by default.
    #[default]
    Auto,
    /// The first axis, by the caller's choice.
    First,
    /// Nothing: a file is one sample.
    File,
}

impl SampleAxis {
    /// Whether a file is one sample.
    #[must_use]
    pub fn is_file(self) -> bool {
        self == Self::File
    }

    /// The shape of samples and their number in an array of this shape: its first axis, or a first
    /// axis of one.
    #[must_use]
    pub fn shape(self, mut shape: Vec<u64>) -> Vec<u64> {
        if self.is_file() {
            shape.insert(0, 1);
        }
        shape
    }
}
