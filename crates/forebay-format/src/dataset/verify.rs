//! Reading samples without an engine: one of them, or every one once to see that it can be read.
//!
//! A verification takes samples in stretches of ids, sorts each stretch by offset, and reads it in
//! large pieces. If a piece cannot be read, it reads the samples of the piece one by one to find
//! the bad ones.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{mem, thread};

use forebay_types::{CodecChain, Extent, Field, Located, Piece, SampleId, ShardId};
use serde::Serialize;

use super::read::OpenFiles;
use super::{Dataset, Progress};
use crate::decoded_units::{DecodedUnits, UnitKey};
use crate::threads::start_up_to;
use crate::{Error, FieldOut, Index};

/// Samples per stretch: bounds what is sorted, and is the step of the progress.
const STRETCH_SAMPLES: u64 = 16384;

/// Most bytes per read \[bytes\], unless one record is larger.
const READ_BYTES: u64 = 8 << 20;

/// Most bytes of units that a thread keeps, or those of one sample: chunks hold neighbours.
const UNITS_BYTES: u64 = 8 << 20;

/// Gap up to which two records are read at once \[bytes\]: dropping the gap costs less than a
/// second read.
const GAP_BYTES: u64 = 64 << 10;

/// A sample that cannot be read or decoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadSample {
    /// Its ordinal.
    pub sample: u64,
    /// What is wrong, with file and offset.
    pub message: String,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Samples that were read.
    pub samples: u64,
    /// Bytes read, gaps between records included.
    pub read_bytes: u64,
    /// Number of bad samples.
    pub bad_samples: u64,
    /// The first of them.
    pub bad: Vec<BadSample>,
}

impl Dataset {
    /// Reads the columns of one sample, with the checks that the format allows. Units that it
    /// decodes stay in `decoded`.
    pub fn read_columns(
        &self,
        index: &Index,
        sample: SampleId,
        decoded: &DecodedUnits,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut located = Located::default();
        index.locate(&[sample], &mut located)?;
        let units = &mut Units::default();
        self.read_located(&OpenFiles::new(self, index), index, &located, 0, (units, decoded))
    }

    /// Compares checksums that cover more than one sample with the files: those of tar headers and
    /// of members of npz archives. Checksums of single samples are compared when a sample is read.
    /// A wrong checksum here is an error, since it names no sample.
    pub fn check_sums(&self, progress: &dyn Fn(Progress) -> bool) -> Result<(), Error> {
        let total = self.shards.iter().map(|shard| shard.bytes).sum();
        let mut before = 0;
        for (file, shard) in self.files.iter().zip(&self.shards) {
            file.check_sums(&|done| progress(Progress { what: "checksums", done: before + done, total }))?;
            before += shard.bytes;
        }
        Ok(())
    }

