//! Samples of a step from an in-memory store: bytes in shares of other nodes go straight to where
//! they are needed, with one request per node.
//!
//! - Values of raw fields go to their places in the batch; what the format keeps around them, and
//!   small extents, go to memory of the thread.
//! - Parts that lie in this node's share are copied.
//! - If the share of a node is lost and the source may take its place, the samples are left to
//!   the reads that follow.

use std::ptr::NonNull;

use forebay_plan::SharePart;
use forebay_types::Extent;

use crate::error::Error;
use crate::pipeline::in_place::InPlace;
use crate::pipeline::missing::{Missing, Value};
use crate::pipeline::sample::{Pick, Step};
use crate::shm::counters::{Counter, Level, LevelCounts, count};
use crate::shm::stall::GatherWait;
use crate::store::{Failed, Store, Want};

/// Memory for a part of an extent.
struct Place {
    /// First byte \[bytes from the start of the extent\].
    start: u64,
    length: u64,
    into: NonNull<u8>,
}

impl<'a> Step<'a> {
    /// Fetches what shares hold; returns what is still missing, or `None` once the claim is void.
    pub(super) fn fetch_from_store<'m>(
        &self,
        store: &Store,
        picks: &[(u32, Pick<'a>)],
        missing: Missing<'m>,
        in_place: &mut InPlace,
        columns: usize,
    ) -> Result<Option<Missing<'m>>, (usize, Error)> {
        let context = self.shared();
        let mut rest = Missing { large: Vec::new(), small: Vec::new() };
        let mut values: Vec<(Value<'m>, Vec<SharePart>)> = Vec::new();
        for value in missing.large {
            match store.parts(value.extent) {
                Some(parts) => values.push((value, parts)),
                None => rest.large.push(value),
            }
        }
        let mut extents: Vec<(Extent, Vec<SharePart>)> = Vec::new();
        for extent in missing.small {
            match store.parts(extent) {
                Some(parts) => extents.push((extent, parts)),
                None => rest.small.push(extent),
            }
        }
        let Some(first) = values.first().map(|(value, _)| value.extent).or(extents.first().map(|one| one.0))
        else {
            return Ok(Some(rest));
        };
        // Values come with their margins: what tells that they are the right ones, and checksums.
        let with_tails = context.settings.checksums;
        let margins = |value: &Value<'_>| {
            let tail = value.extent.length as usize - value.head - value.into.len();
            (value.head, if with_tails { tail } else { 0 })
        };
        let margin_bytes: usize = values.iter().map(|(value, _)| margins(value).0 + margins(value).1).sum();
        let mut margin_memory = vec![0_u8; margin_bytes];
        let memory = in_place.fetched_memory(extents.iter().map(|(extent, _)| extent.length as usize).sum());
        let (mut wants, mut copied) = (Vec::new(), LevelCounts::default());
        let mut left = &mut margin_memory[..];
        for (value, parts) in &mut values {
            let (head, tail) = margins(value);
            let (head_memory, behind) = std::mem::take(&mut left).split_at_mut(head);
            let (tail_memory, behind) = behind.split_at_mut(tail);
            left = behind;
            let value_length = value.into.len();
            let places = [
                Place::new(0, head_memory),
                Place::new(head as u64, value.into),
                Place::new((head + value_length) as u64, tail_memory),
            ];
            distribute(store, parts, &places, &mut wants, &mut copied);
        }
        let mut left = memory;
        for (extent, parts) in &extents {
            let (into, behind) = std::mem::take(&mut left).split_at_mut(extent.length as usize);
            left = behind;
            distribute(store, parts, &[Place::new(0, into)], &mut wants, &mut copied);
        }
        let epoch = context.epoch_of(self.claim.step);
        let wanted_bytes: u64 = wants.iter().map(|want| want.part.length).sum();
        let (wanted, step) = (wants.len() as u64, self.claim.step);
        let stop = || self.session.is_stopped() || context.buffers.ring.is_void(self.claim);
        let waiting = GatherWait::Share { extent: first };
        let Some(answer) = self.outside(waiting, || store.fetch(step, wants, &stop)) else { return Ok(None) };
        match answer {
            Ok(requests) => {
                let counts =
                    LevelCounts { hits: wanted, bytes: wanted_bytes, operations: requests, skipped: 0 };
                context.count_level(epoch, Level::Peers, counts);
                context.count_level(epoch, Level::Share, copied);
            }
            Err(Failed::Stopped) => return Ok(None),
            Err(Failed::Node(node, error)) => {
                if !store.may_lose(node, &error) {
                    return Err((0, error.into()));
                }
                context.count_level(
                    epoch,
                    Level::Peers,
                    LevelCounts { skipped: wanted, ..LevelCounts::default() },
                );
                rest.large.extend(values.into_iter().map(|(value, _)| value));
                rest.small.extend(extents.into_iter().map(|(extent, _)| extent));
                return Ok(Some(rest));
            }
        }
        let mut margin = 0;
        for (value, _) in &values {
            let (head, tail) = margins(value);
            let (head, tail) = (margin..margin + head, margin + head..margin + head + tail);
            margin = tail.end;
            let located = &picks[value.slot].1.planned.located;
            self.check_parts(
                located,
                value.unit,
                value.extent,
                &margin_memory[head],
                value.into,
                &margin_memory[tail],
            )
            .map_err(|error| (value.slot, error))?;
            count(context.slot(), Counter::UnstagedBytes, value.into.len() as u64);
            in_place.place(value.slot * columns + value.column);
        }
        in_place.has_fetched(extents.iter().map(|(extent, _)| *extent));
        Ok(Some(rest))
    }
}

impl Place {
    fn new(start: u64, into: &mut [u8]) -> Self {
        let length = into.len() as u64;
        Self { start, length, into: NonNull::from(into).cast() }
    }
}

/// Copies the parts of an extent that are in this node's share to their places, and notes what is
/// wanted of others.
fn distribute(
    store: &Store,
    parts: &[SharePart],
    places: &[Place],
    wants: &mut Vec<Want>,
    copied: &mut LevelCounts,
) {
    let mut start = 0;
    for part in parts {
        let end = start + part.length;
        for place in places {
            let (from, to) = (start.max(place.start), end.min(place.start + place.length));
            if from >= to {
                continue;
            }
            let piece = SharePart { offset: part.offset + (from - start), length: to - from, ..*part };
            // SAFETY: `from` is inside of the place, which is `length` bytes of one slice.
            let into = unsafe { place.into.add((from - place.start) as usize) };
            if store.is_own(piece) {
                if let Some(bytes) = store.own_part(piece) {
                    copied.hits += 1;
                    copied.bytes += piece.length;
                    // SAFETY: the place has so many bytes from there, which only this thread uses;
                    // the share is other memory.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.as_ptr(), bytes.len()) };
                }
            } else {
                wants.push(Want { part: piece, into });
            }
        }
        start = end;
    }
}
