//! A dataset with its index, which is found as a sidecar, computed, or built once.
//!
//! All processes use the index from the bytes of its sidecar. So the leader of a node can share
//! them in a sealed memfd, and no process expands more of them than it needs.

pub(crate) mod batch_read;
pub(crate) mod drawn_bytes;
pub(crate) mod field_decoders;
pub(crate) mod open;
pub(crate) mod ragged_size;
pub(crate) mod retained_values;
pub(crate) mod shuffle_quality;
pub(crate) mod tier_sources;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forebay_format::{
    CachePolicy, ComputeIndex, ComputedIndex, Dataset, DecodedUnits, FieldOut, Index, IndexReport,
    OpenOptions, Progress, Selection, SidecarLocation, Verification,
};
use forebay_host as host;
use forebay_image::{ImageDecoder, SampleKey};
use forebay_io::file_system_at;
use forebay_plan::config::default_memory_bytes;
use forebay_plan::kept_by_id_bytes;
use forebay_types::{CodecChain, Field, Layout, Located, Piece, SampleId, Slice};
use serde::{Deserialize, Serialize};

use crate::base::fallback::{Fallback, Wanted, record};
use crate::dataset::batch_read::OpenFiles;
use crate::dataset::field_decoders::{Decoding, FieldDecoders};
use crate::dataset::open::open_indexed;
use crate::dataset::retained_values::{RetainedValues, RetainedValuesBuilder};
use crate::dataset::shuffle_quality::ShuffleQuality;
use crate::error::{Error, ErrorDetails};
use crate::host::Host;

/// Threads that walk a file to build its index: the reads are independent, small and bound by
/// latency.
pub const INDEX_THREADS: usize = 8;
/// Default number of bad samples that `verify` lists; it counts all of them.
const BAD_LISTED: usize = 100;

/// An opened dataset.
pub struct IndexedDataset {
    dataset: Arc<Dataset>,
    index: OnceLock<Loaded>,
    /// Computes an index without a scan, if possible.
    computer: Option<Arc<dyn ComputeIndex>>,
    /// The computed index, if a loader requested it.
    computed: OnceLock<Loaded>,
    loading: Mutex<()>,
    /// Whether all files lie on file systems of this node.
    local: OnceLock<bool>,
    /// The files that samples are read from by id.
    files: OnceLock<Arc<OpenFiles>>,
    decoders: FieldDecoders,
    decoding: OnceLock<Arc<Decoding>>,
    /// Units that reads by id have decoded.
    decoded: Arc<DecodedUnits>,
}

/// An index and the bytes it is read from.
#[derive(Clone)]
pub struct Loaded {
    /// The index.
    pub index: Arc<Index>,
    /// Its sidecar.
    pub bytes: Arc<Vec<u8>>,
    /// The values, if the index build read all of them and they were to be retained.
    pub retained: Option<Arc<RetainedValues>>,
    /// Where the index came from.
    pub origin: IndexOrigin,
    /// Requests that could not be met.
    pub fallbacks: Vec<Fallback>,
}

/// Where an index came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "source", rename_all = "snake_case")]
pub enum IndexOrigin {
    /// A sidecar.
    Sidecar,
    /// It was built.
    Build,
    /// It was computed from the recipe of the container's layout.
    Recipe {
        /// Whether the recipe was compared with all records.
        verified: bool,
        /// Length of the recipe \[bytes\].
        recipe_bytes: u64,
        /// The recipe's file.
        path: String,
    },
    /// One process walked through all records.
    Scan {
        /// On which node.
        scanning_node: ScanningNode,
    },
}

/// The node whose leader walks through all records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScanningNode {
    /// This node's, for the whole job.
    This,
    /// Another node's, for the whole job.
    Other,
    /// Each node's for its own node, as the nodes are not linked.
    Each,
}

