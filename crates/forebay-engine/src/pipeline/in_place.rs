//! In-place reads: bytes of a step that no reader staged, read from the files before its samples
//! are copied.
//!
//! All that is missing of a group of samples is found first, and then requested together:
//!
//! - Small extents go to memory of the thread. Those that lie close together are one request.
//! - A large value of a raw field goes straight to its place in the batch, without a copy.
//!
//! The kernel is asked for the next requests while one is waited for. A read that fails is left to
//! the sample that it is for (`sample.rs`), which reads its own bytes and meets the error.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

use forebay_types::{CodecChain, Extent, Piece};

use crate::batch::layout::Batch;
use crate::error::Error;
use crate::pipeline::sample::{Pick, Step};
use crate::pipeline::unit_decoder::LastUnit;
use crate::shm::counters::{Counter, count};

/// From this length on a value goes straight to its place \[bytes\]: a copy costs less than a
/// request below.
const STRAIGHT_BYTES: u64 = 64 << 10;

/// Gap that is read through between small extents \[bytes\]: the page cache fetches the page anyway.
const GAP_BYTES: u64 = 4 << 10;

/// Largest request for small extents \[bytes\].
const REQUEST_BYTES: u64 = 1 << 20;

/// Memory for the small extents of a group \[bytes\]; the first sample of a group may exceed it.
const GROUP_BYTES: u64 = 4 << 20;

/// How much the kernel is asked for ahead of the request that is waited for \[bytes\].
const AHEAD_BYTES: u64 = 16 << 20;

/// What was read for a group of samples.
#[derive(Default)]
pub(crate) struct InPlace {
    memory: Vec<u8>,
    /// Where an extent is in `memory`.
    extents: HashMap<Extent, Range<usize>>,
    /// Columns that are in the batch: slot times columns plus column.
    placed: Vec<usize>,
    /// Whether the samples at hand were looked through for what is missing.
    asked: bool,
    /// Whether a sample found bytes that are neither mapped nor here.
    missed: Cell<bool>,
}

impl InPlace {
    /// The bytes of a small extent.
    pub(crate) fn get(&self, extent: Extent) -> Option<&[u8]> {
        if self.extents.is_empty() {
            return None;
        }
        self.extents.get(&extent).map(|range| &self.memory[range.clone()])
    }

    /// Whether a column is in the batch: slot times columns plus column.
    pub(crate) fn is_placed(&self, cell: usize) -> bool {
        self.placed.contains(&cell)
    }

    /// Notes that bytes are neither mapped nor here.
    pub(crate) fn miss(&self) {
        self.missed.set(true);
    }

    /// Whether the next samples should be looked through for what is missing.
    pub(crate) fn wants_more(&self) -> bool {
        self.missed.get() && !self.asked
    }

    /// Forgets what was read for other samples.
    pub(crate) fn clear(&mut self) {
        self.extents.clear();
        self.placed.clear();
        self.asked = false;
        self.missed.set(false);
    }
}

/// A large value on its way to its place in the batch.
struct Value<'m> {
    slot: usize,
    column: usize,
    extent: Extent,
    /// Bytes in front of the value in its unit.
    head: usize,
    unit: u32,
    into: &'m mut [u8],
}

/// Small extents that are one request.
struct Run {
    extent: Extent,
    /// Where they go in the memory of [`InPlace`].
    start: usize,
    /// The extents, as a range of the sorted list.
    members: Range<usize>,
}

