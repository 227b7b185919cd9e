//! Copies or decodes one sample to its place in a batch.
//!
//! The bytes of a column are in the staging ring, in a mapping if the reader found them resident,
//! or in the file: large samples, and those that the plan had no room for. Raw columns are copied
//! or read straight to their place. Other columns are assembled if they are in several parts, and
//! the schema writes their fields.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::{Duration, Instant};

use forebay_image::{ImageDecoder, SampleKey};
use forebay_io::ReadError;
use forebay_plan::config::AccessChoice;
use forebay_plan::{Part, PermutationCache};
use forebay_types::{CodecChain, Extent, Located, Piece, SampleId, ShardId};

use crate::batch::buffer_pool::Claim;
use crate::batch::field_writer::{decode_into, put_value};
use crate::batch::layout::{Batch, BatchLayout, FieldPlacement};
use crate::error::Error;
use crate::pipeline::context::Context;
use crate::pipeline::gather::in_place::InPlace;
use crate::pipeline::plan_queue::PlannedSegment;
use crate::pipeline::read::unit_decoder::LastUnit;
use crate::pipeline::session::{Session, WAKEUP_INTERVAL};
use crate::pipeline::thread_group::{in_storage, out_of_storage};
use crate::shm::block_state::{Filled, block_state};
use crate::shm::counters::{CollectedCounts, Counter, Level, count, monotonic_ns};
use crate::shm::position::BlockSeq;
use crate::shm::stall::GatherWait;

/// Maximum size of the header before a value or of the checksum after it \[bytes\]; an LMDB page
/// header has 24.
const MAX_HEAD: usize = 64;

/// Samples that are located before the first one is copied.
const LOOK_AHEAD: usize = 16;

/// A sample of a step: the segment that holds it and its place in the segment's needs.
#[derive(Clone, Copy)]
pub(crate) struct Pick<'a> {
    pub(crate) planned: &'a PlannedSegment,
    pub(crate) need: usize,
}

impl Pick<'_> {
    pub(crate) fn sample(&self) -> SampleId {
        self.planned.segment.demands[self.need].sample
    }

    fn column_bytes(&self, column: usize) -> u64 {
        self.planned.located.slices(self.need, column).iter().map(|slice| slice.length).sum()
    }

    /// Bytes of all columns.
    pub(crate) fn record_bytes(&self) -> u64 {
        (0..self.planned.located.columns()).map(|column| self.column_bytes(column)).sum()
    }
}

/// What a gather thread keeps from sample to sample.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Columns that had to be put together or read.
    pub(crate) columns: Vec<Vec<u8>>,
    /// For each column the unit that was decoded last.
    pub(crate) units: Vec<LastUnit>,
    /// Bytes of a unit as they stand in its file.
    pub(crate) encoded: Vec<u8>,
    images: ImageDecoder,
    /// What the batches of the order share.
    pub(crate) kept: PermutationCache,
    /// Memory for what is fetched of the samples at hand.
    fetched: Vec<u8>,
    /// Where the values of raw fields go in the batch: slot times columns plus column.
    places: Vec<Range<usize>>,
    /// Where the values of ragged fields end so far, in the batch buffer.
    end: u64,
    requested_bytes: u64,
}

impl Scratch {
    /// Begins a batch.
    pub(crate) fn begin(&mut self, layout: &BatchLayout) {
        self.end = layout.values;
        self.requested_bytes = 0;
    }

    /// Record bytes of the batch so far.
    pub(crate) fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }
}

/// Where the bytes of a column can be had.
enum Column<'a> {
    /// In memory: the whole unit, of which the value is a part.
    Memory { bytes: &'a [u8], value: Range<usize>, extent: Extent, unit: u32 },
    /// In the file: `head` bytes of header from the start of the extent, then the value. `failed`:
    /// a reader tried in vain.
    File { extent: Extent, head: usize, unit: u32, failed: bool },
    /// In several places.
    Scattered,
}