    /// Reads and decodes every sample, with up to `threads` threads, and returns the first `limit`
    /// bad ones.
    ///
    /// Memory stays below 16 MiB per thread, or two records where one is larger, or all chunks that
    /// hold one. `progress` is called after every stretch of samples, from several threads; `false`
    /// ends the work with [`Error::Interrupted`].
    pub fn verify(
        &self,
        index: &Index,
        threads: usize,
        progress: &(dyn Fn(Progress) -> bool + Sync),
        limit: usize,
    ) -> Result<Verification, Error> {
        let files = OpenFiles::new(self, index);
        files.open_all()?;
        let total = index.samples();
        let (next, done, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let all = Mutex::new(Verification::default());
        let failure = Mutex::new(None);
        thread::scope(|scope| {
            let work = || {
                let mut checker = Checker::new(self, index, &files, limit);
                while !stop.load(Ordering::Relaxed) {
                    let first = next.fetch_add(STRETCH_SAMPLES, Ordering::Relaxed);
                    if first >= total {
                        break;
                    }
                    let last = total.min(first + STRETCH_SAMPLES);
                    if let Err(error) = checker.stretch(first..last) {
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        stop.store(true, Ordering::Relaxed);
                        break;
                    }
                    let done = done.fetch_add(last - first, Ordering::Relaxed) + last - first;
                    if !progress(Progress { what: "samples", done, total }) {
                        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(Error::Interrupted);
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                all.lock().unwrap_or_else(PoisonError::into_inner).add(checker.result);
            };
            start_up_to(threads.saturating_sub(1), scope, work);
            work();
        });
        if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        self.check_unchanged()?;
        let mut verification = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        verification.bad.sort_unstable_by_key(|bad| bad.sample);
        verification.bad.truncate(limit);
        Ok(verification)
    }

    /// Reads the columns of the `position`-th located sample, unit by unit; reuses the units in
    /// `units`, which are those of `located`, and in `decoded`.
    pub(super) fn read_located(
        &self,
        files: &OpenFiles<'_>,
        index: &Index,
        located: &Located,
        position: usize,
        (units, decoded): (&mut Units, &DecodedUnits),
    ) -> Result<Vec<Vec<u8>>, Error> {
        let mut columns = vec![Vec::new(); located.columns()];
        for (number, column) in columns.iter_mut().enumerate() {
            for slice in located.slices(position, number) {
                let bytes = match units.held.entry(slice.unit) {
                    Entry::Occupied(held) => held.into_mut(),
                    Entry::Vacant(place) => {
                        let read = self.kept_unit(files, index, located, slice.unit, decoded)?;
                        units.bytes += read.len() as u64;
                        place.insert(read)
                    }
                };
                column
                    .extend_from_slice(&bytes[slice.offset as usize..(slice.offset + slice.length) as usize]);
            }
        }
        Ok(columns)
    }

    /// A unit that is kept, or that is read now.
    fn kept_unit(
        &self,
        files: &OpenFiles<'_>,
        index: &Index,
        located: &Located,
        number: u32,
        decoded: &DecodedUnits,
    ) -> Result<Arc<Vec<u8>>, Error> {
        let key = UnitKey::of(located, number);
        let bytes = located.units()[number as usize].decoded_bytes;
        if let Some(unit) = key.and_then(|key| decoded.get(key, bytes)) {
            return Ok(unit);
        }
        let unit = Arc::new(self.read_unit(files, index, located, number)?);
        if let Some(key) = key {
            decoded.keep(key, Arc::clone(&unit));
        }
        Ok(unit)
    }

    /// Reads and decodes a unit.
    fn read_unit(
        &self,
        files: &OpenFiles,
        index: &Index,
        located: &Located,
        number: u32,
    ) -> Result<Vec<u8>, Error> {
        let unit = &located.units()[number as usize];
        let mut bytes = Vec::new();
        let mut first_extent = None;
        for piece in &located.pieces()[located.unit_pieces(number)] {
            match *piece {
                Piece::Extent(extent) => {
                    let before = bytes.len();
                    bytes.resize(before + extent.length as usize, 0);
                    files.read(extent, &mut bytes[before..])?;
                    if before == 0 {
                        files.check_unit(unit, extent, &bytes)?;
                    }
                    first_extent.get_or_insert(extent);
                }
                Piece::Literal { first, length } => {
                    let first = first as usize;
                    bytes.extend_from_slice(&located.literals()[first..first + length as usize]);
                }
            }
        }
        if unit.codecs == CodecChain::STORED {
            return Ok(bytes);
        }
        let mut decoded = vec![0; unit.decoded_bytes as usize];
        index.decode_unit(unit.codecs, &bytes, &mut decoded).map_err(|error| {
            let (shard, offset) =
                first_extent.map_or((ShardId(0), 0), |extent| (extent.shard, extent.offset));
            self.path_of(index, shard).map_or_else(
                |unknown| unknown,
                |path| Error::Corrupt {
                    path,
                    offset,
                    what: format!("{} of a chunk of {} bytes: {}", error.codec, bytes.len(), error.what),
                    expected: error.expected,
                    found: error.found,
                },
            )
        })?;
        Ok(decoded)
    }
}

impl Verification {
    fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.read_bytes += other.read_bytes;
        self.bad_samples += other.bad_samples;
        self.bad.extend(other.bad);
    }
}

/// Units of some located samples, by number.
#[derive(Default)]
pub(super) struct Units {
    held: HashMap<u32, Arc<Vec<u8>>>,
    bytes: u64,
}

impl Units {
    fn clear(&mut self) {
        self.held.clear();
        self.bytes = 0;
    }
}

/// One thread of a verification.
struct Checker<'a> {
    dataset: &'a Dataset,
    index: &'a Index,
    files: &'a OpenFiles<'a>,
    limit: usize,
    located: Located,
    /// Samples of one extent: the extent and the position in `located`.
    single: Vec<(Extent, usize)>,
    buffer: Vec<u8>,
    units: Units,
    decoded: DecodedUnits,
    fields: Vec<Vec<u8>>,
    result: Verification,
}

impl<'a> Checker<'a> {
    fn new(dataset: &'a Dataset, index: &'a Index, files: &'a OpenFiles<'a>, limit: usize) -> Self {
        let bytes = |field: &Field| vec![0; field.sample_bytes().unwrap_or(0) as usize];
        Self {
            dataset,
            index,
            files,
            limit,
            located: Located::default(),
            single: Vec::new(),
            buffer: Vec::new(),
            units: Units::default(),
            decoded: DecodedUnits::new(UNITS_BYTES),
            fields: index.fields().iter().map(bytes).collect(),
            result: Verification::default(),
        }
    }

