//! The container formats that are read.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// A container format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Records of Grain.
    ArrayRecord,
    /// Lightning Memory-Mapped Database.
    Lmdb,
    /// Chunks of `LitData`.
    LitData,
    /// Shards of `MosaicML` Streaming.
    Mds,
    /// An array of numpy.
    Npy,
    /// Arrays of numpy in a zip archive.
    Npz,
    /// Records of one size, back to back.
    Raw,
    /// `MXNet`'s `RecordIO`.
    RecordIo,
    /// `TensorFlow`'s `TFRecord`.
    TfRecord,
    /// Hierarchical Data Format, version 5.
    Hdf5,
    /// tar files as `WebDataset` uses them.
    Tar,
    /// A directory of files.
    Folder,
    /// Record batches of Apache Arrow, as a file or a stream.
    Arrow,
    /// Apache Parquet.
    Parquet,
    /// Tokens, of which a sample is a window.
    Tokens,
}

impl Format {
    /// All formats that a name or the contents of a file choose: not `Tokens`, which needs to be
    /// told of windows.
    pub const ALL: [Self; 14] = [
        Self::Lmdb,
        Self::Hdf5,
        Self::Npy,
        Self::Npz,
        Self::Raw,
        Self::RecordIo,
        Self::TfRecord,
        Self::Tar,
        Self::ArrayRecord,
        Self::LitData,
        Self::Mds,
        Self::Folder,
        Self::Arrow,
        Self::Parquet,
    ];

    /// The name, as in `format="lmdb"` and in sidecars.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ArrayRecord => "arrayrecord",
            Self::Lmdb => "lmdb",
            Self::LitData => "litdata",
            Self::Mds => "mds",
            Self::Npy => "npy",
            Self::Npz => "npz",
            Self::Raw => "raw",
            Self::RecordIo => "recordio",
            Self::TfRecord => "tfrecord",
            Self::Hdf5 => "hdf5",
            Self::Tar => "tar",
            Self::Folder => "folder",
            Self::Arrow => "arrow",
            Self::Parquet => "parquet",
            Self::Tokens => "tokens",
        }
    }

    /// Whether its files name the fields of samples: then a sample is a dict also where its one
    /// field is `data`, as opaque records call theirs.
    #[must_use]
    pub fn names_fields(self) -> bool {
        matches!(self, Self::Npz | Self::Mds | Self::Hdf5 | Self::Tar | Self::Arrow | Self::Parquet)
    }

    /// Whether its files hold arrays, whose first axis may count samples.
    pub(crate) fn has_axes(self) -> bool {
        matches!(self, Self::Hdf5 | Self::Npy | Self::Npz)
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