enum Request<'m> {
    Run(Run),
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
        in_place.clear();
        in_place.asked = true;
        if !picks[first..].iter().any(|(_, pick)| pick.planned.has_in_place) {
            return Ok(Some(picks.len()));
        }
        let columns = units.len();
        let mut small: Vec<Extent> = Vec::new();
        let mut large: Vec<Value<'_>> = Vec::new();
        let mut bytes = 0;
        let mut end = first;
        for (slot, (_, pick)) in picks.iter().enumerate().skip(first) {
            if bytes > GROUP_BYTES {
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
        self.not_mapped(small.len() + large.len());
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
        let mut requests: Vec<Request<'_>> = large.into_iter().map(Request::Value).collect();
        requests.extend(runs(&small).into_iter().map(Request::Run));
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
        let (mut announced, mut ahead_bytes) = (0, 0);
        for (number, request) in requests.into_iter().enumerate() {
            let begun = announced;
            while announced < extents.len() && (ahead_bytes < AHEAD_BYTES || announced <= number) {
                ahead_bytes += extents[announced].length;
                announced += 1;
            }
            ahead_bytes -= extents[number].length;
            let ahead = &extents[begun.max(number + 1).min(announced)..announced];
            let announce = || {
                for extent in ahead.iter().filter(|_| !context.settings.direct) {
                    context.files.will_need(extent.shard, extent.offset, extent.length);
                }
            };
            match request {
                Request::Value(Value { slot, column, extent, head, unit, into }) => {
                    announce();
                    let located = &picks[slot].1.planned.located;
                    if !self.read(located, extent, head, unit, false, into).map_err(|error| (slot, error))? {
                        return Ok(false);
                    }
                    in_place.placed.push(slot * columns + column);
                }
                Request::Run(Run { extent, start, members }) => {
                    let length = extent.length as usize;
                    in_place.memory.resize(in_place.memory.len().max(start + length), 0);
                    let into = &mut in_place.memory[start..start + length];
                    let read = self.ask_storage(extent, || {
                        announce();
                        Ok(context.read_in_place(extent, 0, false, &mut [], into).is_ok())
                    });
                    let Some(is_read) = read.map_err(|error| (0, error))? else { return Ok(false) };
                    if !is_read {
                        continue; // each sample reads its own bytes
                    }
                    let members = &small[members];
                    count(context.slot(), Counter::UnstagedBytes, extent.length);
                    for member in members {
                        let start = start + (member.offset - extent.offset) as usize;
                        in_place.extents.insert(*member, start..start + member.length as usize);
                    }
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
        if !is_raw || slice.length < STRAIGHT_BYTES || !part.is_in_place() || self.is_mappable(extent) {
            return None;
        }
        Some(Value { slot, column, extent, head: slice.offset as usize, unit: slice.unit, into: &mut [] })
    }

    /// The extents of a column that are in files only.
    fn missing(&self, pick: Pick<'a>, column: usize, last: &LastUnit, mut found: impl FnMut(Extent)) {
        let (located, plan) = (&pick.planned.located, &pick.planned.plan);
        for slice in located.slices(pick.need, column) {
            let is_coded = located.units()[slice.unit as usize].codecs != CodecChain::STORED;
            if is_coded && (plan.decoded(slice.unit).is_some() || last.is(located, slice.unit)) {
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
                    if part.is_in_place() && !self.is_mappable(here) {
                        found(here);
                    }
                }
            }
        }
    }
}

/// Joins sorted extents to requests.
fn runs(small: &[Extent]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut memory = 0;
    for (number, extent) in small.iter().enumerate() {
        if let Some(run) = runs.last_mut()
            && run.extent.shard == extent.shard
            && extent.offset <= run.extent.end() + GAP_BYTES
            && extent.end() - run.extent.offset <= REQUEST_BYTES
        {
            let grown = extent.end().max(run.extent.end()) - run.extent.offset;
            memory += (grown - run.extent.length) as usize;
            run.extent.length = grown;
            run.members.end = number + 1;
            continue;
        }
        runs.push(Run { extent: *extent, start: memory, members: number..number + 1 });
        memory += extent.length as usize;
    }
    runs
}

#[cfg(test)]
mod tests {
    use forebay_types::ShardId;
    use proptest::prelude::*;

    use super::*;

    fn extent(shard: u32, offset: u64, length: u64) -> Extent {
        Extent { shard: ShardId(shard), offset, length }
    }

    #[test]
    fn close_extents_of_one_file_are_one_request() {
        let small = [extent(0, 0, 10), extent(0, 4_000, 10), extent(0, 9_000, 10), extent(1, 9_010, 10)];
        let found: Vec<_> =
            runs(&small).iter().map(|run| (run.extent, run.start, run.members.clone())).collect();
        assert_eq!(
            found,
            [
                (extent(0, 0, 4_010), 0, 0..2),
                (extent(0, 9_000, 10), 4_010, 2..3),
                (extent(1, 9_010, 10), 4_020, 3..4)
            ]
        );
    }

    proptest! {
        #[test]
        fn requests_cover_every_extent_once(
            mut small in prop::collection::vec(
                (0_u32..3, 0_u64..1 << 22, 1_u64..200_000).prop_map(|(shard, offset, length)| extent(shard, offset, length)),
                0..60,
            ),
        ) {
            small.sort_unstable();
            small.dedup();
            let runs = runs(&small);
            let members: Vec<usize> = runs.iter().flat_map(|run| run.members.clone()).collect();
            prop_assert_eq!(members, (0..small.len()).collect::<Vec<_>>());
            let mut memory = 0;
            for run in &runs {
                prop_assert_eq!(run.start, memory);
                memory += run.extent.length as usize;
                prop_assert!(run.members.len() == 1 || run.extent.length <= REQUEST_BYTES);
                for member in &small[run.members.clone()] {
                    prop_assert_eq!(member.shard, run.extent.shard);
                    prop_assert!(run.extent.offset <= member.offset && member.end() <= run.extent.end());
                }
            }
        }
    }
}