    /// Checks the samples with these ids.
    fn stretch(&mut self, samples: std::ops::Range<u64>) -> Result<(), Error> {
        let ids: Vec<SampleId> = samples.clone().map(SampleId).collect();
        let mut located = mem::take(&mut self.located);
        self.index.locate(&ids, &mut located)?;
        // Units are numbered anew.
        self.units.clear();
        let mut single = mem::take(&mut self.single);
        single.clear();
        for (position, id) in ids.iter().enumerate() {
            match single_extent(&located, position) {
                Some(extent) => single.push((extent, position)),
                None => self.alone(&located, position, *id),
            }
        }
        single.sort_unstable();
        for run in runs(&single) {
            self.run(&located, run, &ids);
        }
        self.result.samples += ids.len() as u64;
        (self.located, self.single) = (located, single);
        Ok(())
    }

    /// Checks samples that lie close together, in one read.
    fn run(&mut self, located: &Located, run: &[(Extent, usize)], ids: &[SampleId]) {
        let Extent { offset, .. } = run[0].0;
        let end = run.iter().map(|(extent, _)| extent.end()).max().unwrap_or(offset);
        let mut buffer = mem::take(&mut self.buffer);
        buffer.resize((end - offset) as usize, 0);
        let read = self.files.read(run[0].0, &mut buffer);
        self.result.read_bytes += end - offset;
        for (extent, position) in run {
            if read.is_err() {
                self.alone(located, *position, ids[*position]);
                continue;
            }
            let slice = located.slices(*position, 0)[0];
            let unit = &located.units()[slice.unit as usize];
            let bytes = &buffer[(extent.offset - offset) as usize..(extent.end() - offset) as usize];
            let record = &bytes[slice.offset as usize..(slice.offset + slice.length) as usize];
            let checked = self
                .files
                .check_unit(unit, *extent, bytes)
                .and_then(|()| self.decode(&[record], ids[*position], *extent));
            self.record(checked, ids[*position]);
        }
        self.buffer = buffer;
    }

