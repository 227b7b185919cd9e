//! Gathering: copying (and decoding) the samples of a step into a batch buffer.
//!
//! A gather thread claims the next step with a free buffer, waits until the step is planned, and goes through its
//! samples in slot order. A sample's bytes come from the landing ring, from a mapping of the file where the reader
//! found them resident, or, for large samples and whenever the plan gave a sample no room, straight from the file.
//! Steps whose landing bytes may be gone (the rank was away) are planned again without any landing memory: that is the
//! plain one-process path, and it is always right.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_format::FieldOut;
use forebay_plan::{Landing, Need, Part, Plan, Tranche, plan_into};
use forebay_types::{CodecChain, Extent, Located, Piece, SampleId, ShardId, Slice};

use crate::access::read_in_place;
use crate::batch::{Batch, BatchLayout, Place};
use crate::error::Error;
use crate::options::AccessChoice;
use crate::pass::Pass;
use crate::planner::{PATIENCE, Planned};
use crate::protocol::{Filled, block_state, first_safe_step, publish_position};
use crate::ring::Claim;
use crate::shared::Shared;
use crate::stats::{Counter, count};

/// Runs a gather thread of a pass until the pass is stopped.
pub(crate) fn run(pass: &Arc<Pass>) {
    let shared = &pass.shared;
    let ring = &shared.buffers.ring;
    let mut gatherer = Gatherer { pass: Arc::clone(pass), scratch: Vec::new(), asked_bytes: 0, idle: Cell::default() };
    while !pass.is_stopped() {
        let Some(claim) = ring.claim(PATIENCE) else { continue };
        shared.region.filled().ring(); // the planner looks at the claim
        let mut buffer = claim.buffer;
        let filled = gatherer.step(&claim, &mut buffer);
        if let Some(unused) = buffer {
            ring.give_back(unused);
        }
        match filled {
            Ok(Some(batch)) => finish(pass, &claim, Ok(batch)),
            Err(error) => finish(pass, &claim, Err(error)),
            Ok(None) => ring.abandon(&claim),
        }
    }
}

fn finish(pass: &Pass, claim: &Claim, item: Result<Batch, Error>) {
    let shared = &pass.shared;
    // A void batch is dropped here, without the ring's lock.
    if let Ok(gathered) = shared.buffers.ring.finish(claim, item) {
        pass.publish_gathered(gathered);
    }
}

struct Gatherer {
    pass: Arc<Pass>,
    /// Where columns that lie in several places are put together.
    scratch: Vec<Vec<u8>>,
    asked_bytes: u64,
    /// Waiting within the step so far, which is not gathering.
    idle: Cell<Duration>,
}

/// A sample of the step: the tranche that holds it and its place in the tranche's needs.
#[derive(Clone, Copy)]
struct Pick<'a> {
    planned: &'a Planned,
    need: usize,
}

/// Where the bytes of a column can be had.
enum Column<'a> {
    /// In memory.
    Memory(&'a [u8]),
    /// In the file: `head` bytes of header, then the value.
    File { shard: ShardId, offset: u64, head: usize, length: u64, extent: Extent, unit: u32 },
    /// In several places.
    Scattered,
}