/// An index that was just built.
pub struct Built {
    /// Its sidecar.
    pub bytes: Vec<u8>,
    /// Cost and results of the build.
    pub report: IndexReport,
    /// Path of the sidecar, if it could be written.
    pub path: Option<PathBuf>,
}

impl IndexedDataset {
    /// Opens a dataset; reads headers only.
    pub fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Self, Error> {
        Ok(Self {
            dataset: Arc::new(Dataset::open(paths, options)?),
            index: OnceLock::new(),
            computer: None,
            computed: OnceLock::new(),
            loading: Mutex::new(()),
            local: OnceLock::new(),
            files: OnceLock::new(),
            decoders: FieldDecoders::new(),
            decoding: OnceLock::new(),
            decoded: Arc::new(DecodedUnits::new(kept_by_id_bytes(default_memory_bytes(host::limit_bytes())))),
        })
    }

    /// The same dataset; `computer` computes indexes that have no sidecar, if it can.
    #[must_use]
    pub fn computing_with(self, computer: Arc<dyn ComputeIndex>) -> Self {
        Self { computer: Some(computer), ..self }
    }

    /// The same dataset; samples are decoded by `decoders`.
    #[must_use]
    pub fn decoding_with(self, decoders: FieldDecoders) -> Self {
        Self { decoders, ..self }
    }

    /// The decoders, by field.
    pub fn decoders(&self) -> &FieldDecoders {
        &self.decoders
    }

    /// The fields with their decoders.
    pub fn decoding(&self, index: &Index) -> Result<Arc<Decoding>, Error> {
        if let Some(decoding) = self.decoding.get() {
            return Ok(Arc::clone(decoding));
        }
        let decoding = Arc::new(Decoding::new(index.fields(), &self.decoders)?);
        Ok(Arc::clone(self.decoding.get_or_init(|| decoding)))
    }

    /// The fingerprint of the dataset, for users and states.
    pub fn fingerprint(&self) -> String {
        format!("{:032x}", self.dataset().identity())
    }

    /// The dataset of those samples whose ids these are, in this order.
    pub fn select(&self, ids: &[u64], caller: &dyn Host) -> Result<Self, Error> {
        let loaded = self.index(caller)?;
        let selection = match self.dataset.selection() {
            None => Selection::new(ids.to_vec(), loaded.index.samples())?,
            Some(before) => before.of(ids)?,
        };
        let dataset = Arc::new(self.dataset.selecting(selection));
        let index = Arc::new(dataset.index(loaded.bytes.clone())?);
        Ok(Self {
            dataset,
            index: OnceLock::from(Loaded { index, ..loaded }),
            computer: self.computer.clone(),
            computed: OnceLock::new(),
            loading: Mutex::default(),
            local: self.local.clone(),
            files: self.files.clone(),
            decoders: self.decoders.clone(),
            decoding: self.decoding.clone(),
            decoded: Arc::clone(&self.decoded),
        })
    }

    /// The dataset.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// The index, if it is loaded already.
    pub fn loaded(&self) -> Option<Loaded> {
        self.index.get().cloned()
    }

    /// The index; built at first use and stored in the user's cache.
    pub fn index(&self, caller: &dyn Host) -> Result<Loaded, Error> {
        self.index_keeping(0, caller)
    }

