//! A dataset: one or more container files whose samples are counted through.
//!
//! [`Dataset::open`] reads headers only. [`build`] (LMDB) and [`walk`] (every other format) go through the containers and make an index, [`place`] says where
//! indexes are kept, [`provenance`] computes one from a recipe, [`keep`] hands on what a walk reads, [`cursor`] finds samples without an index, [`detect`] tells other formats apart, [`find`] finds schemas of LMDB records, [`verify`] reads everything once, [`inspect`] tells what
//! there is, [`counting`] what counts the samples of a file of arrays.

mod build;
mod changes;
mod counting;
mod cursor;
mod detect;
mod find;
mod inspect;
mod keep;
mod opened;
mod place;
mod provenance;
mod verify;
mod walk;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

pub(crate) use build::NOT_SAMPLES;
pub use build::{BuiltIndex, IndexReport};
pub use counting::SampleAxis;
pub use cursor::{SampleCursor, SamplePlace, ShardBytes};
pub use keep::Keep;
pub use place::{CachePolicy, Found, Lookup, Place};
pub use provenance::{FoundRecipe, RecipeLookup, Recorded};
pub use verify::{BadSample, Verification};

use changes::{inode, modified_ns};

use crate::container::{self, Container, Format};
use crate::lmdb::Database;
use crate::{Error, Index, RawLayout, SchemaChoice, ShardState, SidecarFault};

/// What to open in a file, and how to read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpenOptions {
    /// Name of a database within the file (LMDB); `None`: the main one.
    pub database: Option<String>,
    /// How records become fields.
    pub schema: SchemaChoice,
    /// The container format; `None`: found from the contents.
    pub format: Option<Format>,
    /// The fields that are wanted, in this order; empty: all.
    pub fields: Vec<String>,
    /// What the records of a raw file are.
    pub raw: Option<RawLayout>,
    /// What counts the samples of a file of arrays.
    #[serde(default)]
    pub sample_axis: SampleAxis,
}

impl OpenOptions {
    /// Text that differs between options that lead to different indexes of the same files.
    fn key(&self, format: Format) -> Vec<u8> {
        let Self { database, schema, format: _, fields, raw, sample_axis } = self;
        let mut key = format!("{}\0{database:?}\0{}", format.name(), schema.name()).into_bytes();
        if !fields.is_empty() || raw.is_some() {
            key.extend(serde_json::to_vec(&(fields, raw)).expect("numbers and text are JSON"));
        }
        if sample_axis.is_file() {
            key.extend(b"\0sample_axis=None");
        }
        key
    }
}

/// How far a long piece of work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is counted, for example `leaf pages`.
    pub what: &'static str,
    /// Done so far.
    pub done: u64,
    /// All there is to do; 0 as long as nobody knows.
    pub total: u64,
}

/// One file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The data file.
    pub path: PathBuf,
    /// Its size when it was opened \[bytes\].
    pub bytes: u64,
    /// Its last change when it was opened [ns since 1970].
    pub modified_ns: i64,
    /// Device and number of the file when it was opened: which file the path stood for.
    pub(super) inode: (u64, u64),
    /// Hash of its size, last change and state.
    pub fingerprint: u128,
}

/// Container files, open for reading.
#[derive(Clone, Debug)]
pub struct Dataset {
    options: OpenOptions,
    format: Format,
    files: Files,
    shards: Vec<Shard>,
    fingerprint: u128,
}

/// The opened files, shard by shard.
#[derive(Clone, Debug)]
enum Files {
    Lmdb(Vec<Database>),
    Other(Vec<Arc<dyn Container>>),
}

impl Dataset {
    /// Opens the files or directories `paths` as one dataset, in this order. Reads headers only.
    pub fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Self, Error> {
        if paths.is_empty() {
            return Err(Error::Usage {
                message: "a dataset has at least one file, none was named".to_owned(),
                hint: "name a data file, or the directory of an LMDB database".to_owned(),
            });
        }
        let format = detect::format(paths, options)?;
        Self::check_sample_axis(format, options.sample_axis)?;
        let files = if format == Format::Lmdb {
            let open = |path: &PathBuf| Database::open(path, options.database.as_deref());
            Files::Lmdb(paths.iter().map(open).collect::<Result<_, _>>()?)
        } else {
            let open = |path: &PathBuf| container::open(format, path, options);
            Files::Other(paths.iter().map(open).collect::<Result<_, _>>()?)
        };
        let shards = files.shards()?;
        files.refuse_empty(options)?;
        let mut text = options.key(format);
        for shard in &shards {
            text.extend(shard.fingerprint.to_le_bytes());
        }
        let fingerprint = xxh3_128(&text);
        Ok(Self { options: options.clone(), format, files, shards, fingerprint })
    }

    /// The container format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The databases of LMDB files; none of another format.
    fn databases(&self) -> &[Database] {
        match &self.files {
            Files::Lmdb(databases) => databases,
            Files::Other(_) => &[],
        }
    }