impl Gatherer {
    /// Fills the batch of a claimed step; `None` when the claim became void. Takes `buffer` if it comes to use it.
    fn step(&mut self, claim: &Claim, buffer: &mut Option<usize>) -> Result<Option<Batch>, Error> {
        let pass = Arc::clone(&self.pass);
        let shared = &pass.shared;
        let begun = Instant::now();
        self.idle.set(Duration::ZERO);
        if !self.wait_until(claim, || format!("the plan of step {}", claim.step), || pass.plans.covers(claim.step)) {
            return Ok(None);
        }
        let tranches = if claim.step < first_safe(&pass) { None } else { pass.plans.at(claim.step) };
        let tranches = match tranches {
            Some(tranches) => tranches,
            None => vec![Arc::new(plain(shared, claim.step)?)],
        };
        let mut picks: Vec<(u32, Pick<'_>)> = Vec::with_capacity(shared.options.batch_size as usize);
        for planned in &tranches {
            picks.extend(planned.needs_at(claim.step).iter().map(|need| {
                let need = *need as usize;
                (planned.tranche.needs[need].slot, Pick { planned, need })
            }));
        }
        if tranches.len() > 1 {
            picks.sort_unstable_by_key(|(slot, _)| *slot);
        }
        let layout = self.layout(&picks);
        let mut batch = Batch::new(&shared.buffers, buffer.take(), layout, picks.len());
        if batch.is_private() {
            count(shared.slot(), Counter::PrivateBatches, 1);
        }
        self.asked_bytes = 0;
        let mut ends = vec![0_u64; batch.layout().places.len()];
        for (slot, (_, pick)) in picks.iter().enumerate() {
            if !self.sample(claim, &mut batch, slot, *pick, &mut ends)? {
                return Ok(None);
            }
        }
        count(shared.slot(), Counter::AskedBytes, self.asked_bytes);
        let idle = self.idle.get();
        count(shared.slot(), Counter::GatherIdleNs, idle.as_nanos() as u64);
        count(shared.slot(), Counter::GatherNs, begun.elapsed().saturating_sub(idle).as_nanos() as u64);
        Ok(Some(batch))
    }

    /// Waits for a condition; false once the claim is void.
    fn wait_until(&self, claim: &Claim, what: impl Fn() -> String, ready: impl Fn() -> bool) -> bool {
        let shared = &self.pass.shared;
        if ready() {
            return true;
        }
        shared.waits_for(what);
        let begun = Instant::now();
        while !ready() {
            if self.pass.is_stopped() || shared.buffers.ring.is_void(claim) {
                return false;
            }
            shared.region.filled().wait(&ready, PATIENCE);
        }
        self.idle.set(self.idle.get() + begun.elapsed());
        true
    }

    /// The usual layout, or a larger one for a batch of ragged fields that does not fit it.
    fn layout(&self, picks: &[(u32, Pick<'_>)]) -> Arc<BatchLayout> {
        let shared = &self.pass.shared;
        if !shared.layout.is_ragged() {
            return Arc::clone(&shared.layout);
        }
        let bytes: u64 = picks
            .iter()
            .flat_map(|(_, pick)| {
                let located = &pick.planned.located;
                (0..located.columns()).flat_map(move |column| located.slices(pick.need, column))
            })
            .map(|slice| slice.length)
            .sum();
        if bytes <= shared.settings.ragged_bytes {
            return Arc::clone(&shared.layout);
        }
        BatchLayout::new(shared.index.fields(), shared.options.batch_size, bytes)
            .map_or_else(|| Arc::clone(&shared.layout), Arc::new)
    }

    /// Copies or decodes one sample; false when the claim became void.
    fn sample(
        &mut self,
        claim: &Claim,
        batch: &mut Batch,
        slot: usize,
        pick: Pick<'_>,
        ends: &mut [u64],
    ) -> Result<bool, Error> {
        let pass = Arc::clone(&self.pass);
        let shared = &pass.shared;
        let schema = shared.index.schema();
        let sample = pick.planned.tranche.needs[pick.need].sample;
        let layout = batch.shared_layout();
        let ids = batch.bytes_mut();
        ids[slot * 8..slot * 8 + 8].copy_from_slice(&(sample.0 as i64).to_ne_bytes());

        let located = &pick.planned.located;
        let columns = located.columns();
        let mut found: [Option<Column<'_>>; MAX_COLUMNS] = [const { None }; MAX_COLUMNS];
        for (column, place) in found.iter_mut().enumerate().take(columns) {
            match self.column(claim, pick, column)? {
                Some(bytes) => *place = Some(bytes),
                None => return Ok(false),
            }
        }
        self.scratch.resize_with(columns, Vec::new);
        if schema.is_identity() {
            for (field, place) in found.iter().enumerate().take(columns) {
                let Some(column) = place else { continue };
                let length = column_length(located, pick.need, field);
                self.asked_bytes += length;
                let buffer = batch.bytes_mut();
                let into = match layout.places[field] {
                    Place::Dense { offset, sample_bytes } => {
                        if length != sample_bytes {
                            return Err(bad_length(shared, pick, sample, sample_bytes, length));
                        }
                        let start = (offset + slot as u64 * sample_bytes) as usize;
                        &mut buffer[start..start + length as usize]
                    }
                    Place::Ragged { offsets, data, .. } => {
                        let start = ends[field];
                        ends[field] += length;
                        put_offset(buffer, offsets, slot, ends[field]);
                        &mut buffer[(data + start) as usize..(data + ends[field]) as usize]
                    }
                };
                match column {
                    Column::Memory(bytes) => into.copy_from_slice(bytes),
                    Column::File { .. } => read_file(shared, located, column, into)?,
                    Column::Scattered => {
                        if !self.assemble(claim, pick, field)? {
                            return Ok(false);
                        }
                        into.copy_from_slice(&self.scratch[field]);
                    }
                }
            }
            return Ok(true);
        }
        for (column, place) in found.iter().enumerate().take(columns) {
            let Some(source) = place else { continue };
            let length = column_length(located, pick.need, column);
            self.asked_bytes += length;
            match source {
                Column::Memory(_) => {}
                Column::File { .. } => {
                    let mut bytes = std::mem::take(&mut self.scratch[column]);
                    bytes.resize(length as usize, 0);
                    read_file(shared, located, source, &mut bytes)?;
                    self.scratch[column] = bytes;
                }
                Column::Scattered => {
                    if !self.assemble(claim, pick, column)? {
                        return Ok(false);
                    }
                }
            }
        }
        let mut records: [&[u8]; MAX_COLUMNS] = [&[]; MAX_COLUMNS];
        for (column, place) in found.iter().enumerate().take(columns) {
            records[column] = match place {
                Some(Column::Memory(bytes)) => bytes,
                _ => &self.scratch[column],
            };
        }
        decode(batch.bytes_mut(), &layout, slot, ends, |out| schema.decode(&records[..columns], out)).map_err(|error| {
            let (path, offset) = whereabouts(shared, pick);
            let offset = offset + error.offset;
            Error::BadSample {
                sample: sample.0,
                path,
                offset,
                what: error.what,
                expected: error.expected,
                found: error.found,
            }
        })?;
        Ok(true)
    }

    /// Finds the bytes of one column of a sample; `None` when the claim became void while waiting for them.
    fn column<'a>(&self, claim: &Claim, pick: Pick<'a>, column: usize) -> Result<Option<Column<'a>>, Error> {
        let located = &pick.planned.located;
        let [slice] = located.slices(pick.need, column) else { return Ok(Some(Column::Scattered)) };
        let pieces = located.unit_pieces(slice.unit);
        if located.units()[slice.unit as usize].codecs != CodecChain::STORED || pieces.len() != 1 {
            return Ok(Some(Column::Scattered));
        }
        let Piece::Extent(extent) = located.pieces()[pieces.start] else { return Ok(Some(Column::Scattered)) };
        let [part] = pick.planned.plan.parts(pieces.start as u32) else { return Ok(Some(Column::Scattered)) };
        let from_file = Column::File {
            shard: extent.shard,
            offset: extent.offset,
            head: slice.offset as usize,
            length: slice.length,
            extent,
            unit: slice.unit,
        };
        if part.is_in_place() {
            return self.resident_or(from_file, extent, *slice, located).map(Some);
        }
        let Some(bytes) = self.landed(claim, pick.planned, *part, extent)? else { return Ok(None) };
        let Bytes::There(bytes) = bytes else { return Ok(Some(from_file)) };
        self.check(located, slice.unit, extent, &bytes[..slice.offset as usize])?;
        Ok(Some(Column::Memory(&bytes[slice.offset as usize..(slice.offset + slice.length) as usize])))
    }

    /// The mapping where the extent is resident, else the file.
    fn resident_or<'a>(
        &self,
        from_file: Column<'a>,
        extent: Extent,
        slice: Slice,
        located: &Located,
    ) -> Result<Column<'a>, Error> {
        let shared = &self.pass.shared;
        if let Some(bytes) = mapped(shared, extent) {
            count(shared.slot(), Counter::MappedBytes, extent.length);
            self.check(located, slice.unit, extent, &bytes[..slice.offset as usize])?;
            // SAFETY: the mapping lives as long as `shared`, which every thread of the pass holds until it ends.
            let bytes: &'a [u8] = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
            return Ok(Column::Memory(&bytes[slice.offset as usize..(slice.offset + slice.length) as usize]));
        }
        Ok(from_file)
    }

