//! In-place reads: bytes of a step that no reader staged, read from the files before its samples
//! are copied.
//!
//! All that is missing of a group of samples is found first, and then requested together:
//!
//! `in_place_reads.rs` of forebay-plan decides which samples are a group, and which requests they
//! take. A read that fails is left to the sample that it is for (`sample.rs`), which reads its own
//! bytes and meets the error.

use std::ops::Range;

use forebay_plan::{AskedAhead, InPlaceRun, goes_straight, group_takes_more, in_place_runs};
use forebay_types::{CodecChain, Extent, Piece};

use crate::batch::layout::Batch;
use crate::error::Error;
use crate::pipeline::in_place::InPlace;
use crate::pipeline::missing::{Missing, Value};
use crate::pipeline::sample::{Pick, Step};
use crate::pipeline::unit_decoder::LastUnit;
use crate::shm::counters::{Counter, Level, count};

enum Request<'m> {
    Run(InPlaceRun),
    Value(Value<'m>),
}

impl Request<'_> {
    fn extent(&self) -> Extent {
        match self {
            Self::Run(run) => run.extent,
            Self::Value(value) => value.extent,
        }
    }
}

impl<'a> Step<'a> {
    /// Reads what is missing of the samples from `first` on, of as many of them as a group has;
    /// returns the end of the group, or `None` once the claim is void.
    ///
    /// `places` says where the values of raw fields go in the batch: slot times columns plus
    /// column. `units` are those that were decoded last.
    pub(crate) fn fetch(
        &self,
        batch: &mut Batch,
        picks: &[(u32, Pick<'a>)],
        first: usize,
        places: &[Range<usize>],
        units: &[LastUnit],
        in_place: &mut InPlace,
    ) -> Result<Option<usize>, (usize, Error)> {
        in_place.begin();
        if !picks[first..].iter().any(|(_, pick)| pick.planned.has_in_place) {
            return Ok(Some(picks.len()));
        }
        let columns = units.len();
        let mut small: Vec<Extent> = Vec::new();
        let mut large: Vec<Value<'_>> = Vec::new();
        let mut bytes = 0;
        let mut end = first;
        for (slot, (_, pick)) in picks.iter().enumerate().skip(first) {
            if !group_takes_more(bytes) {
                break;
            }
            end = slot + 1;
            for (column, last) in units.iter().enumerate() {
                let value = (!places.is_empty()).then(|| self.missing_value(*pick, slot, column));
                if let Some(value) = value.flatten() {
                    large.push(value);
                    continue;
                }
                self.missing(*pick, column, last, |extent| {
                    bytes += extent.length;
                    small.push(extent);
                });
            }
        }
        if small.is_empty() && large.is_empty() {
            return Ok(Some(end));
        }
        if self.shared().mappings.is_some() {
            self.found.borrow_mut().skipped(Level::PageCache, (small.len() + large.len()) as u64);
        }
        // Values stand in the batch in another order than in the files.
        large.sort_unstable_by_key(|value| places[value.slot * columns + value.column].start);
        let mut rest = batch.bytes_mut();
        let mut at = 0;
        for value in &mut large {
            let place = &places[value.slot * columns + value.column];
            let (into, behind) = std::mem::take(&mut rest)[place.start - at..].split_at_mut(place.len());
            (value.into, rest, at) = (into, behind, place.end);
        }
        small.sort_unstable();
        small.dedup();
        if let Some(store) = &self.shared().store {
            let missing = Missing { large, small };
            let Some(rest) = self.fetch_from_store(store, picks, missing, in_place, columns)? else {
                return Ok(None);
            };
            (large, small) = (rest.large, rest.small);
        }
        let mut requests: Vec<Request<'_>> = large.into_iter().map(Request::Value).collect();
        requests.extend(in_place_runs(&small).into_iter().map(Request::Run));
        requests.sort_unstable_by_key(Request::extent);
        Ok(self.request(picks, &small, requests, in_place, columns)?.then_some(end))
    }

    /// Makes the requests, in the order of the files; false once the claim is void.
    fn request(
        &self,
        picks: &[(u32, Pick<'a>)],
        small: &[Extent],
        requests: Vec<Request<'_>>,
        in_place: &mut InPlace,
        columns: usize,
    ) -> Result<bool, (usize, Error)> {
        let context = self.shared();
        let extents: Vec<Extent> = requests.iter().map(Request::extent).collect();
        let mut asked = AskedAhead::default();
        for (number, request) in requests.into_iter().enumerate() {
            let ahead = &extents[asked.before(number, &extents)];
            let announce = || {
                for extent in ahead.iter().filter(|_| !context.settings.direct) {
                    context.will_need(extent.shard, extent.offset, extent.length);
                }
            };
            match request {
                Request::Value(Value { slot, column, extent, head, unit, into }) => {
                    announce();
                    let located = &picks[slot].1.planned.located;
                    if !self.read(located, extent, head, unit, false, into).map_err(|error| (slot, error))? {
                        return Ok(false);
                    }
                    in_place.place(slot * columns + column);
                    context.leave_no_pages(extent);
                }
                Request::Run(run) => {
                    let extent = run.extent;
                    let into = in_place.memory_of(&run);
                    let read = self.ask_storage(extent, || {
                        announce();
                        Ok(context.read_in_place(self.claim.step, extent, 0, false, &mut [], into).is_ok())
                    });
                    let Some(is_read) = read.map_err(|error| (0, error))? else { return Ok(false) };
                    if !is_read {
                        continue; // each sample reads its own bytes
                    }
                    count(context.slot(), Counter::UnstagedBytes, extent.length);
                    in_place.has(&run, small);
                    context.leave_no_pages(extent);
                }
            }
        }
        Ok(true)
    }

    /// A column that is one large value in its file; its place is set by the caller.
    fn missing_value<'m>(&self, pick: Pick<'a>, slot: usize, column: usize) -> Option<Value<'m>> {
        let located = &pick.planned.located;
        let [slice] = located.slices(pick.need, column) else { return None };
        let pieces = located.unit_pieces(slice.unit);
        let [Piece::Extent(extent)] = located.pieces()[pieces.clone()] else { return None };
        let [part] = pick.planned.plan.parts(pieces.start as u32) else { return None };
        let is_raw = located.units()[slice.unit as usize].codecs == CodecChain::STORED;
        let is_in_store = || self.shared().store.as_ref().is_some_and(|store| store.parts(extent).is_some());
        if !is_raw
            || !goes_straight(slice.length, is_in_store)
            || !part.is_in_place()
            || self.shared().near.find(extent).is_some()
        {
            return None;
        }
        Some(Value { slot, column, extent, head: slice.offset as usize, unit: slice.unit, into: &mut [] })
    }

    /// The extents of a column that are in files only.
    fn missing(&self, pick: Pick<'a>, column: usize, last: &LastUnit, mut found: impl FnMut(Extent)) {
        let (located, plan) = (&pick.planned.located, &pick.planned.plan);
        for slice in located.slices(pick.need, column) {
            let is_coded = located.units()[slice.unit as usize].codecs != CodecChain::STORED;
            let is_there = || {
                plan.decoded(slice.unit).is_some()
                    || last.is(located, slice.unit)
                    || self.shared().kept_unit(located, slice.unit).is_some()
            };
            if is_coded && is_there() {
                continue;
            }
            for piece in located.unit_pieces(slice.unit) {
                let Piece::Extent(extent) = located.pieces()[piece] else { continue };
                let parts = plan.parts(piece as u32);
                if parts.is_empty() {
                    found(extent);
                }
                let mut offset = extent.offset;
                for part in parts {
                    let here = Extent { offset, length: part.length, ..extent };
                    offset += part.length;
                    if part.is_in_place() && self.shared().near.find(here).is_none() {
                        found(here);
                    }
                }
            }
        }
    }
}