    /// Checks one sample with separate reads.
    fn alone(&mut self, located: &Located, position: usize, id: SampleId) {
        let place = located.slices(position, 0).first().and_then(|slice| {
            match located.pieces()[located.unit_pieces(slice.unit)].first() {
                Some(Piece::Extent(extent)) => Some(*extent),
                _ => None,
            }
        });
        if self.units.bytes > UNITS_BYTES {
            self.units.clear();
        }
        self.decoded.at_least(coded_bytes(located, position));
        let mut units = mem::take(&mut self.units);
        let kept = (&mut units, &self.decoded);
        let read = self.dataset.read_located(self.files, self.index, located, position, kept);
        self.units = units;
        let checked = read.and_then(|columns| {
            self.result.read_bytes += columns.iter().map(|column| column.len() as u64).sum::<u64>();
            let columns: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
            let nowhere = Extent { shard: forebay_types::ShardId(0), offset: 0, length: 0 };
            self.decode(&columns, id, place.unwrap_or(nowhere))
        });
        self.record(checked, id);
    }

    fn decode(&mut self, columns: &[&[u8]], id: SampleId, extent: Extent) -> Result<(), Error> {
        let mut ignore = vec![|_: &[u8]| {}; self.fields.len()];
        let mut out: Vec<FieldOut<'_>> = self
            .fields
            .iter_mut()
            .zip(&mut ignore)
            .zip(self.index.fields())
            .map(|((bytes, ignore), field)| match field.sample_bytes() {
                Some(_) => FieldOut::Dense(bytes),
                None => FieldOut::Ragged(ignore),
            })
            .collect();
        self.index.schema().decode(columns, &mut out).map_err(|source| Error::Schema {
            path: self.files.path(extent.shard),
            sample: id.0,
            offset: extent.offset,
            source: Box::new(source),
        })
    }

    fn record(&mut self, checked: Result<(), Error>, id: SampleId) {
        if let Err(error) = checked {
            self.result.bad_samples += 1;
            // A thread's stretches ascend, but not the samples within one: keep a stretch more than
            // requested.
            let bad = &mut self.result.bad;
            bad.push(BadSample { sample: id.0, message: error.to_string() });
            if bad.len() > self.limit + STRETCH_SAMPLES as usize {
                bad.sort_unstable_by_key(|bad| bad.sample);
                bad.truncate(self.limit);
            }
        }
    }
}

/// The extent of a sample that is one slice of one stored extent.
pub(super) fn single_extent(located: &Located, position: usize) -> Option<Extent> {
    if located.columns() != 1 {
        return None;
    }
    let [slice] = located.slices(position, 0) else { return None };
    if located.units()[slice.unit as usize].codecs != CodecChain::STORED {
        return None;
    }
    match located.pieces()[located.unit_pieces(slice.unit)] {
        [Piece::Extent(extent)] => Some(extent),
        _ => None,
    }
}

/// Bytes of the coded units of a sample, decoded. A unit that it has several parts of counts for
/// each.
fn coded_bytes(located: &Located, position: usize) -> u64 {
    let slices = (0..located.columns()).flat_map(|column| located.slices(position, column));
    let units = slices.map(|slice| &located.units()[slice.unit as usize]);
    units.filter(|unit| unit.codecs != CodecChain::STORED).map(|unit| unit.decoded_bytes).sum()
}

/// Cuts extents in order into runs that are read at once.
fn runs(extents: &[(Extent, usize)]) -> impl Iterator<Item = &[(Extent, usize)]> {
    let mut rest = extents;
    std::iter::from_fn(move || {
        let (first, _) = rest.first()?;
        let mut end = first.end();
        let count = rest
            .iter()
            .take_while(|(extent, _)| {
                let fits = extent.shard == first.shard
                    && extent.offset <= end.saturating_add(GAP_BYTES)
                    && (extent.end() - first.offset <= READ_BYTES || extent.end() <= end);
                if fits {
                    end = end.max(extent.end());
                }
                fits
            })
            .count()
            .max(1);
        let (run, behind) = rest.split_at(count);
        rest = behind;
        Some(run)
    })
}