    /// Waits for the block of a part and returns its bytes, that they must come from the file, or `None` when void.
    fn landed<'a>(
        &self,
        claim: &Claim,
        planned: &'a Planned,
        part: Part,
        extent: Extent,
    ) -> Result<Option<Bytes<'a>>, Error> {
        let pass = &self.pass;
        let shared = &pass.shared;
        let block = &planned.plan.blocks[part.block as usize];
        let word = shared.region.block_word(block.sequence);
        let state = || block_state(word, pass.number, block.sequence);
        if state().is_none() {
            let what = || {
                let readers = shared.region.layout().readers as u64;
                let reader = (block.sequence % readers) as usize;
                format!(
                    "{} at offset {} ({} bytes), which reader {reader} on local rank {} should read",
                    shared.source.dataset().shards()[extent.shard.0 as usize].path.display(),
                    extent.offset,
                    extent.length,
                    shared.host(reader)
                )
            };
            if !self.wait_until(claim, what, || state().is_some()) {
                return Ok(None);
            }
        }
        Ok(Some(match state() {
            Some(Filled::Landed) => {
                // SAFETY: the block's word was seen, and this rank's position gives the bytes up only after this step.
                let bytes = unsafe { shared.region.landing(block.ring_offset + part.offset, part.length) };
                // SAFETY: the region lives as long as `shared`, which every thread of the pass holds until it ends.
                Bytes::There(unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) })
            }
            Some(Filled::Mapped) => match shared.mappings.as_ref().and_then(|mappings| {
                mappings.bytes(extent.shard, extent.offset, part.length)
            }) {
                // SAFETY: the mapping lives as long as `shared`, as above.
                Some(bytes) => Bytes::There(unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) }),
                None => Bytes::InFile,
            },
            Some(Filled::Failed) | None => Bytes::InFile,
        }))
    }

    /// Puts a column together that lies in several places; false when the claim became void.
    fn assemble(&mut self, claim: &Claim, pick: Pick<'_>, column: usize) -> Result<bool, Error> {
        let located = &pick.planned.located;
        let mut value = std::mem::take(&mut self.scratch[column]);
        value.clear();
        let mut unit_bytes = Vec::new();
        for slice in located.slices(pick.need, column) {
            unit_bytes.clear();
            for piece in located.unit_pieces(slice.unit) {
                match located.pieces()[piece] {
                    Piece::Literal { first, length } => {
                        unit_bytes.extend_from_slice(&located.literals()[first as usize..(first + length) as usize]);
                    }
                    Piece::Extent(extent) => {
                        if !self.append_extent(claim, pick, piece, extent, &mut unit_bytes)? {
                            return Ok(false);
                        }
                    }
                }
            }
            if let [Piece::Extent(extent), ..] = &located.pieces()[located.unit_pieces(slice.unit)] {
                self.check(located, slice.unit, *extent, &unit_bytes[..slice.offset as usize])?;
            }
            value.extend_from_slice(&unit_bytes[slice.offset as usize..(slice.offset + slice.length) as usize]);
        }
        self.scratch[column] = value;
        Ok(true)
    }

    fn append_extent(
        &self,
        claim: &Claim,
        pick: Pick<'_>,
        piece: usize,
        extent: Extent,
        into: &mut Vec<u8>,
    ) -> Result<bool, Error> {
        let shared = &self.pass.shared;
        let mut offset = extent.offset;
        for part in pick.planned.plan.parts(piece as u32) {
            let here = Extent { offset, length: part.length, ..extent };
            offset += part.length;
            let bytes = if part.is_in_place() {
                mapped(shared, here).map_or(Bytes::InFile, Bytes::There)
            } else {
                match self.landed(claim, pick.planned, *part, here)? {
                    Some(bytes) => bytes,
                    None => return Ok(false),
                }
            };
            match bytes {
                Bytes::There(bytes) => into.extend_from_slice(bytes),
                Bytes::InFile => {
                    let start = into.len();
                    into.resize(start + here.length as usize, 0);
                    read_in_place(&shared.files, here.shard, here.offset, &mut [], &mut into[start..])?;
                    count(shared.slot(), Counter::InPlaceBytes, here.length);
                }
            }
        }
        Ok(true)
    }

    fn check(&self, located: &Located, unit: u32, extent: Extent, head: &[u8]) -> Result<(), Error> {
        let unit = &located.units()[unit as usize];
        if unit.guard == 0 {
            return Ok(());
        }
        Ok(self.pass.shared.index.check_unit(unit, extent, head)?)
    }
}

