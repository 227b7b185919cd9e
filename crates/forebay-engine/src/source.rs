//! A data set with its index: found as a sidecar or built, once.
//!
//! The index is always used from the bytes of its sidecar, so that the leader of a node can share those bytes in a
//! sealed memfd and no process expands more of them than it needs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use forebay_format::{CachePolicy, Dataset, Index, OpenOptions, SidecarPlace};

use crate::caller::Caller;
use crate::error::Error;

/// Threads that walk a file to build its index: reads are independent and small, latency is what counts.
const INDEX_THREADS: usize = 8;

/// An opened data set.
pub struct Source {
    dataset: Dataset,
    index: OnceLock<(Arc<Index>, Arc<Vec<u8>>)>,
    building: Mutex<()>,
}

impl Source {
    /// Opens a data set; reads headers only.
    pub fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Self, Error> {
        Ok(Self { dataset: Dataset::open(paths, options)?, index: OnceLock::new(), building: Mutex::new(()) })
    }

    /// The data set.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The index, if it is there already.
    pub fn loaded(&self) -> Option<Arc<Index>> {
        self.index.get().map(|(index, _)| Arc::clone(index))
    }

    /// The index and the bytes it is read from; built at first need and kept in the user's cache.
    pub fn index(&self, caller: &dyn Caller) -> Result<(Arc<Index>, Arc<Vec<u8>>), Error> {
        let _building = self.building.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((index, bytes)) = self.index.get() {
            return Ok((Arc::clone(index), Arc::clone(bytes)));
        }
        let policy = CachePolicy::from_environment();
        let found = self.dataset.find_sidecar(&policy)?;
        for warning in &found.warnings {
            caller.warn(warning);
        }
        let bytes = match found.bytes {
            Some(bytes) => bytes,
            None => self.build(None, caller)?.0,
        };
        Ok(self.keep(bytes)?)
    }

    fn keep(&self, bytes: Vec<u8>) -> Result<(Arc<Index>, Arc<Vec<u8>>), Error> {
        let bytes = Arc::new(bytes);
        let index = Arc::new(Index::from_bytes(bytes.clone(), self.dataset.fingerprint())?);
        let kept = self.index.get_or_init(|| (index, bytes));
        Ok((Arc::clone(&kept.0), Arc::clone(&kept.1)))
    }

    /// Builds the index and writes the sidecar: where the user asked for it, or quietly into his cache.
    ///
    /// Returns the bytes, the report and where the sidecar stands.
    #[allow(clippy::type_complexity)]
    pub fn build(
        &self,
        place: Option<SidecarPlace>,
        caller: &dyn Caller,
    ) -> Result<(Vec<u8>, forebay_format::IndexReport, Option<PathBuf>), Error> {
        let progress = |progress: forebay_format::Progress| caller.progress("index", progress.done, progress.all);
        let built = self.dataset.build_index(INDEX_THREADS, &progress)?;
        let policy = CachePolicy::from_environment();
        let written = match place {
            Some(place) => Some(self.dataset.write_sidecar(&built.bytes, place, &policy)?),
            None => match self.dataset.write_sidecar(&built.bytes, SidecarPlace::Cache, &policy) {
                Ok(path) => Some(path),
                Err(error) => {
                    caller.warn(&format!("the index is not kept for the next time: {error}"));
                    None
                }
            },
        };
        Ok((built.bytes, built.report, written))
    }
}
