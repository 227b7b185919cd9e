//! A dataset: one or more container files whose samples are counted through.
//!
//! [`Dataset::open`] reads headers only. [`build`] scans the containers and makes an index,
//! [`compute`] lets another crate make one without a scan. [`store`] keeps and finds indexes,
//! [`value_sink`] passes on the bytes that a scan reads, [`cursor`] finds samples without an index.
//! [`modified`] detects changed files, [`sample_axis`] decides what counts the samples of a file of
//! arrays, [`doubts`] warns of readings that may not be meant. [`read`] reads single samples,
//! [`verify`] all of them, [`inspect`] describes a dataset.

mod build;
mod compute;
mod cursor;
mod doubts;
mod inspect;
mod modified;
mod read;
mod sample_axis;
mod store;
mod value_sink;
mod verify;

use std::any::Any;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

pub use build::{BuiltIndex, IndexReport};
pub use compute::{Computation, ComputeIndex, ComputedIndex};
pub use cursor::{SampleCursor, ShardBytes};
pub use store::{CachePolicy, FoundSidecar, Lookup, SidecarLocation};
pub use value_sink::ValueSink;
pub use verify::{BadSample, Verification};

use modified::{InodeChange, inode, modified_ns};

use crate::container::lmdb::Database;
use crate::container::{Container, registry};
use crate::file::allow_open_shards;
use crate::{Error, Format, Index, OpenOptions, Selection, SidecarError};

/// How far a long piece of work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is counted, for example `leaf pages`.
    pub what: &'static str,
    /// Done so far.
    pub done: u64,
    /// Total amount of work; 0 while it is unknown.
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
    /// State of its inode when it was opened.
    pub(super) change: InodeChange,
    /// Hash of its size, last change and state.
    pub fingerprint: u128,
}

