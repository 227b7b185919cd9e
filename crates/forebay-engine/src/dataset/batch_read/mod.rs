//! Reads several samples by id, for one process: no plan of a node, no staging ring.
//!
//! 1. [`BatchRead::prepare`] sorts the ids, drops repeats, locates the samples, and plans the reads
//!    (`forebay_plan::RandomReads`). The lengths of raw fields are known then.
//! 2. The caller provides a [`Place`] for each value whose length is known.
//! 3. [`BatchRead::fill`] makes the reads in threads (`workers.rs`). A thread checks and decodes
//!    what it has read, and copies it to the places (`scatter.rs`). A coded unit is decoded once
//!    for all samples of the call, and kept for the next calls while there is room.
//! 4. If a schema or field decoders decode the records, they go to memory of the call first, and
//!    their fields to the places (`fields.rs`). What is random is as in epoch 0 of seed 0.
//!
//! Each byte is read once, and each record is verified by the checksum that its format has. The
//! files stay open (`open_files.rs`). An error names the file and offset of the first read that
//! failed, in the order of the files.

mod fields;
mod open_files;
mod place;
mod scatter;
mod workers;

use std::sync::{Arc, OnceLock};

use forebay_format::{DecodedUnits, Index, SchemaError};
use forebay_plan::{RandomReads, read_threads};
use forebay_types::{Layout, Located, SampleId};

pub use place::Place;

pub(crate) use open_files::OpenFiles;

use crate::dataset::IndexedDataset;
use crate::dataset::batch_read::scatter::Scatter;
use crate::dataset::batch_read::workers::in_threads;
use crate::dataset::field_decoders::{Decoding, decode_threads};
use crate::error::Error;
use crate::host::Host;

/// Samples that are to be read: located, with the reads that fetch them.
pub struct BatchRead {
    index: Arc<Index>,
    decoding: Arc<Decoding>,
    files: Arc<OpenFiles>,
    /// Units that earlier calls have decoded.
    decoded: Arc<DecodedUnits>,
    /// The samples, each once, in ascending order.
    samples: Vec<SampleId>,
    /// For each id of the call its sample, as an index of `samples`.
    slots: Vec<u32>,
    located: Located,
    reads: RandomReads,
    is_local: bool,
    /// Threads that decode images; 0 where there are none.
    decode_threads: usize,
}

/// Values of ragged fields that were decoded: for each sample those of its ragged fields, in
/// the order of the fields.
pub type Decoded = Vec<Vec<Vec<u8>>>;

impl BatchRead {
    /// Locates samples and plans their reads. Loads or builds the index, and opens files.
    ///
    /// # Errors
    /// An id that does not exist; a record of a fixed-size field that has another length; what
    /// loading the index returns.
    pub fn prepare(source: &IndexedDataset, ids: &[u64], caller: &dyn Host) -> Result<Self, Error> {
        let index = source.index(caller)?.index;
        let decoding = source.decoding(&index)?;
        let files = source.open_files(&index)?;
        let mut samples: Vec<SampleId> = ids.iter().copied().map(SampleId).collect();
        samples.sort_unstable();
        samples.dedup();
        let slot = |id: &u64| samples.partition_point(|sample| sample.0 < *id) as u32;
        let slots = ids.iter().map(slot).collect();
        let mut located = Located::default();
        index.locate(&samples, &mut located)?;
        let is_local = source.is_local();
        let reads = RandomReads::of(&located, is_local);
        let decode_threads = decode_threads(&source.decoders, cores());
        let decoded = Arc::clone(&source.decoded);
        let prepared = Self {
            index,
            decoding,
            files,
            decoded,
            samples,
            slots,
            located,
            reads,
            is_local,
            decode_threads,
        };
        prepared.check_lengths()?;
        Ok(prepared)
    }

    /// The samples to read, each once, in ascending order.
    pub fn samples(&self) -> &[SampleId] {
        &self.samples
    }

    /// For each id of the call its sample, as an index of [`BatchRead::samples`].
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// The index that the samples were found in.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The fields of a sample, and their decoders.
    pub fn decoding(&self) -> &Decoding {
        &self.decoding
    }