    /// The same. If the build reads all values from remote storage, and they fit into
    /// `budget_bytes`, they are retained.
    pub fn index_keeping(&self, budget_bytes: u64, caller: &dyn Host) -> Result<Loaded, Error> {
        if let Some(loaded) = self.index.get() {
            return Ok(loaded.clone());
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = self.index.get() {
            return Ok(loaded.clone());
        }
        let lookup = self.dataset.find_sidecar(&CachePolicy::from_environment());
        for reason in &lookup.stale {
            tracing::info!(
                reason,
                "the index is built again: the files were rewritten, or it is of an earlier version"
            );
        }
        for warning in &lookup.warnings {
            tracing::info!(reason = warning, "a sidecar is rejected");
            caller.warn(warning);
        }
        let (mut retained, mut fallbacks, mut origin) = (None, Vec::new(), IndexOrigin::Build);
        let bytes = if let Some(found) = lookup.found {
            origin = IndexOrigin::Sidecar;
            found.bytes
        } else if let Some((bytes, computed)) = self.compute(false, &mut fallbacks, caller)? {
            origin = computed;
            bytes
        } else if let Some(builder) = self.builder(budget_bytes) {
            let built = self.build_from(&self.dataset.read_into(&(builder.clone() as _)), None, caller)?;
            retained = Arc::into_inner(builder).and_then(RetainedValuesBuilder::finish).map(Arc::new);
            built.bytes
        } else {
            self.build(None, caller)?.bytes
        };
        let bytes = Arc::new(bytes);
        let index = Arc::new(self.dataset.index(bytes.clone())?);
        for doubt in self.dataset.doubts(&index) {
            caller.warn(&doubt);
        }
        Ok(self.index.get_or_init(|| Loaded { index, bytes, retained, origin, fallbacks }).clone())
    }

    /// The index, computed without a scan if that is possible; else the ordinary index, and a
    /// fallback with the reason.
    pub fn index_computed(&self, budget_bytes: u64, caller: &dyn Host) -> Result<Loaded, Error> {
        if let Some(loaded) = self.computed.get() {
            return Ok(loaded.clone());
        }
        let mut fallbacks = Vec::new();
        if let Some((bytes, origin)) = self.compute(true, &mut fallbacks, caller)? {
            let bytes = Arc::new(bytes);
            let index = Arc::new(self.dataset.index(bytes.clone())?);
            let loaded = Loaded { index, bytes, retained: None, origin, fallbacks };
            return Ok(self.computed.get_or_init(|| loaded).clone());
        }
        let mut loaded = self.index_keeping(budget_bytes, caller)?;
        for fallback in fallbacks {
            record(&mut loaded.fallbacks, fallback);
        }
        Ok(loaded)
    }

    /// The sidecar, computed without a scan, if that is possible.
    fn compute(
        &self,
        allow_unverified: bool,
        fallbacks: &mut Vec<Fallback>,
        caller: &dyn Host,
    ) -> Result<Option<(Vec<u8>, IndexOrigin)>, Error> {
        let Some(computer) = &self.computer else { return Ok(None) };
        let progress = |progress| report_progress(caller, progress);
        let found = computer.compute_index(&self.dataset, allow_unverified, &progress)?;
        for warning in &found.warnings {
            caller.warn(warning);
        }
        if let Some(obstacle) = found.obstacle {
            record(fallbacks, Fallback::new(Wanted::Recipe, obstacle));
        }
        Ok(found.index.map(|ComputedIndex { bytes, verified, recipe_bytes, path }| {
            let path = path.display().to_string();
            (bytes, IndexOrigin::Recipe { verified, recipe_bytes, path })
        }))
    }

    /// The files of the samples, opened at the first call.
    pub(crate) fn open_files(&self, index: &Arc<Index>) -> Result<Arc<OpenFiles>, Error> {
        if let Some(files) = self.files.get() {
            return Ok(Arc::clone(files));
        }
        let files = Arc::new(OpenFiles::open(&self.dataset, index)?);
        Ok(Arc::clone(self.files.get_or_init(|| files)))
    }

    /// Whether all files are known to lie on file systems of this node; probed once.
    pub fn is_local(&self) -> bool {
        let local = |path| file_system_at(path).is_ok_and(|kind| kind.local);
        *self.local.get_or_init(|| self.dataset.shards().iter().all(|shard| local(&shard.path)))
    }

    /// The same without a probe: false if it is not known yet.
    pub fn is_known_local(&self) -> bool {
        self.local.get().is_some_and(|local| *local)
    }

    /// Memory for the values, if they are worth retaining.
    fn builder(&self, budget_bytes: u64) -> Option<Arc<RetainedValuesBuilder>> {
        if self.is_local() {
            return None;
        }
        RetainedValuesBuilder::begin(&self.dataset, budget_bytes)
    }

    /// Builds the index and writes the sidecar: where the user asked for it, or quietly into his
    /// cache.
    pub fn build(&self, place: Option<SidecarLocation>, caller: &dyn Host) -> Result<Built, Error> {
        self.build_from(&self.dataset, place, caller)
    }

    fn build_from(
        &self,
        dataset: &Dataset,
        place: Option<SidecarLocation>,
        caller: &dyn Host,
    ) -> Result<Built, Error> {
        for shard in dataset.unknown_structures() {
            let path = &dataset.shards()[shard].path;
            let Some(found) = caller.find_structure(path, dataset.options()) else {
                if caller.interrupted() {
                    return Err(Error::Interrupted);
                }
                let message = format!("{}: nothing finds the structure of the file", path.display());
                return Err(Error::Format(ErrorDetails::new(
                    message,
                    Some("open it from Python, where h5py does that"),
                )));
            };
            dataset.set_structure(shard, &found)?;
        }
        let built = dataset.build_index(INDEX_THREADS, &|progress| report_progress(caller, progress))?;
        for warning in &built.report.warnings {
            caller.warn(warning);
        }
        let policy = CachePolicy::from_environment();
        let written =
            self.dataset.write_sidecar(&built.bytes, place.unwrap_or(SidecarLocation::Cache), &policy);
        let path = match (written, place) {
            (Ok(path), _) => Some(path),
            (Err(error), Some(_)) => return Err(error.into()),
            (Err(error), None) => {
                caller.warn(&format!("cannot store the index for the next time: {error}"));
                None
            }
        };
        Ok(Built { bytes: built.bytes, report: built.report, path })
    }

    /// Reads and decodes one sample: the bytes of each field, with the random numbers of `key`.
    pub fn sample(&self, key: SampleKey, caller: &dyn Host) -> Result<(Vec<Field>, Vec<Vec<u8>>), Error> {
        let index = self.index(caller)?.index;
        let decoding = self.decoding(&index)?;
        let found = self.decoded_sample_of(&index, &decoding, key);
        for warning in self.dataset.check_sample(&index, SampleId(key.sample))? {
            caller.warn(&warning);
        }
        found
    }

    /// Reads one sample of an index that was loaded; its schema alone decodes it.
    pub(crate) fn sample_of(&self, index: &Index, sample: u64) -> Result<(Vec<Field>, Vec<Vec<u8>>), Error> {
        let plain = Decoding::new(index.fields(), &FieldDecoders::new())?;
        self.decoded_sample_of(index, &plain, SampleKey { sample, ..SampleKey::default() })
    }

    fn decoded_sample_of(
        &self,
        index: &Index,
        decoding: &Decoding,
        key: SampleKey,
    ) -> Result<(Vec<Field>, Vec<Vec<u8>>), Error> {
        let columns = self.dataset.read_columns(index, SampleId(key.sample), &self.decoded)?;
        let fields = decoding.fields().to_vec();
        if index.schema().is_identity() && decoding.is_empty() {
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
            decoding.decode(index.schema(), &records, key, &mut ImageDecoder::default(), &mut out)
        };
        for (value, ragged) in take {
            if !ragged.is_empty() {
                *value = ragged;
            }
        }
        decoded.map_err(|(column, error)| {
            let (path, offset, _) = self
                .extents_of(index, key.sample, Some(column))
                .ok()
                .and_then(|extents| extents.into_iter().next())
                .unwrap_or_default();
            Error::BadSample {
                sample: key.sample,
                path: path.display().to_string(),
                offset: offset + error.offset,
                what: error.what,
                expected: error.expected,
                found: error.found,
            }
        })?;
        Ok((fields, values))
    }

    /// Location of a sample's value: (path, offset, length) of each part.
    pub fn extents(&self, sample: u64, caller: &dyn Host) -> Result<Vec<(PathBuf, u64, u64)>, Error> {
        let index = self.index(caller)?.index;
        self.extents_of(&index, sample, None)
    }

    /// Of one column, or of all.
    fn extents_of(
        &self,
        index: &Index,
        sample: u64,
        column: Option<usize>,
    ) -> Result<Vec<(PathBuf, u64, u64)>, Error> {
        let mut located = Located::default();
        index.locate(&[SampleId(sample)], &mut located)?;
        let (mut extents, mut seen) = (Vec::new(), HashSet::new());
        let columns = column.map_or(0..located.columns(), |column| column..column + 1);
        for slice in columns.flat_map(|column| located.slices(0, column)) {
            let unit = &located.units()[slice.unit as usize];
            let is_stored = unit.codecs == CodecChain::STORED;
            // A coded unit is read whole, once.
            if !is_stored && !seen.insert(slice.unit) {
                continue;
            }
            let slice = if is_stored { *slice } else { Slice { offset: 0, length: u64::MAX, ..*slice } };
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
                    let path = self.dataset.path_of(index, extent.shard)?;
                    extents.push((path, extent.offset + skipped, length));
                }
            }
        }
        Ok(extents)
    }

    /// Describes the dataset, its index and the file system it lies on.
    pub fn inspect(&self, caller: &dyn Host) -> Result<serde_json::Value, Error> {
        let loaded = self.index(caller)?;
        let mut value = self.dataset.inspect(Some(&loaded.index), &CachePolicy::from_environment());
        let files = open_indexed(&self.dataset, &loaded.index, false)?;
        value["file_system"] = files.file_system_name().into();
        value["file_system_is_local"] = files.is_local().into();
        Ok(value)
    }

    /// Describes the default order on `ranks` ranks with batches of `batch`, and its shuffle
    /// quality, with a warning if that is not enough for the `epochs`.
    pub fn default_order(
        &self,
        ranks: u64,
        batch: u64,
        epochs: Option<u64>,
        caller: &dyn Host,
    ) -> Result<(serde_json::Value, Option<String>), Error> {
        let index = self.index(caller)?.index;
        if index.samples() == 0 {
            return Ok((serde_json::Value::Null, None));
        }
        let order = shuffle_quality::default_order(&index, ranks, batch)?;
        let (group_samples, group_window) = shuffle_quality::group_of(&index);
        let description = serde_json::json!({
            "group_samples": group_samples,
            "group_window": group_window,
            "ranks": ranks,
            "batch_size": batch,
            "lanes": order.lanes(),
            "shuffle_quality": ShuffleQuality::of(&order, epochs, index.unit_samples()),
        });
        Ok((description, epochs.and_then(|epochs| shuffle_quality::warning(&order, epochs, &index))))
    }

    /// Compares the checksums of more than one sample with the files.
    pub fn check_sums(&self, caller: &dyn Host) -> Result<(), Error> {
        Ok(self.dataset.check_sums(&|progress| report_progress(caller, progress))?)
    }

    /// Reads and decodes each sample and compares all checksums. Lists at most `listed` bad
    /// samples.
    pub fn verify(
        &self,
        threads: usize,
        listed: Option<usize>,
        caller: &dyn Host,
    ) -> Result<Verification, Error> {
        self.check_sums(caller)?;
        let index = self.index(caller)?.index;
        let progress = |progress| report_progress(caller, progress);
        let listed = listed.unwrap_or(BAD_LISTED);
        Ok(self.dataset.verify(&index, threads, &progress, listed)?)
    }
}

fn report_progress(caller: &dyn Host, progress: Progress) -> bool {
    caller.progress(progress.what, progress.done, progress.total)
}
