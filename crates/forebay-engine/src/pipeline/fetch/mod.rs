//! What a group of samples needs and no reader staged: found in memory, or fetched before the
//! samples are copied.
//!
//! All in-place parts of a group are asked for in memory first (`near.rs`), each once. What is
//! missing is requested together (`far.rs`).
//!
//! `read/in_place.rs` of forebay-plan decides which samples are a group, and which requests they
//! take. The files are the last level.

pub(crate) mod far;
pub(crate) mod missing;
pub(crate) mod store;

use std::ops::Range;

use forebay_plan::{AskedAhead, RequestTraits, SharePart, group_takes_more};
use forebay_types::{CodecChain, Extent, Piece, Slice};

use crate::batch::layout::Batch;
use crate::error::Error;
use crate::pipeline::fetch::far::{FarLevel, Fetched, Get, fetch_missing, holder};
use crate::pipeline::fetch::missing::{Missing, Value};
use crate::pipeline::fetch::store::Peers;
use crate::pipeline::gather::in_place::InPlace;
use crate::pipeline::gather::sample::{Pick, Step};
use crate::pipeline::read::unit_decoder::LastUnit;
use crate::shm::counters::{Counter, count};

impl<'a> Step<'a> {
    /// Finds or fetches what the samples from `first` on need and no block has, of as many of them
    /// as a group has; returns the end of the group, or `None` once the claim is void.
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
        in_place: &mut InPlace<'a>,
    ) -> Result<Option<usize>, (usize, Error)> {
        in_place.begin();
        if !picks[first..].iter().any(|(_, pick)| pick.planned.has_in_place) {
            return Ok(Some(picks.len()));
        }
        let context = self.shared();
        let columns = units.len();
        let peers = context.store.as_deref().map(|store| Peers { step: self, store });
        let files = Files { step: self };
        let levels = peers.iter().map(|peers| peers as &dyn FarLevel).chain([&files as _]);
        let levels: Vec<&dyn FarLevel> = levels.collect();
        let mut missing = Missing::default();
        let mut bytes = 0;
        let mut end = first;
        for (slot, (_, pick)) in picks.iter().enumerate().skip(first) {
            if !group_takes_more(bytes) {
                break;
            }
            end = slot + 1;
            for (column, last) in units.iter().enumerate() {
                let raw = raw_value(*pick, column);
                self.needs(*pick, column, last, |extent, is_coded| {
                    // Samples may share a coded unit.
                    if is_coded && in_place.get(extent).is_some() {
                        return;
                    }
                    if let Some(found) = self.find(extent) {
                        match raw {
                            Some(_) => in_place.found_cell(slot * columns + column, found),
                            None => in_place.found(extent, found),
                        }
                        return;
                    }
                    let Some(at) = holder(&levels, 0, extent) else { return };
                    match raw {
                        Some(raw)
                            if !places.is_empty()
                                && raw.length >= levels[at.level].traits().straight_bytes =>
                        {
                            let (head, unit) = (raw.offset as usize, raw.unit);
                            missing.values.push(Value {
                                slot,
                                column,
                                extent,
                                head,
                                unit,
                                at,
                                into: &mut [],
                            });
                        }
                        _ => {
                            bytes += extent.length;
                            missing.small.push((extent, at));
                        }
                    }
                });
            }
        }
        if missing.is_empty() {
            return Ok(Some(end));
        }
        missing.give_places(batch.bytes_mut(), places, columns);
        let with_tails = context.settings.checksums;
        let check = |value: &Value<'_>, head: &[u8], tail: &[u8]| {
            let located = &picks[value.slot].1.planned.located;
            self.check_parts(located, value.unit, value.extent, head, value.into, tail)?;
            count(context.slot(), Counter::UnstagedBytes, value.into.len() as u64);
            Ok(())
        };
        let fetched = fetch_missing(&levels, missing, with_tails, columns, in_place, check)?;
        Ok(fetched.then_some(end))
    }

    /// Calls `needed` with the extents of a column that are in no block, and whether they are of a
    /// coded unit.
    fn needs(&self, pick: Pick<'a>, column: usize, last: &LastUnit, mut needed: impl FnMut(Extent, bool)) {
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
                    needed(extent, is_coded);
                }
                let mut offset = extent.offset;
                for part in parts {
                    let here = Extent { offset, length: part.length, ..extent };
                    offset += part.length;
                    if part.is_in_place() {
                        needed(here, is_coded);
                    }
                }
            }
        }
    }
}

/// The slice of a column that is one value in one stored extent, all of it in place.
fn raw_value(pick: Pick<'_>, column: usize) -> Option<Slice> {
    let located = &pick.planned.located;
    let [slice] = located.slices(pick.need, column) else { return None };
    let pieces = located.unit_pieces(slice.unit);
    let [Piece::Extent(_)] = located.pieces()[pieces.clone()] else { return None };
    let [_] = pick.planned.plan.parts(pieces.start as u32) else { return None };
    (located.units()[slice.unit as usize].codecs == CodecChain::STORED).then_some(*slice)
}

/// The files, with the copies in tiers in front of them: the last level.
struct Files<'s, 'a> {
    step: &'s Step<'a>,
}

impl FarLevel for Files<'_, '_> {
    fn locate(&self, _: Extent) -> Option<Vec<SharePart>> {
        Some(Vec::new())
    }

    fn traits(&self) -> RequestTraits {
        RequestTraits::FILES
    }

    /// Makes the requests in their order, one at a time.
    fn fetch(&self, list: &mut [Get<'_>]) -> Result<Fetched, (usize, Error)> {
        let (step, context) = (self.step, self.step.shared());
        let extents: Vec<Extent> = list.iter().map(|get| get.extent).collect();
        let mut asked = AskedAhead::default();
        for (number, get) in list.iter_mut().enumerate() {
            let ahead = &extents[asked.before(number, &extents)];
            let announce = || {
                for extent in ahead.iter().filter(|_| !context.settings.direct) {
                    context.will_need(extent.shard, extent.offset, extent.length);
                }
            };
            let into = get.into.each_mut().map(|into| &mut **into);
            match step.read_parts(get.extent, false, announce, into) {
                Ok(true) => get.is_filled = true,
                Ok(false) => return Ok(Fetched::Void),
                Err(error) => match get.slot {
                    Some(slot) => return Err((slot, error)),
                    None => continue, // each sample reads its own bytes
                },
            }
            if get.slot.is_none() {
                count(context.slot(), Counter::UnstagedBytes, get.extent.length);
            }
            context.leave_no_pages(get.extent);
        }
        Ok(Fetched::Answered)
    }
}