/// Container files, open for reading.
#[derive(Clone, Debug)]
pub struct Dataset {
    options: OpenOptions,
    format: Format,
    /// The opened files, shard by shard.
    files: Vec<Arc<dyn Container>>,
    shards: Vec<Shard>,
    fingerprint: u128,
    /// Names of the classes in the order of their labels.
    classes: Arc<[Vec<u8>]>,
    selection: Option<Arc<Selection>>,
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
        let format = registry::detect(paths, options)?;
        Self::check_sample_axis(format, options.sample_axis)?;
        allow_open_shards(paths.len());
        let mut files: Vec<Arc<dyn Container>> = Vec::new();
        for path in paths {
            files.extend(registry::open(format, path, options)?);
        }
        if files.is_empty() {
            return Err(Error::Unsupported {
                path: paths[0].clone(),
                what: "a dataset without samples".to_owned(),
                found: "no shard in any list".to_owned(),
                hint: "check that the writer has finished".to_owned(),
            });
        }
        let shards = files.iter().map(|file| Shard::of(&**file)).collect::<Result<Vec<_>, _>>()?;
        refuse_empty(&files, format, options)?;
        let mut text = options.key(format);
        for shard in &shards {
            text.extend(shard.fingerprint.to_le_bytes());
        }
        let classes = number_classes(&files);
        let fingerprint = xxh3_128(&text);
        Ok(Self { options: options.clone(), format, files, shards, fingerprint, classes, selection: None })
    }

    /// The container format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The databases of LMDB files; `what` needs them, and is [`Error::Usage`] for other formats.
    pub fn databases(&self, what: &str) -> Result<Vec<&Database>, Error> {
        (0..self.files.len()).map(|shard| self.database(shard, what)).collect()
    }

    /// The database of a shard.
    fn database(&self, shard: usize, what: &str) -> Result<&Database, Error> {
        let file: &dyn Any = &*self.files[shard];
        file.downcast_ref().ok_or_else(|| self.not_lmdb(what))
    }

    fn not_lmdb(&self, what: &str) -> Error {
        let (path, format) = (self.shards[0].path.display(), self.format.name());
        Error::Usage {
            message: format!("{path}: {what} is for LMDB files; this is {format}"),
            hint: String::new(),
        }
    }

    /// Number of records, excluded ones included; `None` if the headers of a file do not say.
    fn entries(&self) -> Option<u64> {
        self.files.iter().map(|file| file.entries()).sum()
    }

    /// [`Error::Usage`] where the files are of another format: `what` is for LMDB alone.
    pub fn need_lmdb(&self, what: &str) -> Result<(), Error> {
        if self.format == Format::Lmdb { Ok(()) } else { Err(self.not_lmdb(what)) }
    }

    /// The options it was opened with.
    pub fn options(&self) -> &OpenOptions {
        &self.options
    }

    /// The data files, in the order of their samples.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Names of the classes in the order of their labels; none if the files name none.
    #[must_use]
    pub fn classes(&self) -> Vec<String> {
        self.classes.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    /// Hash of everything that distinguishes this state of these files, and of the options.
    ///
    /// Names and places of files are left out, so the index is found again after a dataset is
    /// moved, or mounted elsewhere with its times kept.
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// [`Dataset::fingerprint`], and the selection: two datasets with the same identity have the
    /// same samples with the same ids.
    pub fn identity(&self) -> u128 {
        self.selection
            .as_ref()
            .map_or(self.fingerprint, |selection| selection.fingerprint_of(self.fingerprint))
    }

    /// Which records are the samples; `None` for all.
    pub fn selection(&self) -> Option<&Selection> {
        self.selection.as_deref()
    }

    /// The same files with the samples of a selection of their records.
    #[must_use]
    pub fn selecting(&self, selection: Selection) -> Self {
        Self { selection: Some(Arc::new(selection)), ..self.clone() }
    }

    /// Reads a sidecar of this dataset.
    pub fn index(&self, bytes: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Result<Index, Error> {
        self.checked_index(bytes)
            .map(|index| self.adapted(index))
            .map_err(|error| Error::Sidecar { path: self.shards[0].path.clone(), source: Box::new(error) })
    }

    /// Reads a sidecar of this dataset that another process has compared with the files.
    pub fn shared_index(&self, bytes: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Result<Index, Error> {
        Ok(self.adapted(Index::from_bytes(bytes, self.fingerprint)?))
    }

    /// An index with what the caller chose, and no sidecar holds.
    fn adapted(&self, index: Index) -> Index {
        index.adapted(&self.options).selecting(self.selection.clone())
    }

    /// Reads a sidecar and compares it with the files.
    fn checked_index(&self, bytes: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Result<Index, SidecarError> {
        let index = Index::read(bytes, self.fingerprint)?;
        let differs = |what: &str, expected: String, found: String| {
            Err(SidecarError::Damaged { offset: 0, what: what.to_owned(), expected, found })
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
            // The size of a folder is that of its files, which only a scan finds.
            if info.bytes != shard.bytes && self.format != Format::Folder {
                return differs("size of a file", shard.bytes.to_string(), info.bytes.to_string());
            }
            let state = self.files[number].state();
            if info.state != state {
                return differs("state of a file", format!("{state:?}"), format!("{:?}", info.state));
            }
            self.files[number].check_index(&index, number)?;
        }
        Ok(index)
    }
}

/// Numbers the classes of all files together, so that one name has one label, and returns the names
/// in the order of the labels: sorted, as those of one file are.
fn number_classes(files: &[Arc<dyn Container>]) -> Arc<[Vec<u8>]> {
    let names: BTreeSet<&Vec<u8>> = files.iter().flat_map(|file| file.class_names()).collect();
    let names: Arc<[Vec<u8>]> = names.into_iter().cloned().collect();
    for file in files.iter().filter(|file| file.class_names() != &*names) {
        file.number_classes(&names);
    }
    names
}

/// Refuses files whose headers all say that they hold no record. Files without such a header are
/// left to the scan.
fn refuse_empty(files: &[Arc<dyn Container>], format: Format, options: &OpenOptions) -> Result<(), Error> {
    if files.iter().any(|file| file.entries() != Some(0)) {
        return Ok(());
    }
    let database = options.database.as_ref().map_or(String::new(), |name| format!("database {name:?} "));
    Err(Error::Unsupported {
        path: files[0].input().path().to_owned(),
        what: "a dataset without records".to_owned(),
        found: format!("{database}0 entries"),
        hint: match format {
            Format::Lmdb => "check that the writer committed its last transaction".to_owned(),
            _ => "check that the writer has finished".to_owned(),
        },
    })
}

impl Shard {
    fn of(file: &dyn Container) -> Result<Self, Error> {
        let (path, bytes) = (file.input().path(), file.input().bytes());
        let status = fs::metadata(file.changes_with()).map_err(|source| Error::Io {
            action: "inspect".to_owned(),
            path: file.changes_with().to_owned(),
            offset: None,
            source,
        })?;
        let modified_ns = modified_ns(&status);
        let mut text = bytes.to_le_bytes().to_vec();
        text.extend(modified_ns.to_le_bytes());
        text.extend(file.state().fingerprint_bytes());
        let (path, inode, change) = (path.to_owned(), inode(&status), InodeChange::of(&status));
        Ok(Self { path, bytes, modified_ns, inode, change, fingerprint: xxh3_128(&text) })
    }

    /// The name of the file with that of its directory, for messages.
    fn name(&self) -> String {
        let last: Vec<_> = self.path.components().rev().take(2).collect();
        let path: PathBuf = last.into_iter().rev().collect();
        path.strip_prefix("/").map_or(path.clone(), Path::to_owned).to_string_lossy().into_owned()
    }
}
