//! A dataset: one or more container files whose samples are counted through.
//!
//! [`Dataset::open`] reads headers only. [`build`] walks the containers and makes an index, [`place`] says where
//! indexes are kept, [`provenance`] computes one from a recipe, [`keep`] hands on what a walk reads, [`cursor`] finds samples without an index, [`detect`] tells other formats apart, [`verify`] reads everything once, [`inspect`] tells what
//! there is.

mod build;
mod cursor;
mod detect;
mod inspect;
mod keep;
mod place;
mod provenance;
mod verify;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

pub(crate) use build::NOT_SAMPLES;
pub use build::{BuiltIndex, IndexReport};
pub use cursor::{SampleCursor, SamplePlace, ShardBytes};
pub use keep::Keep;
pub use place::{CachePolicy, Found, Lookup, Place};
pub use provenance::{FoundRecipe, RecipeLookup, Recorded};
pub use verify::{BadSample, Verification};

use crate::lmdb::Database;
use crate::sidecar::LMDB;
use crate::{Error, Index, SchemaChoice, ShardState, SidecarFault};

/// What to open in a file, and how to read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpenOptions {
    /// Name of a database within the file (LMDB); `None`: the main one.
    pub database: Option<String>,
    /// How records become fields.
    pub schema: SchemaChoice,
}

/// How far a long piece of work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is counted, for example `leaf pages`.
    pub what: &'static str,
    /// Done so far.
    pub done: u64,
    /// All there is to do.
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
    /// Hash of its size, last change and state.
    pub fingerprint: u128,
}

/// Container files, open for reading.
#[derive(Clone, Debug)]
pub struct Dataset {
    options: OpenOptions,
    databases: Vec<Database>,
    shards: Vec<Shard>,
    fingerprint: u128,
}

impl Dataset {
    /// Opens the files or directories `paths` as one dataset, in this order. Reads headers only.
    pub fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Self, Error> {
        if paths.is_empty() {
            return Err(Error::Usage {
                message: "a dataset has at least one file, none was named".to_owned(),
                hint: "name an LMDB directory or data file".to_owned(),
            });
        }
        let mut databases = Vec::with_capacity(paths.len());
        let mut shards = Vec::with_capacity(paths.len());
        for path in paths {
            detect::refuse_others(path)?;
            let database = Database::open(path, options.database.as_deref())?;
            shards.push(Shard::of(&database)?);
            databases.push(database);
        }
        if databases.iter().all(|database| database.entries() == 0) {
            let path = databases[0].path();
            let database =
                options.database.as_ref().map_or(String::new(), |name| format!("database {name:?} "));
            return Err(Error::Unsupported {
                path: path.to_owned(),
                what: "a dataset without records".to_owned(),
                found: format!("{database}0 entries"),
                hint: "check that the writer committed its last transaction".to_owned(),
            });
        }
        let mut text = format!("{}\0{:?}\0{}", LMDB, options.database, options.schema.name()).into_bytes();
        for shard in &shards {
            text.extend(shard.fingerprint.to_le_bytes());
        }
        let fingerprint = xxh3_128(&text);
        Ok(Self { options: options.clone(), databases, shards, fingerprint })
    }

    /// Name of the container format.
    #[allow(clippy::unused_self, reason = "the format will differ between datasets")]
    pub fn format(&self) -> &'static str {
        LMDB
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

    /// Looks at the headers again. A file that changed so far that what was opened may be gone is
    /// [`Error::Modified`].
    pub fn check_unchanged(&self) -> Result<(), Error> {
        self.databases.iter().try_for_each(Database::check_unchanged)
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
        if index.meta().format != self.format() {
            return differs("format", self.format().to_owned(), index.meta().format.clone());
        }
        if index.shards().len() != self.shards.len() {
            return differs(
                "number of files",
                self.shards.len().to_string(),
                index.shards().len().to_string(),
            );
        }
        for ((info, shard), database) in index.shards().iter().zip(&self.shards).zip(&self.databases) {
            if info.bytes != shard.bytes {
                return differs("size of a file", shard.bytes.to_string(), info.bytes.to_string());
            }
            let ShardState::Lmdb(identity) = &info.state;
            if identity != database.identity() {
                return differs(
                    "state of a file",
                    format!("{:?}", database.identity()),
                    format!("{identity:?}"),
                );
            }
        }
        Ok(index)
    }
}

impl Shard {
    fn of(database: &Database) -> Result<Self, Error> {
        let path = database.path();
        let status = fs::metadata(path).map_err(|source| Error::Io {
            action: "inspect".to_owned(),
            path: path.to_owned(),
            offset: None,
            source,
        })?;
        // Times before 1970 or unknown count as 1970: the state of the database tells files apart as well.
        let modified_ns = status
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
            .map_or(0, |time| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX));
        let identity = serde_json::to_vec(database.identity()).expect("numbers and text are JSON");
        let mut text = database.file_bytes().to_le_bytes().to_vec();
        text.extend(modified_ns.to_le_bytes());
        text.extend(identity);
        Ok(Self {
            path: path.to_owned(),
            bytes: database.file_bytes(),
            modified_ns,
            fingerprint: xxh3_128(&text),
        })
    }

    /// The name of the file with that of its directory, for messages.
    fn name(&self) -> String {
        let last: Vec<_> = self.path.components().rev().take(2).collect();
        let path: PathBuf = last.into_iter().rev().collect();
        path.strip_prefix("/").map_or(path.clone(), Path::to_owned).to_string_lossy().into_owned()
    }
}
