//! A data set with its index: found as a sidecar or built, once.
//!
//! The index is always used from the bytes of its sidecar, so that the leader of a node can share those bytes in a
//! sealed memfd and no process expands more of them than it needs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forebay_format::{
    CachePolicy, Dataset, FieldOut, Index, IndexReport, OpenOptions, Place, Progress, Verification,
};
use forebay_types::{Field, Layout, Located, Piece, SampleId};

use crate::access::{ShardFiles, file_system_at};
use crate::caller::Caller;
use crate::error::Error;
use crate::kept::{Keeping, Kept};

/// Threads that walk a file to build its index: reads are independent and small, latency is what counts.
const INDEX_THREADS: usize = 8;
/// Bad samples that `verify` lists; it counts all of them.
const BAD_LISTED: usize = 100;

/// An opened data set.
pub struct Source {
    dataset: Dataset,
    index: OnceLock<Loaded>,
    loading: Mutex<()>,
}

/// An index and the bytes it is read from.
#[derive(Clone)]
pub struct Loaded {
    /// The index.
    pub index: Arc<Index>,
    /// Its sidecar.
    pub bytes: Arc<Vec<u8>>,
    /// The data themselves, where building the index read all of them and they were to be kept.
    pub kept: Option<Arc<Kept>>,
}

/// An index that was just built.
pub struct Built {
    /// Its sidecar.
    pub bytes: Vec<u8>,
    /// What it cost and what was found.
    pub report: IndexReport,
    /// Where the sidecar stands, if it could be kept.
    pub path: Option<PathBuf>,
}

impl Source {
    /// Opens a data set; reads headers only.
    pub fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Self, Error> {
        Ok(Self { dataset: Dataset::open(paths, options)?, index: OnceLock::new(), loading: Mutex::new(()) })
    }

    /// The data set.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The index; built at first need and kept in the user's cache.
    pub fn index(&self, caller: &dyn Caller) -> Result<Loaded, Error> {
        self.index_keeping(0, caller)
    }

