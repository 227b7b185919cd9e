//! A root of a node: walks through the container, for all ranks of the node.
//!
//! Root k of R lives in the process of reader k and finds the samples of the steps s with s mod R = k, in order, as far
//! ahead as the ring of finds lets it. It goes from record to record through its mapping and passes over all records in
//! between, those of other nodes and other roots included, as LMDBIO's local root does; nothing is ever announced to the
//! storage, so a page of the tree that is missing is a page fault of this thread.
//!
//! When its process says goodbye, the next one goes on at the step that was published last. When the walk meets an error,
//! the root says so in `explain()` and marks what it should have found as unknown.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_format::SampleCursor;
use forebay_plan::Kind;
use forebay_types::{Rank, SampleId};

use super::Find;
use crate::access;
use crate::error::Error;
use crate::pass::{PATIENCE, Pass};
use crate::planner::wanted_end;
use crate::position::Position;
use crate::protocol::{is_behind, publish_position};
use crate::stats::{Counter, count_since};

/// Runs root `number` of a pass until the pass is stopped.
pub(crate) fn run(pass: &Pass, number: usize) {
    access::widen_affinity();
    let shared = &pass.shared;
    let finds = shared.region.finds();
    let roots = shared.region.layout().readers as u64;
    let found = &shared.region.readers()[number].found;
    let mut step = match Position::from_word(found.load(Ordering::Acquire)) {
        reached if reached.pass() == pass.number => reached.step(),
        _ => pass.start + (number as u64 + roots - pass.start % roots) % roots,
    };
    publish_position(found, pass.number, step);
    let mut walk = Walk::new(pass);
    let mut lost = false;
    loop {
        let is_wanted = || {
            let has_room = finds.overwrites(step, pass.start).is_none_or(|last| {
                shared.active().all(|(_, slot)| is_behind(&slot.taken, pass.number, last))
            });
            has_room && step < wanted_end(pass)
        };
        while !is_wanted() && !pass.is_stopped() {
            shared.region.planning().wait(|| pass.is_stopped() || is_wanted(), PATIENCE);
        }
        if pass.is_stopped() {
            return;
        }
        let begun = Instant::now();
        if !lost && let Err(error) = walk.step(step) {
            let reason =
                format!("the walk through the container failed, so places come from the index: {error}");
            *shared.fallback.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
            lost = true;
        }
        if lost {
            (0..shared.region.layout().step_needs).for_each(|need| finds.put(step, need, None));
        }
        count_since(shared.slot(), Counter::SeekNs, begun);
        step += roots;
        publish_position(found, pass.number, step);
        shared.region.planning().ring();
    }
}

/// Where a root stands in the container.
struct Walk<'a> {
    pass: &'a Pass,
    /// One cursor for all ranks where they go through the file together, else one for each.
    cursors: Vec<SampleCursor>,
    ids: Vec<SampleId>,
}

impl<'a> Walk<'a> {
    fn new(pass: &'a Pass) -> Self {
        let shared = &pass.shared;
        let apart = shared.order.kind() == Kind::Contiguous;
        let cursors = if apart { shared.node_ranks.len() } else { 1 };
        Self { pass, cursors: (0..cursors).map(|_| SampleCursor::default()).collect(), ids: Vec::new() }
    }

    /// Finds the samples that the ranks of the node need at an absolute step.
    fn step(&mut self, step: u64) -> Result<(), Error> {
        let shared = &self.pass.shared;
        let Some(mappings) = &shared.mappings else {
            return Err(Error::Node("the data set cannot be mapped".into(), None));
        };
        let bytes = |shard, offset, length| mappings.bytes(shard, offset, length);
        let finds = shared.region.finds();
        let per_epoch = shared.order.steps_per_epoch();
        for (local, rank) in shared.node_ranks.iter().enumerate() {
            self.ids.clear();
            shared.order.batch(step / per_epoch, step % per_epoch, Rank(rank.0), None, &mut self.ids);
            let cursor = if self.cursors.len() > 1 { local } else { 0 };
            let cursor = &mut self.cursors[cursor];
            for (slot, id) in self.ids.iter().enumerate() {
                let place = shared.source.dataset().find_by_cursor(cursor, &shared.index, *id, &bytes)?;
                let need = local as u64 * shared.options.batch_size + slot as u64;
                finds.put(step, need, Some(Find::from(place)));
            }
        }
        Ok(())
    }
}
