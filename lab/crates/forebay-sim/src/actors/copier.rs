//! A copier: writes copies of what was read to the tiers of the node. It stands for the thread of a
//! process that has readers.

use std::time::Duration;

use forebay_model::{ByteRange, Direction, Kernel, ModelTime};
use forebay_plan::{DIRTY_PART_BYTES, rest_after};
use forebay_types::CHUNK_BYTES;

use crate::tiers::{Offer, SLOTS};
use crate::world::World;

/// A copier of a node.
pub(crate) struct Copier {
    node: usize,
    /// Until when it rests, if the program reads the tier.
    rest_until: ModelTime,
    /// Bytes that it has written since it has waited for earlier ones \[B\].
    part_bytes: u64,
    /// When all of these have arrived, and all of the part before.
    part_due: ModelTime,
    flushed: ModelTime,
    state: State,
}

enum State {
    /// It waits for a copy.
    Waiting,
    /// It copies this one to the page cache.
    Copying { offer: Offer, slot: u64 },
    /// It sends it to the device, once it has rested.
    Writing { offer: Offer, slot: u64 },
    /// It has written it, since then.
    Written { offer: Offer, begun: ModelTime },
}

impl Copier {
    pub(crate) fn new(node: usize) -> Copier {
        Copier { node, rest_until: 0, part_bytes: 0, part_due: 0, flushed: 0, state: State::Waiting }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let now = kernel.now();
        loop {
            let tiers = &mut world.tiers[self.node];
            match self.state {
                State::Waiting => {
                    let Some(offer) = tiers.offers.pop_front() else { return kernel.wait(tiers.offered) };
                    let Some(slot) = tiers.slot_for(&offer) else {
                        tiers.end_copy(&offer, false);
                        continue;
                    };
                    self.state = State::Copying { offer, slot };
                    let level = &tiers.levels[usize::from(offer.level)];
                    if level.storage.is_some() && level.reading_until > now && self.rest_until > now {
                        return kernel.resume_at(self.rest_until);
                    }
                }
                State::Copying { offer, slot } => {
                    self.state = State::Writing { offer, slot };
                    let duration = world.job.costs.copy(offer.bytes);
                    let end = kernel.work(world.nodes[self.node].processors, duration);
                    return kernel.resume_at(end);
                }
                State::Writing { offer, slot } => {
                    self.state = State::Written { offer, begun: now };
                    let Some(storage) = &mut tiers.levels[usize::from(offer.level)].storage else { continue };
                    let range = ByteRange { offset: slot * CHUNK_BYTES + offer.start, length: offer.bytes };
                    let (_, due) = storage.files.transfer(now, storage.node, SLOTS, range, Direction::Write);
                    let mut goes_on = storage.files.model().written(now, storage.node, offer.bytes, due);
                    self.part_due = self.part_due.max(due);
                    self.part_bytes += offer.bytes;
                    if self.part_bytes >= DIRTY_PART_BYTES {
                        goes_on = goes_on.max(self.flushed);
                        (self.part_bytes, self.flushed) = (0, self.part_due);
                    }
                    return kernel.resume_at(goes_on);
                }
                State::Written { offer, begun } => {
                    tiers.end_copy(&offer, true);
                    let rest = rest_after(Duration::from_nanos(now - begun));
                    self.rest_until = now + rest.as_nanos() as u64;
                    self.state = State::Waiting;
                }
            }
        }
    }
}