/// Where the bytes of a part are.
pub(crate) enum Bytes<'a> {
    There(&'a [u8]),
    /// In the file; `failed` where a reader tried to read its block in vain.
    InFile {
        failed: bool,
    },
}

/// A claimed step that is being gathered.
pub(crate) struct Step<'a> {
    pub(crate) session: &'a Session,
    pub(crate) claim: &'a Claim,
    /// Time spent waiting, which is not gathering.
    pub(crate) idle: Cell<Duration>,
    /// What was found in memory outside blocks.
    pub(crate) found: RefCell<CollectedCounts>,
    /// Where what was found in mapped files last ends in them.
    mapped_ends: RefCell<Vec<(ShardId, u64)>>,
    /// Those before which a byte is zero that was copied: their file may have been cut.
    zero_ends: RefCell<Vec<(ShardId, u64)>>,
}

impl<'a> Step<'a> {
    /// A step at its beginning.
    pub(crate) fn new(session: &'a Session, claim: &'a Claim) -> Self {
        let (idle, found, mapped_ends, zero_ends) = Default::default();
        Self { session, claim, idle, found, mapped_ends, zero_ends }
    }

    pub(crate) fn shared(&self) -> &'a Context {
        &self.session.context
    }

    /// Waits for a condition; false once the claim is void.
    pub(crate) fn wait_until(&self, waiting: GatherWait, ready: impl Fn() -> bool) -> bool {
        let context = self.shared();
        if ready() {
            return true;
        }
        context.waits_for(self.claim, Some(waiting));
        let begun = Instant::now();
        let is_over = || self.session.is_stopped() || context.buffers.ring.is_void(self.claim);
        let found = out_of_storage(|| {
            while !ready() {
                if is_over() {
                    return false;
                }
                // What ends it is waited for as well: it may be rung just before the wait begins.
                context.region.filled().wait(|| ready() || is_over(), WAKEUP_INTERVAL);
            }
            true
        });
        self.idle.set(self.idle.get() + begun.elapsed());
        self.copies();
        found
    }

    /// Asks storage for bytes, outside the claim; `None` once the claim is void, whatever the
    /// answer.
    pub(crate) fn ask_storage<T>(
        &self,
        extent: Extent,
        call: impl FnOnce() -> Result<T, ReadError>,
    ) -> Result<Option<T>, Error> {
        let waiting = GatherWait::Reading { extent, since_ns: monotonic_ns() };
        Ok(self.outside(waiting, || in_storage(call)).transpose()?)
    }

    /// Calls what may wait for others, outside the claim; `None` once the claim is void, whatever
    /// it returned.
    pub(crate) fn outside<T>(&self, waiting: GatherWait, call: impl FnOnce() -> T) -> Option<T> {
        let context = self.shared();
        let ring = &context.buffers.ring;
        if !ring.step_out(self.claim) {
            return None;
        }
        context.waits_for(self.claim, Some(waiting));
        let answer = call();
        self.copies();
        ring.step_in(self.claim).then_some(answer)
    }

    /// Notes that the thread copies: from a mapping, where that waits for storage, or for nothing.
    fn copies(&self) {
        let context = self.shared();
        let from_pages = context.settings.access == AccessChoice::Mmap;
        let waiting = from_pages.then(|| GatherWait::Pages { since_ns: monotonic_ns() });
        context.waits_for(self.claim, waiting);
    }

    /// Notes that the step is full.
    pub(crate) fn done(&self) {
        if self.shared().settings.access == AccessChoice::Mmap {
            self.shared().waits_for(self.claim, None);
        }
    }

    /// Copies or decodes the samples of the step, in slot order; false when the claim became void.
    /// A failure comes with the place in `picks` of the sample that it is about.
    pub(crate) fn samples(
        &self,
        batch: &mut Batch,
        picks: &[(u32, Pick<'a>)],
        scratch: &mut Scratch,
    ) -> Result<bool, (usize, Error)> {
        if !self.touches_pages() {
            return self.copy_samples(batch, picks, scratch);
        }
        if self.shared().settings.access == AccessChoice::Mmap {
            self.copies();
        }
        in_storage(|| self.copy_samples(batch, picks, scratch))
    }

    /// Whether samples are copied from mappings whose pages may be missing.
    fn touches_pages(&self) -> bool {
        let settings = &self.shared().settings;
        settings.access == AccessChoice::Mmap
            || (self.session.is_alone(self.claim.step) && self.shared().mappings.is_some())
    }

    fn copy_samples(
        &self,
        batch: &mut Batch,
        picks: &[(u32, Pick<'a>)],
        scratch: &mut Scratch,
    ) -> Result<bool, (usize, Error)> {
        let ids = batch.bytes_mut();
        for (slot, (_, pick)) in picks.iter().enumerate() {
            ids[slot * 8..slot * 8 + 8].copy_from_slice(&(pick.sample().0 as i64).to_ne_bytes());
        }
        let columns = self.shared().index.columns();
        scratch.columns.resize_with(columns, Vec::new);
        scratch.units.resize_with(columns, LastUnit::default);
        scratch.places.clear();
        let is_raw = self.shared().index.schema().is_identity() && self.shared().decoding.is_empty();
        if is_raw {
            self.lay_out(batch, picks, scratch)?;
        }
        let mut in_place = InPlace::with_memory(std::mem::take(&mut scratch.fetched));
        let mut group = 0..picks.len();
        // Mapped files are resident as a rule: they are looked through after the first miss.
        let mut must_ask = !self.touches_pages();
        while group.start < picks.len() {
            if must_ask {
                let (places, units) = (&scratch.places, &scratch.units);
                let Some(end) = self.fetch(batch, picks, group.start, places, units, &mut in_place)? else {
                    return Ok(false);
                };
                group.end = end;
            }
            let end = if is_raw {
                self.copy_group(batch, picks, group.clone(), scratch, &in_place)?
            } else {
                self.decode_group(batch, picks, group.clone(), scratch, &in_place)?
            };
            let Some(end) = end else { return Ok(false) };
            group = end..picks.len();
            must_ask = true;
        }
        scratch.fetched = in_place.into_memory();
        Ok(true)
    }

    /// Finds the places of the values of raw fields in the batch, and writes the tables of ragged
    /// ones.
    fn lay_out(
        &self,
        batch: &mut Batch,
        picks: &[(u32, Pick<'a>)],
        scratch: &mut Scratch,
    ) -> Result<(), (usize, Error)> {
        let layout = batch.shared_layout();
        let buffer = batch.bytes_mut();
        for (slot, (_, pick)) in picks.iter().enumerate() {
            for (column, place) in layout.places.iter().enumerate() {
                let length = pick.column_bytes(column);
                scratch.requested_bytes += length;
                let start = match *place {
                    FieldPlacement::Dense { offset, sample_bytes } if length == sample_bytes => {
                        offset + slot as u64 * sample_bytes
                    }
                    FieldPlacement::Dense { sample_bytes, .. } => {
                        return Err((slot, bad_length(self.shared(), *pick, column, sample_bytes, length)));
                    }
                    FieldPlacement::Ragged { table, item_bytes } => {
                        let start = scratch.end.next_multiple_of(item_bytes);
                        scratch.end = start + length;
                        put_value(&mut buffer[table as usize..], slot, start..scratch.end);
                        start
                    }
                };
                scratch.places.push(start as usize..(start + length) as usize);
            }
        }
        Ok(())
    }

    /// Copies the samples of a group, up to the first of which bytes are missing; returns where it
    /// ended, or `None` when the claim became void.
    fn copy_group(
        &self,
        batch: &mut Batch,
        picks: &[(u32, Pick<'a>)],
        group: Range<usize>,
        scratch: &mut Scratch,
        in_place: &InPlace<'a>,
    ) -> Result<Option<usize>, (usize, Error)> {
        let columns = scratch.units.len();
        // Finding several samples before the first is looked at lets their first cache misses
        // overlap.
        let mut found: Vec<Option<Column<'_>>> = Vec::with_capacity(LOOK_AHEAD * columns);
        for first in group.clone().step_by(LOOK_AHEAD) {
            found.clear();
            let mut end = (first + LOOK_AHEAD).min(group.end);
            let mut counted = *self.found.borrow();
            for cell in first * columns..end * columns {
                if cell % columns == 0 && !in_place.is_asked() {
                    counted = *self.found.borrow();
                }
                if in_place.is_placed(cell) {
                    found.push(None);
                    continue;
                }
                match self.column(picks[cell / columns].1, cell, columns, in_place) {
                    Some(column) => found.push(Some(column)),
                    None => return Ok(None),
                }
                if in_place.has_misses() {
                    end = cell / columns;
                    self.found.replace(counted); // this sample is looked for again
                    break;
                }
            }
            for (cell, column) in (first * columns..end * columns).zip(&found) {
                let Some(column) = column else { continue };
                let (slot, pick) = (cell / columns, picks[cell / columns].1);
                let copied = self.copy(batch, pick, cell, columns, column, scratch, in_place);
                if !copied.map_err(|error| (slot, error))? {
                    return Ok(None);
                }
            }
            self.look_at_ends();
            if in_place.has_misses() {
                return Ok(Some(end));
            }
        }
        Ok(Some(group.end))
    }

    /// Like [`Step::copy_group`], with decoding.
    fn decode_group(
        &self,
        batch: &mut Batch,
        picks: &[(u32, Pick<'a>)],
        group: Range<usize>,
        scratch: &mut Scratch,
        in_place: &InPlace<'a>,
    ) -> Result<Option<usize>, (usize, Error)> {
        for slot in group.clone() {
            let decoded = self.decode(batch, slot, picks[slot].1, scratch, in_place);
            if !decoded.map_err(|error| (slot, error))? {
                return Ok(None);
            }
            self.look_at_ends();
            if in_place.has_misses() {
                return Ok(Some(slot + 1));
            }
        }
        Ok(Some(group.end))
    }

    /// Decodes one sample into slot `slot`; false when the claim became void.
    fn decode(
        &self,
        batch: &mut Batch,
        slot: usize,
        pick: Pick<'a>,
        scratch: &mut Scratch,
        in_place: &InPlace<'a>,
    ) -> Result<bool, Error> {
        let context = self.shared();
        let schema = context.index.schema();
        let columns = pick.planned.located.columns();
        let mut in_memory: Vec<Option<&[u8]>> = Vec::with_capacity(columns);
        for column in 0..columns {
            let length = pick.column_bytes(column);
            scratch.requested_bytes += length;
            let cell = slot * columns + column;
            let Some(found) = self.column(pick, cell, columns, in_place) else { return Ok(false) };
            in_memory.push(match found {
                Column::Memory { bytes, value, extent, unit } => {
                    self.check(&pick.planned.located, unit, extent, bytes, &value)?;
                    Some(&bytes[value])
                }
                Column::File { extent, head, unit, failed } => {
                    let bytes = &mut scratch.columns[column];
                    bytes.resize(length as usize, 0);
                    if !self.read(&pick.planned.located, extent, head, unit, failed, bytes)? {
                        return Ok(false);
                    }
                    None
                }
                Column::Scattered => {
                    if !self.assemble(pick, column, scratch, in_place)? {
                        return Ok(false);
                    }
                    None
                }
            });
        }
        let records: Vec<&[u8]> = in_memory
            .iter()
            .zip(&scratch.columns)
            .map(|(found, scratch)| found.unwrap_or(scratch.as_slice()))
            .collect();
        let key = SampleKey {
            seed: context.options.seed,
            epoch: context.epoch_of(self.claim.step),
            sample: pick.sample().0,
        };
        loop {
            let layout = batch.shared_layout();
            let bytes = batch.bytes_mut();
            let images = &mut scratch.images;
            let begun = (!context.decoding.is_empty()).then(Instant::now);
            let decoded = decode_into(bytes, &layout, slot, scratch.end, |out| {
                context.decoding.decode(schema, &records, key, images, out)
            });
            if let Some(begun) = begun {
                let spent = begun.elapsed().as_nanos() as u64;
                count(context.slot(), Counter::DecodeNs, spent);
                count(context.slot(), Counter::FieldDecodeNs, spent);
            }
            let end = decoded.map_err(|(column, error)| {
                let (path, offset) = whereabouts(context, pick, column);
                Error::BadSample {
                    sample: pick.sample().0,
                    path,
                    offset: offset + error.offset,
                    what: error.what,
                    expected: error.expected,
                    found: error.found,
                }
            })?;
            if end <= layout.bytes {
                scratch.end = end;
                return Ok(true);
            }
            batch.grow(end);
        }
    }

    /// Copies one raw column to its place; false when the claim became void.
    #[allow(clippy::too_many_arguments, reason = "what is copied, from where, and to where")]
    fn copy(
        &self,
        batch: &mut Batch,
        pick: Pick<'a>,
        cell: usize,
        columns: usize,
        found: &Column<'_>,
        scratch: &mut Scratch,
        in_place: &InPlace<'a>,
    ) -> Result<bool, Error> {
        let column = cell % columns;
        let into = &mut batch.bytes_mut()[scratch.places[cell].clone()];
        match found {
            Column::Memory { bytes, value, extent, unit } => {
                self.check(&pick.planned.located, *unit, *extent, bytes, value)?;
                into.copy_from_slice(&bytes[value.clone()]);
            }
            Column::File { extent, head, unit, failed } => {
                return self.read(&pick.planned.located, *extent, *head, *unit, *failed, into);
            }
            Column::Scattered => {
                if !self.assemble(pick, column, scratch, in_place)? {
                    return Ok(false);
                }
                into.copy_from_slice(&scratch.columns[column]);
            }
        }
        Ok(true)
    }

    /// Finds the bytes of one column of a sample, without looking at them; `None` when the claim
    /// became void while waiting for them.
    fn column<'b>(
        &self,
        pick: Pick<'a>,
        cell: usize,
        columns: usize,
        in_place: &'b InPlace<'a>,
    ) -> Option<Column<'b>>
    where
        'a: 'b,
    {
        let located = &pick.planned.located;
        let [slice] = located.slices(pick.need, cell % columns) else { return Some(Column::Scattered) };
        let pieces = located.unit_pieces(slice.unit);
        let [Piece::Extent(extent)] = located.pieces()[pieces.clone()] else {
            return Some(Column::Scattered);
        };
        if located.units()[slice.unit as usize].codecs != CodecChain::STORED {
            let Bytes::There(unit) = self.decoded(pick.planned, slice.unit, extent, in_place)? else {
                return Some(Column::Scattered);
            };
            let value = slice.offset as usize..(slice.offset + slice.length) as usize;
            prefetch(&unit[value.clone()]);
            return Some(Column::Memory { bytes: unit, value, extent, unit: slice.unit });
        }
        let [part] = pick.planned.plan.parts(pieces.start as u32) else { return Some(Column::Scattered) };
        let head = slice.offset as usize;
        let found = match in_place.of_cell(cell) {
            Some(bytes) => Bytes::There(bytes),
            None => self.part(pick.planned, *part, extent, in_place)?,
        };
        Some(match found {
            Bytes::There(bytes) => {
                let value = head..head + slice.length as usize;
                prefetch(&bytes[..value.end]);
                Column::Memory { bytes, value, extent, unit: slice.unit }
            }
            Bytes::InFile { failed } => Column::File { extent, head, unit: slice.unit, failed },
        })
    }

    /// Finds a coded unit, which stands at `extent` in the file, where a reader decodes it; `None`
    /// when the claim became void.
    pub(crate) fn decoded<'b>(
        &self,
        planned: &'a PlannedSegment,
        unit: u32,
        extent: Extent,
        in_place: &'b InPlace<'a>,
    ) -> Option<Bytes<'b>>
    where
        'a: 'b,
    {
        match planned.plan.decoded(unit) {
            Some(part) => self.part(planned, part, extent, in_place),
            None => Some(Bytes::InFile { failed: false }),
        }
    }

    /// Finds the bytes of one part, which are those of `extent` in the file; `None` when the claim
    /// became void.
    pub(crate) fn part<'b>(
        &self,
        planned: &'a PlannedSegment,
        part: Part,
        extent: Extent,
        in_place: &'b InPlace<'a>,
    ) -> Option<Bytes<'b>>
    where
        'a: 'b,
    {
        let context = self.shared();
        if part.is_in_place() {
            let found = in_place.get(extent).or_else(|| self.find(extent));
            if found.is_none() {
                in_place.miss();
            }
            return Some(found.map_or(Bytes::InFile { failed: false }, Bytes::There));
        }
        let block = &planned.plan.blocks[part.block as usize];
        let word = context.region.block_word(BlockSeq(block.sequence));
        let state = || block_state(word, self.session.number, BlockSeq(block.sequence));
        let waiting = GatherWait::Block { sequence: block.sequence, extent };
        if !self.wait_until(waiting, || state().is_some()) {
            return None;
        }
        Some(match state() {
            Some(Filled::Staged) => {
                let offset = block.ring_offset + part.offset;
                // SAFETY: the block's word was seen, and this rank's position gives the bytes up
                // only after this step.
                Bytes::There(unsafe { context.region.staging(offset, part.length) })
            }
            Some(Filled::Mapped) => {
                let extent = Extent { length: part.length, ..extent };
                let found = self.note_end(extent, context.near.find_held(extent));
                found.map_or(Bytes::InFile { failed: false }, Bytes::There)
            }
            Some(Filled::Failed) => Bytes::InFile { failed: true },
            Some(Filled::Left) | None => Bytes::InFile { failed: false },
        })
    }

    /// Finds an extent in memory, and counts the answer.
    pub(crate) fn find(&self, extent: Extent) -> Option<&'a [u8]> {
        let found = self.shared().near.find(extent);
        let mut counts = self.found.borrow_mut();
        match found {
            Some((level, _)) => counts.hit(level, extent.length),
            None if self.shared().mappings.is_some() => counts.skipped(Level::PageCache, 1),
            None => {}
        }
        self.note_end(extent, found)
    }

    fn note_end<'b>(&self, extent: Extent, found: Option<(Level, &'b [u8])>) -> Option<&'b [u8]> {
        let (level, bytes) = found?;
        if level == Level::PageCache {
            self.mapped_ends.borrow_mut().push((extent.shard, extent.end()));
        }
        Some(bytes)
    }

    /// Looks at the last bytes of what was copied from mapped files, while they are in the cache of
    /// the core.
    fn look_at_ends(&self) {
        let mut ends = self.mapped_ends.borrow_mut();
        if let Some(mappings) = self.shared().mappings.as_ref().filter(|_| !ends.is_empty()) {
            let zeros = ends.drain(..).filter(|&(shard, end)| mappings.is_zero_before(shard, end));
            self.zero_ends.borrow_mut().extend(zeros);
        }
    }

    /// Whether a mapped file from which samples were copied was cut before one of them ends.
    pub(crate) fn found_cut_file(&self) -> bool {
        self.look_at_ends();
        let mappings = self.shared().mappings.as_ref();
        mappings.is_some_and(|mappings| mappings.is_cut_before(self.zero_ends.take()))
    }

    /// Reads a value, with what the format keeps around it to check it by, straight from the file;
    /// false when the claim became void.
    pub(crate) fn read(
        &self,
        located: &Located,
        extent: Extent,
        head: usize,
        unit: u32,
        failed: bool,
        into: &mut [u8],
    ) -> Result<bool, Error> {
        let context = self.shared();
        let (mut header, mut tail) = ([0_u8; MAX_HEAD], [0_u8; MAX_HEAD]);
        let header = &mut header[..head];
        let tail_bytes =
            if context.settings.checksums { extent.length as usize - head - into.len() } else { 0 };
        let tail = &mut tail[..tail_bytes];
        if !self.read_parts(extent, failed, || (), [header, into, tail])? {
            return Ok(false);
        }
        count(context.slot(), Counter::UnstagedBytes, into.len() as u64);
        self.check_parts(located, unit, extent, header, into, tail)?;
        Ok(true)
    }

    /// Reads the first bytes of an extent from the file: header and value in one request, then what
    /// stands behind it, unless that is empty; false when the claim became void.
    pub(crate) fn read_parts(
        &self,
        extent: Extent,
        failed: bool,
        announce: impl FnOnce(),
        [head, value, tail]: [&mut [u8]; 3],
    ) -> Result<bool, Error> {
        let (context, step) = (self.shared(), self.claim.step);
        let behind = (head.len() + value.len()) as u64;
        let read = || {
            announce();
            context.read_in_place(step, extent, 0, failed, head, value)
        };
        if self.ask_storage(extent, read)?.is_none() {
            return Ok(false);
        }
        if tail.is_empty() {
            return Ok(true);
        }
        let read = || context.read_in_place(step, extent, behind, failed, &mut [], tail);
        Ok(self.ask_storage(extent, read)?.is_some())
    }

    /// Checks a unit by what the format keeps around the value: always what tells that it is the
    /// right place, on request the checksum of the data.
    pub(crate) fn check(
        &self,
        located: &Located,
        unit: u32,
        extent: Extent,
        bytes: &[u8],
        value: &Range<usize>,
    ) -> Result<(), Error> {
        self.check_head(located, unit, extent, &bytes[..value.start])?;
        let context = self.shared();
        if !context.settings.checksums || located.units()[unit as usize].codecs != CodecChain::STORED {
            return Ok(());
        }
        Ok(context.index.check_data(
            extent,
            &bytes[..value.start],
            &bytes[value.clone()],
            &bytes[value.end..],
        )?)
    }

    /// Like [`Step::check`], of a value and its margins that are in different places.
    pub(crate) fn check_parts(
        &self,
        located: &Located,
        unit: u32,
        extent: Extent,
        head: &[u8],
        value: &[u8],
        tail: &[u8],
    ) -> Result<(), Error> {
        self.check_head(located, unit, extent, head)?;
        let context = self.shared();
        if !context.settings.checksums {
            return Ok(());
        }
        Ok(context.index.check_data(extent, head, value, tail)?)
    }

    fn check_head(&self, located: &Located, unit: u32, extent: Extent, head: &[u8]) -> Result<(), Error> {
        let unit = &located.units()[unit as usize];
        if unit.guard == 0 {
            return Ok(());
        }
        Ok(self.shared().index.check_unit(unit, extent, head)?)
    }
}

/// Asks for the first cache lines of a record, long before they are used: records lie a page or
/// more apart, where the processor cannot guess the next one. Its own prefetcher goes on from
/// there.
fn prefetch(bytes: &[u8]) {
    const LINE: usize = 64;
    for line in bytes.chunks(LINE).take(4) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE is part of x86-64; a prefetch never faults, and the address is that of a byte
        // of the slice.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
        // On aarch64 there is no stable intrinsic for it; the processor does without.
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}

fn whereabouts(context: &Context, pick: Pick<'_>, column: usize) -> (String, u64) {
    let located = &pick.planned.located;
    let extent = located.slices(pick.need, column).first().and_then(|slice| {
        located.pieces()[located.unit_pieces(slice.unit)].iter().find_map(|piece| match piece {
            Piece::Extent(extent) => Some((extent, slice.offset)),
            Piece::Literal { .. } => None,
        })
    });
    extent.map_or((String::new(), 0), |(extent, offset)| (context.path(extent.shard), extent.offset + offset))
}

fn bad_length(context: &Context, pick: Pick<'_>, column: usize, expected: u64, found: u64) -> Error {
    let (path, offset) = whereabouts(context, pick, column);
    Error::BadSample {
        sample: pick.sample().0,
        path,
        offset,
        what: "length of the record".into(),
        expected: format!("{expected} bytes as in all other records"),
        found: format!("{found} bytes"),
    }
}
