//! The shares of other nodes as a level: bytes go straight to where they are needed, with one
//! request per node.
//!
//! - Parts of an extent that lie in this node's share are copied.
//! - If the share of a node is lost and the source may take its place, the level has lost the list.

use std::ptr::NonNull;

use forebay_plan::{RequestTraits, SharePart};
use forebay_types::Extent;

use crate::error::Error;
use crate::pipeline::fetch::far::{FarLevel, Fetched, Get};
use crate::pipeline::gather::sample::Step;
use crate::shm::counters::{Level, LevelCounts};
use crate::shm::stall::GatherWait;
use crate::store::{Failed, Store, Want};

/// Memory for a part of an extent.
struct Place {
    /// First byte \[bytes from the start of the extent\].
    start: u64,
    length: u64,
    into: NonNull<u8>,
}

/// The shares of other nodes as a level.
pub(super) struct Peers<'s, 'a> {
    pub(super) step: &'s Step<'a>,
    pub(super) store: &'s Store,
}

impl FarLevel for Peers<'_, '_> {
    fn locate(&self, extent: Extent) -> Option<Vec<SharePart>> {
        self.store.parts(extent)
    }

    fn traits(&self) -> RequestTraits {
        RequestTraits::PEERS
    }

    fn fetch(&self, list: &mut [Get<'_>]) -> Result<Fetched, (usize, Error)> {
        let (step, context, store) = (self.step, self.step.shared(), self.store);
        let (mut wants, mut copied) = (Vec::new(), LevelCounts::default());
        let first = list[0].extent;
        for get in list.iter_mut() {
            let mut start = 0;
            let places = get.into.each_mut().map(|into| {
                let place = Place::new(start, into);
                start += place.length;
                place
            });
            distribute(store, &get.parts, &places, &mut wants, &mut copied);
        }
        let epoch = context.epoch_of(step.claim.step);
        let bytes = wants.iter().map(|want| want.part.length).sum();
        let wanted = wants.len() as u64;
        let stop = || step.session.is_stopped() || context.buffers.ring.is_void(step.claim);
        let fetch = || store.fetch(step.claim.step, wants, &stop);
        let Some(answer) = step.outside(GatherWait::Share { extent: first }, fetch) else {
            return Ok(Fetched::Void);
        };
        match answer {
            Ok(operations) => {
                let counts = LevelCounts { hits: wanted, bytes, operations, skipped: 0 };
                context.count_level(epoch, Level::Peers, counts);
                context.count_level(epoch, Level::Share, copied);
                for get in list {
                    get.is_filled = true;
                }
                Ok(Fetched::Answered)
            }
            Err(Failed::Stopped) => Ok(Fetched::Void),
            Err(Failed::Node(node, error)) if store.may_lose(node, &error) => {
                let counts = LevelCounts { skipped: wanted, ..LevelCounts::default() };
                context.count_level(epoch, Level::Peers, counts);
                Ok(Fetched::Lost)
            }
            Err(Failed::Node(_, error)) => Err((0, error.into())),
        }
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