/// Columns of a sample at most; HDF5 files with more data sets are refused when they are opened.
const MAX_COLUMNS: usize = 32;
/// Header bytes in front of a value at most (an LMDB page header has 24).
const MAX_HEAD: usize = 64;

enum Bytes<'a> {
    There(&'a [u8]),
    InFile,
}

/// The bytes of an extent, if a mapping may be used for them now.
fn mapped(shared: &Shared, extent: Extent) -> Option<&[u8]> {
    let mappings = shared.mappings.as_ref()?;
    let may = match shared.settings.access {
        AccessChoice::Mmap => true,
        AccessChoice::Auto => mappings.resident(extent.shard, extent.offset, extent.length),
        AccessChoice::Pread | AccessChoice::IoUring => false,
    };
    if may { mappings.bytes(extent.shard, extent.offset, extent.length) } else { None }
}

fn read_file(shared: &Shared, located: &Located, column: &Column<'_>, into: &mut [u8]) -> Result<(), Error> {
    let Column::File { shard, offset, head, length, extent, unit } = column else { return Ok(()) };
    let mut header = [0_u8; MAX_HEAD];
    let header = &mut header[..*head];
    read_in_place(&shared.files, *shard, *offset, header, into)?;
    count(shared.slot(), Counter::InPlaceBytes, *length);
    let unit = &located.units()[*unit as usize];
    if unit.guard != 0 {
        shared.index.check_unit(unit, *extent, header)?;
    }
    Ok(())
}

