//! What completes reads of a reader or a rank: the requests to tiers and source, and once all are
//! answered the copies of what tiers lack.

use std::collections::VecDeque;

use forebay_model::{Kernel, ModelTime};
use forebay_plan::{LOOK_AT_OTHERS_EVERY, WAIT_FOR_OTHERS};
use forebay_types::Extent;

use crate::costs::nanoseconds;
use crate::request::{Holder, Request};
use crate::tiers::{Buffer, PlannedCopy};
use crate::world::World;

/// Reads that are completed together.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// Reads whose requests are not known yet.
    reads: VecDeque<Extent>,
    /// Since when the first of them waits.
    since: Option<ModelTime>,
    /// All requests, in order.
    pub(crate) requests: Vec<Request>,
    copies: VecDeque<PlannedCopy>,
    /// Since when the first of them waits for memory.
    landed: Option<ModelTime>,
}

impl Transfers {
    /// Reads of files.
    pub(crate) fn new(reads: impl IntoIterator<Item = Extent>) -> Transfers {
        Transfers { reads: reads.into_iter().collect(), ..Transfers::default() }
    }

    /// Finds out the requests; returns when to go on with that, or `None` once all are known.
    /// `has_time`: no rank waits for the bytes.
    pub(crate) fn plan(
        &mut self,
        now: ModelTime,
        world: &mut World<'_>,
        node: usize,
        has_time: bool,
    ) -> Option<ModelTime> {
        while let Some(&read) = self.reads.front() {
            let Some(tiers) = world.tiers.get_mut(node) else {
                let Extent { shard, offset, length } = read;
                self.requests.push(Request { holder: Holder::Source(shard), offset, length });
                self.reads.pop_front();
                continue;
            };
            let since = *self.since.get_or_insert(now);
            let waits = now - since <= WAIT_FOR_OTHERS.as_nanos() as u64;
            if waits && tiers.plan.makes_copies && tiers.waits_for_copies(world.chunks, read) {
                return Some(now + LOOK_AT_OTHERS_EVERY.as_nanos() as u64);
            }
            match tiers.plan_read(world.chunks, read, (now, since), has_time) {
                Err(due) => return Some(due),
                Ok(planned) => {
                    self.requests.extend(planned.requests);
                    self.copies.extend(planned.copies);
                    self.reads.pop_front();
                    self.since = None;
                }
            }
        }
        None
    }

    /// Hands copies of what was read over to those that write them; returns when to go on, or
    /// `None` once that is done for all.
    pub(crate) fn land(
        &mut self,
        kernel: &mut Kernel,
        world: &mut World<'_>,
        node: usize,
        has_time: bool,
    ) -> Option<ModelTime> {
        if self.copies.is_empty() {
            return None;
        }
        if self.landed.is_none() {
            // Those that hold memory come first: the others may wait for it.
            self.copies.make_contiguous().sort_by_key(|copy| !copy.has_buffer);
        }
        let now = kernel.now();
        while let Some(&PlannedCopy { offer, has_buffer }) = self.copies.front() {
            let since = *self.landed.get_or_insert(now);
            let tiers = &mut world.tiers[node];
            if !has_buffer {
                match tiers.take_buffer(now, since, offer.bytes, has_time) {
                    Buffer::Taken => {}
                    Buffer::Later(due) => return Some(due),
                    Buffer::Refused => {
                        tiers.skipped_bytes += offer.bytes;
                        tiers.release(offer.chunk, offer.pieces);
                        self.copies.pop_front();
                        self.landed = Some(now);
                        continue;
                    }
                }
            }
            self.copies.pop_front();
            self.landed = Some(now);
            tiers.offer(offer);
            kernel.notify_after(tiers.offered, nanoseconds(world.job.costs.wake_ns));
            // The bytes are copied to the memory of the copy.
            return Some(kernel.work(world.nodes[node].processors, world.job.costs.copy(offer.bytes)));
        }
        None
    }
}