    /// Whether the fields are the columns of the records, as they are in the files.
    pub fn is_direct(&self) -> bool {
        self.index.schema().is_identity() && self.decoding.is_empty()
    }

    /// Length of the value of a field \[bytes\]; `None` if only decoding tells.
    pub fn value_bytes(&self, sample: usize, field: usize) -> Option<u64> {
        if self.is_direct() {
            return Some(self.column_bytes(sample, field));
        }
        self.decoding.fields()[field].sample_bytes()
    }

    /// Reads the samples. `places` has an entry for each sample and field, sample by sample: for
    /// each value whose length is known ([`BatchRead::value_bytes`]), a place of that length.
    ///
    /// Returns the values of the other fields: all ragged ones, or none.
    ///
    /// # Errors
    /// Storage that fails, a record that cannot be decoded, or [`Error::Interrupted`]; places have
    /// unspecified contents then.
    pub fn fill(
        &self,
        source: &IndexedDataset,
        places: &[Option<Place>],
        threads: Option<usize>,
        caller: &dyn Host,
    ) -> Result<Decoded, Error> {
        let reads = self.reads.reads().len();
        let readers = read_threads(threads, reads, self.reads.bytes(), self.is_local, cores());
        let decoded = if self.is_direct() {
            let places: Vec<Place> = places.iter().map(|place| place.expect("its length is known")).collect();
            self.scatter(&places, readers, caller)?;
            Vec::new()
        } else {
            let decoders = threads.unwrap_or(readers.max(self.decode_threads));
            self.decode(places, readers, decoders, caller)?
        };
        let shards = self.reads.reads().iter().map(|read| read.extent.shard);
        for warning in self.files.check_unchanged(source.dataset(), shards)? {
            caller.warn(&warning);
        }
        Ok(decoded)
    }

    /// Reads the columns into places: one for each sample and column.
    fn scatter(&self, places: &[Place], threads: usize, caller: &dyn Host) -> Result<(), Error> {
        let scatter = Scatter::new(self, places);
        scatter.without_reads()?;
        let reads = self.reads.reads();
        in_threads(reads.len(), threads, caller, |number, memory| scatter.read(number, memory))
    }

    fn column_bytes(&self, sample: usize, column: usize) -> u64 {
        self.located.slices(sample, column).iter().map(|slice| slice.length).sum()
    }

    /// Compares the lengths of raw values of fixed size.
    fn check_lengths(&self) -> Result<(), Error> {
        if !self.is_direct() {
            return Ok(());
        }
        for (column, field) in self.index.fields().iter().enumerate() {
            let Layout::Dense(_) = field.layout else { continue };
            let expected = field.sample_bytes().unwrap_or(u64::MAX);
            for sample in 0..self.samples.len() {
                let found = self.column_bytes(sample, column);
                if found != expected {
                    let error = SchemaError {
                        what: format!("length of field {:?}", field.name),
                        offset: 0,
                        expected: format!("{expected} bytes as in all other records"),
                        found: format!("{found} bytes"),
                    };
                    return Err(self.bad_sample(sample, column, error));
                }
            }
        }
        Ok(())
    }

    /// The error of a sample of which a column is not what its schema or decoder says.
    fn bad_sample(&self, sample: usize, column: usize, error: SchemaError) -> Error {
        let place = self.located.slices(sample, column).first().and_then(|slice| {
            let extent = scatter::first_extent(&self.located, slice.unit)?;
            Some((extent, slice.offset))
        });
        let (path, offset) = place.map_or((String::new(), 0), |(extent, offset)| {
            (self.files.path(extent.shard).display().to_string(), extent.offset + offset)
        });
        let SchemaError { what, offset: within, expected, found } = error;
        Error::BadSample {
            sample: self.samples[sample].0,
            path,
            offset: offset + within,
            what,
            expected,
            found,
        }
    }
}

/// Cores that the process may use. Asked once: the answer takes several files of the system.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}