fn column_length(located: &Located, need: usize, column: usize) -> u64 {
    located.slices(need, column).iter().map(|slice| slice.length).sum()
}

fn put_offset(buffer: &mut [u8], offsets: u64, slot: usize, end: u64) {
    let at = offsets as usize + (slot + 1) * 8;
    buffer[at..at + 8].copy_from_slice(&end.to_ne_bytes());
    if slot == 0 {
        buffer[at - 8..at].fill(0);
    }
}

/// Decodes one sample into its places of the batch.
fn decode<E>(
    buffer: &mut [u8],
    layout: &BatchLayout,
    slot: usize,
    ends: &mut [u64],
    decode: impl FnOnce(&mut [FieldOut<'_>]) -> Result<(), E>,
) -> Result<(), E> {
    let mut rest = buffer;
    let mut at = 0_u64;
    let mut cut = |from: u64, length: u64| {
        let (_, behind) = std::mem::take(&mut rest).split_at_mut((from - at) as usize);
        let (taken, behind) = behind.split_at_mut(length as usize);
        rest = behind;
        at = from + length;
        taken
    };
    // Ragged fields take their bytes through a closure; the closures are made first, in the order of the fields, so
    // that the outputs can borrow them.
    enum Cut<'a> {
        Dense(&'a mut [u8]),
        Ragged { offset: &'a mut [u8], data: &'a mut [u8], end: &'a mut u64 },
    }
    let mut cuts: Vec<Cut<'_>> = Vec::with_capacity(layout.places.len());
    for (place, end) in layout.places.iter().zip(ends) {
        cuts.push(match *place {
            Place::Dense { offset, sample_bytes } => {
                let whole = cut(offset, sample_bytes * layout.batch_size);
                Cut::Dense(&mut whole[slot * sample_bytes as usize..(slot + 1) * sample_bytes as usize])
            }
            Place::Ragged { offsets, data, capacity } => {
                let offset = cut(offsets, (layout.batch_size + 1) * 8);
                Cut::Ragged { offset, data: cut(data, capacity), end }
            }
        });
    }
    let mut closures: Vec<Option<Box<dyn FnMut(&[u8]) + '_>>> = Vec::with_capacity(cuts.len());
    let mut dense: Vec<Option<&mut [u8]>> = Vec::with_capacity(cuts.len());
    for cut in cuts {
        match cut {
            Cut::Dense(bytes) => {
                dense.push(Some(bytes));
                closures.push(None);
            }
            Cut::Ragged { offset, data, end } => {
                dense.push(None);
                closures.push(Some(Box::new(move |bytes: &[u8]| {
                    let start = *end as usize;
                    data[start..start + bytes.len()].copy_from_slice(bytes);
                    *end += bytes.len() as u64;
                    put_offset(offset, 0, slot, *end);
                })));
            }
        }
    }
    let mut out: Vec<FieldOut<'_>> = dense
        .into_iter()
        .zip(&mut closures)
        .map(|(dense, closure)| match (dense, closure) {
            (Some(bytes), _) => FieldOut::Dense(bytes),
            (None, Some(closure)) => FieldOut::Ragged(closure.as_mut()),
            (None, None) => unreachable!("a field is dense or ragged"),
        })
        .collect();
    decode(&mut out)
}

/// First step whose landing bytes are sure to be there.
fn first_safe(pass: &Pass) -> u64 {
    pass.first_safe.load(std::sync::atomic::Ordering::Acquire)
}

/// Plans one step of this rank without landing memory: everything is read in place.
fn plain(shared: &Shared, step: u64) -> Result<Planned, Error> {
    let steps = shared.order.steps_per_epoch();
    let given = shared.given.get(step / steps);
    let mut ids: Vec<SampleId> = Vec::new();
    shared.order.batch(
        step / steps,
        step % steps,
        forebay_types::Rank(shared.options.rank),
        given.as_deref(),
        &mut ids,
    );
    let needs = ids
        .iter()
        .enumerate()
        .map(|(slot, sample)| Need {
            sample: *sample,
            local_rank: shared.options.local_rank,
            step: 0,
            slot: slot as u32,
        })
        .collect();
    let tranche = Tranche { first_step: step, last_step: step, needs };
    let mut located = Located::default();
    shared.index.locate(&ids, &mut located)?;
    let shard_bytes: Vec<u64> = shared.index.shards().iter().map(|shard| shard.bytes).collect();
    let mut plan = Plan::default();
    plan_into(&tranche, &located, &shard_bytes, &shared.traits, &mut Landing::new(0, 0), &mut plan);
    Ok(Planned::new(tranche, located, plan, shared.options.local_rank))
}

/// Reads what a rank that was away may rely on, after it has published its position (protocol.rs).
pub(crate) fn come_back(pass: &Pass, step: u64) {
    let shared = &pass.shared;
    publish_position(&shared.slot().position, pass.number, step);
    let safe = shared
        .region
        .readers()
        .iter()
        .map(|reader| first_safe_step(&reader.overwritten, pass.number))
        .max()
        .unwrap_or(0);
    pass.first_safe.store(safe, std::sync::atomic::Ordering::Release);
}

fn whereabouts(shared: &Shared, pick: Pick<'_>) -> (String, u64) {
    let located = &pick.planned.located;
    let extent = located.slices(pick.need, 0).first().and_then(|slice| {
        located.pieces()[located.unit_pieces(slice.unit)].iter().find_map(|piece| match piece {
            Piece::Extent(extent) => Some((extent, slice.offset)),
            Piece::Literal { .. } => None,
        })
    });
    extent.map_or((String::new(), 0), |(extent, offset)| {
        let path = shared.source.dataset().shards()[extent.shard.0 as usize].path.display().to_string();
        (path, extent.offset + offset)
    })
}

fn bad_length(shared: &Shared, pick: Pick<'_>, sample: SampleId, expected: u64, found: u64) -> Error {
    let (path, offset) = whereabouts(shared, pick);
    Error::BadSample {
        sample: sample.0,
        path,
        offset,
        what: "length of the record".into(),
        expected: format!("{expected} bytes as in all other records"),
        found: format!("{found} bytes"),
    }
}