    /// [`Error::Usage`] where the files are of another format: `what` is for LMDB alone.
    pub fn need_lmdb(&self, what: &str) -> Result<(), Error> {
        if self.format == Format::Lmdb {
            return Ok(());
        }
        let (path, format) = (self.shards[0].path.display(), self.format.name());
        Err(Error::Usage {
            message: format!("{path}: {what} is for LMDB files; this is {format}"),
            hint: String::new(),
        })
    }

    /// The options it was opened with.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// The data files, in the order of their samples.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Hash of all that tells this state of these files from another, and of the options.
    ///
    /// Names and places of files are not in it, so that an index is found again when a dataset is moved or mounted
    /// elsewhere with its times kept.
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// Reads a sidecar of this dataset.
    pub fn index(&self, bytes: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Result<Index, Error> {
        self.checked_index(bytes)
            .map_err(|fault| Error::Sidecar { path: self.shards[0].path.clone(), source: Box::new(fault) })
    }

    /// Reads a sidecar and holds what it says of the files against the files.
    fn checked_index(&self, bytes: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Result<Index, SidecarFault> {
        let index = Index::read(bytes, self.fingerprint)?;
        let differs = |what: &str, expected: String, found: String| {
            Err(SidecarFault::Damaged { offset: 0, what: what.to_owned(), expected, found })
        };
        if index.meta().format != self.format {
            let name = |format: Format| format.name().to_owned();
            return differs("format", name(self.format), name(index.meta().format));
        }
        if index.shards().len() != self.shards.len() {
            return differs(
                "number of files",
                self.shards.len().to_string(),
                index.shards().len().to_string(),
            );
        }
        for (number, (info, shard)) in index.shards().iter().zip(&self.shards).enumerate() {
            // The bytes of a folder are those of its files, which only a walk finds.
            if info.bytes != shard.bytes && self.format != Format::Folder {
                return differs("size of a file", shard.bytes.to_string(), info.bytes.to_string());
            }
            let state = self.files.state(number);
            if info.state != state {
                return differs("state of a file", format!("{state:?}"), format!("{:?}", info.state));
            }
            if let Files::Other(files) = &self.files {
                files[number].check_index(&index, number)?;
            }
        }
        Ok(index)
    }
}

impl Files {
    /// What tells the state of a file from another.
    fn state(&self, shard: usize) -> ShardState {
        match self {
            Self::Lmdb(databases) => ShardState::Lmdb(databases[shard].identity().clone()),
            Self::Other(files) => files[shard].state(),
        }
    }

    fn shards(&self) -> Result<Vec<Shard>, Error> {
        match self {
            Self::Lmdb(databases) => databases
                .iter()
                .map(|database| {
                    let state = serde_json::to_vec(database.identity()).expect("numbers and text are JSON");
                    Shard::of(database.path(), database.file_bytes(), &state)
                })
                .collect(),
            Self::Other(files) => files
                .iter()
                .map(|file| {
                    let state = serde_json::to_vec(&file.state()).expect("text is JSON");
                    Shard::of(file.input().path(), file.input().bytes(), &state)
                })
                .collect(),
        }
    }

    /// Refuses databases without a single entry. What other formats hold, only a walk shows.
    fn refuse_empty(&self, options: &OpenOptions) -> Result<(), Error> {
        let Self::Lmdb(databases) = self else { return Ok(()) };
        if databases.iter().any(|database| database.entries() > 0) {
            return Ok(());
        }
        let database = options.database.as_ref().map_or(String::new(), |name| format!("database {name:?} "));
        Err(Error::Unsupported {
            path: databases[0].path().to_owned(),
            what: "a dataset without records".to_owned(),
            found: format!("{database}0 entries"),
            hint: "check that the writer committed its last transaction".to_owned(),
        })
    }
}

impl Shard {
    fn of(path: &Path, bytes: u64, state: &[u8]) -> Result<Self, Error> {
        let status = fs::metadata(path).map_err(|source| Error::Io {
            action: "inspect".to_owned(),
            path: path.to_owned(),
            offset: None,
            source,
        })?;
        let modified_ns = modified_ns(&status);
        let mut text = bytes.to_le_bytes().to_vec();
        text.extend(modified_ns.to_le_bytes());
        text.extend(state);
        let (path, inode) = (path.to_owned(), inode(&status));
        Ok(Self { path, bytes, modified_ns, inode, fingerprint: xxh3_128(&text) })
    }

    /// The name of the file with that of its directory, for messages.
    fn name(&self) -> String {
        let last: Vec<_> = self.path.components().rev().take(2).collect();
        let path: PathBuf = last.into_iter().rev().collect();
        path.strip_prefix("/").map_or(path.clone(), Path::to_owned).to_string_lossy().into_owned()
    }
}