    /// The same; where it must be built, and reads all data for that from a file system of other nodes, they are kept,
    /// too, if they fit into `budget_bytes`.
    pub fn index_keeping(&self, budget_bytes: u64, caller: &dyn Caller) -> Result<Loaded, Error> {
        if let Some(loaded) = self.index.get() {
            return Ok(loaded.clone());
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = self.index.get() {
            return Ok(loaded.clone());
        }
        let lookup = self.dataset.find_sidecar(&CachePolicy::from_environment());
        for warning in &lookup.warnings {
            caller.warn(warning);
        }
        let mut kept = None;
        let bytes = if let Some(found) = lookup.found {
            found.bytes
        } else if let Some(keeping) = self.keeping(budget_bytes) {
            let built = self.build_from(&self.dataset.kept_by(&(keeping.clone() as _)), None, caller)?;
            kept = Arc::into_inner(keeping).and_then(Keeping::finish).map(Arc::new);
            built.bytes
        } else {
            self.build(None, caller)?.bytes
        };
        let bytes = Arc::new(bytes);
        let index = Arc::new(self.dataset.index(bytes.clone())?);
        Ok(self.index.get_or_init(|| Loaded { index, bytes, kept }).clone())
    }

    /// Memory for the data, if they are worth keeping.
    fn keeping(&self, budget_bytes: u64) -> Option<Arc<Keeping>> {
        let local = |path| file_system_at(path).is_ok_and(|kind| kind.local);
        if self.dataset.shards().iter().all(|shard| local(&shard.path)) {
            return None;
        }
        Keeping::begin(&self.dataset, budget_bytes)
    }

    /// Builds the index and writes the sidecar: where the user asked for it, or quietly into his cache.
    pub fn build(&self, place: Option<Place>, caller: &dyn Caller) -> Result<Built, Error> {
        self.build_from(&self.dataset, place, caller)
    }

    fn build_from(
        &self,
        dataset: &Dataset,
        place: Option<Place>,
        caller: &dyn Caller,
    ) -> Result<Built, Error> {
        let built = dataset.build_index(INDEX_THREADS, &|progress| tell(caller, progress))?;
        let policy = CachePolicy::from_environment();
        let written = self.dataset.write_sidecar(&built.bytes, place.unwrap_or(Place::Cache), &policy);
        let path = match (written, place) {
            (Ok(path), _) => Some(path),
            (Err(error), Some(_)) => return Err(error.into()),
            (Err(error), None) => {
                caller.warn(&format!("the index is not kept for the next time: {error}"));
                None
            }
        };
        Ok(Built { bytes: built.bytes, report: built.report, path })
    }

    /// Reads and decodes one sample: the bytes of each field.
    pub fn sample(&self, sample: u64, caller: &dyn Caller) -> Result<(Vec<Field>, Vec<Vec<u8>>), Error> {
        let index = self.index(caller)?.index;
        let columns = self.dataset.read_columns(&index, SampleId(sample))?;
        let fields = index.fields().to_vec();
        if index.schema().is_identity() {
            return Ok((fields, columns));
        }
        let mut values: Vec<Vec<u8>> =
            fields.iter().map(|field| vec![0; field.sample_bytes().unwrap_or(0) as usize]).collect();
        let records: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
        let mut take: Vec<_> = values.iter_mut().map(|value| (value, Vec::<u8>::new())).collect();
        let decoded = {
            let mut closures: Vec<_> = take
                .iter_mut()
                .map(|(value, ragged)| (value, |bytes: &[u8]| ragged.extend_from_slice(bytes)))
                .collect();
            let mut out: Vec<FieldOut<'_>> = closures
                .iter_mut()
                .zip(&fields)
                .map(|((value, closure), field)| match field.layout {
                    Layout::Dense(_) => FieldOut::Dense(value),
                    Layout::Ragged => FieldOut::Ragged(closure),
                })
                .collect();
            index.schema().decode(&records, &mut out)
        };
        for (value, ragged) in take {
            if !ragged.is_empty() {
                *value = ragged;
            }
        }
        decoded.map_err(|error| {
            let (path, offset, _) = self
                .extents(sample, caller)
                .ok()
                .and_then(|extents| extents.into_iter().next())
                .unwrap_or_default();
            Error::BadSample {
                sample,
                path: path.display().to_string(),
                offset: offset + error.offset,
                what: error.what,
                expected: error.expected,
                found: error.found,
            }
        })?;
        Ok((fields, values))
    }

    /// Where the value of a sample stands: (path, offset, length) of each stretch.
    pub fn extents(&self, sample: u64, caller: &dyn Caller) -> Result<Vec<(PathBuf, u64, u64)>, Error> {
        let index = self.index(caller)?.index;
        let mut located = Located::default();
        index.locate(&[SampleId(sample)], &mut located)?;
        let mut extents = Vec::new();
        for slice in (0..located.columns()).flat_map(|column| located.slices(0, column)) {
            let mut skip = slice.offset;
            let mut rest = slice.length;
            for piece in &located.pieces()[located.unit_pieces(slice.unit)] {
                let skipped = skip.min(piece.length());
                skip -= skipped;
                let length = (piece.length() - skipped).min(rest);
                rest -= length;
                if let Piece::Extent(extent) = piece
                    && (length > 0 || slice.length == 0)
                {
                    let path = self.dataset.shards()[extent.shard.0 as usize].path.clone();
                    extents.push((path, extent.offset + skipped, length));
                }
            }
        }
        Ok(extents)
    }

    /// Describes the data set, its index and the file system it lies on.
    pub fn inspect(&self, caller: &dyn Caller) -> Result<serde_json::Value, Error> {
        let loaded = self.index(caller)?;
        let mut value = self.dataset.inspect(Some(&loaded.index), &CachePolicy::from_environment());
        let shards: Vec<_> =
            self.dataset.shards().iter().map(|shard| (shard.path.clone(), shard.bytes)).collect();
        let files = ShardFiles::open(&shards, false)?;
        value["file_system"] = files.file_system_name().into();
        value["file_system_is_local"] = files.is_local().into();
        Ok(value)
    }

    /// Reads and decodes every sample.
    pub fn verify(&self, threads: usize, caller: &dyn Caller) -> Result<Verification, Error> {
        let index = self.index(caller)?.index;
        Ok(self.dataset.verify(&index, threads, &|progress| tell(caller, progress), BAD_LISTED)?)
    }
}

fn tell(caller: &dyn Caller, progress: Progress) -> bool {
    caller.progress(progress.what, progress.done, progress.total)
}
