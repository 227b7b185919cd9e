//! The planner: turns the order into plans, a little ahead of the readers.
//!
//! One thread per process. All processes of a node compute the same tranches with the same block sequences; each keeps
//! a tranche until its own rank has gathered its last step and all its blocks are filled (by whomever), so that a
//! reader that moves to this process finds what is left to do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_plan::{Next, Plan, Schedule, Segment, StagingRing, plan_into};
use forebay_types::{Located, SampleId};

use crate::error::Error;
use crate::locate;
use crate::pass::{PATIENCE, Pass};
use crate::plans::Planned;
use crate::position::{AWAY, BlockSeq, Position};
use crate::protocol::{block_passed, publish_position};
use crate::stats::{Counter, count_since};

/// Tranches planned ahead of the readers: one they can begin at once, one behind it.
const AHEAD: usize = 2;
/// Runs the planner of a pass until it is stopped. `host_readers` is called often: what this process is to read may change.
pub(crate) fn run(pass: &Pass, host_readers: &dyn Fn()) {
    if let Err(error) = plan_all(pass, host_readers) {
        pass.fail(error);
    }
    // Roots may write over all that they found for it.
    publish_position(&pass.shared.slot().taken, pass.number, AWAY);
    pass.shared.region.planning().notify();
}

fn plan_all(pass: &Pass, host_readers: &dyn Fn()) -> Result<(), Error> {
    let shared = &pass.shared;
    let region = &shared.region;
    let tranche_steps = shared.settings.first_segment_steps..=shared.settings.segment_steps;
    let mut schedule = Schedule::new(&shared.order, &shared.node_ranks, pass.start, tranche_steps);
    let mut staging = StagingRing::new(region.layout().landing_bytes, region.layout().blocks as u64);
    // Where samples have files of their own, there are too many of them for a list.
    let shards = if shared.index.has_sample_files() { &[] } else { shared.index.shards() };
    let shard_bytes: Vec<u64> = shards.iter().map(|shard| shard.bytes).collect();
    let mut waiting: Option<Segment> = None;
    let mut ids: Vec<SampleId> = Vec::new();
    let mut spare: Vec<(Located, Plan)> = Vec::new();
    loop {
        if pass.is_stopped() {
            return Ok(());
        }
        pass.is_alive();
        host_readers();
        forget_done(pass, &mut spare);
        let mut lacking = None;
        if waiting.is_none() {
            match schedule.next(|epoch| shared.given.get(epoch)) {
                Next::Segment(tranche) => {
                    pass.plans.cover(tranche.first_step);
                    waiting = Some(tranche);
                }
                Next::AwaitingOrder(epoch) => {
                    pass.plans.cover(epoch * shared.order.steps_per_epoch());
                    lacking = Some(epoch);
                }
            }
            pass.plans.lack(lacking);
            region.filled().notify();
        }
        let ready = |tranche: &Segment| is_wanted(pass, tranche) && locate::is_found(pass, tranche);
        if !waiting.as_ref().is_some_and(ready) {
            region.planning().wait(
                || {
                    pass.is_alive();
                    pass.is_stopped()
                        || waiting.as_ref().is_some_and(ready)
                        || lacking.is_some_and(|epoch| shared.given.get(epoch).is_some())
                },
                PATIENCE,
            );
            continue;
        }
        let Some(tranche) = waiting.take() else { continue };
        let begun = Instant::now();
        let (mut located, mut plan) = spare.pop().unwrap_or_default();
        locate::locate(pass, &tranche, &mut ids, &mut located)?;
        let begun = count_since(shared.slot(), Counter::LocateNs, begun);
        plan_into(&tranche, &located, &shard_bytes, &shared.settings.limits, &mut staging, &mut plan);
        pass.plans.push(Planned::new(tranche, located, plan, shared.options.local_rank));
        count_since(shared.slot(), Counter::PlanNs, begun);
        shared.ring_all();
    }
}

/// Whether a tranche should be planned now: the gatherers need it, or the readers are about to run out.
fn is_wanted(pass: &Pass, tranche: &Segment) -> bool {
    if tranche.first_step >= wanted_end(pass) {
        return false;
    }
    let claim = pass.shared.buffers.ring.next_claim();
    if claim.is_some_and(|step| step >= tranche.first_step) {
        return true;
    }
    if tranche.first_step >= read_ahead_end(pass) {
        return false;
    }
    let begun = pass
        .shared
        .region
        .readers()
        .iter()
        .map(|reader| Position::from_word(reader.begun.load(Ordering::Acquire)))
        .filter(|position| position.pass() == pass.number)
        .map(Position::step)
        .max()
        .unwrap_or(0);
    pass.plans.ahead_of(begun, claim) < AHEAD
}

/// First step that no rank of the node will ask for, as far as that was said: none of it is located or read.
pub(crate) fn wanted_end(pass: &Pass) -> u64 {
    let reached =
        pass.shared.active().map(|(_, slot)| Position::from_word(slot.reached.load(Ordering::Acquire)));
    let reached = reached.filter(|position| position.pass() == pass.number).map(Position::step).max();
    pass.shared.wanted_end(reached.unwrap_or(0))
}

/// First step that is not read ahead: the end of the epoch behind the one in which the last rank is.
///
/// Without this a data set that fits the landing ring many times would be read many times ahead. Nothing is read ahead
/// while all ranks are away.
fn read_ahead_end(pass: &Pass) -> u64 {
    let steps = pass.shared.order.steps_per_epoch().max(1);
    let positions =
        pass.shared.active().map(|(_, slot)| Position::from_word(slot.position.load(Ordering::Acquire)));
    let last = positions
        .filter(|position| position.pass() == pass.number && position.step() < AWAY)
        .map(Position::step)
        .min();
    last.map_or(0, |step| (step / steps + 2) * steps)
}

/// Drops tranches from the front that nobody here needs any more, and keeps their memory for later ones.
fn forget_done(pass: &Pass, spare: &mut Vec<(Located, Plan)>) {
    let region = &pass.shared.region;
    let position = Position::from_word(pass.shared.slot().position.load(Ordering::Acquire));
    let gathered = if position.pass() == pass.number { position.step() } else { AWAY };
    let filled = |sequence: u64| block_passed(region.block_word(sequence), pass.number, BlockSeq(sequence));
    let forgotten = pass.plans.forget_while(|planned| {
        // Blocks of a tranche are begun in order by each reader; the last ones decide, the others are looked at to be sure.
        planned.tranche.last_step < gathered
            && planned.plan.blocks.iter().rev().all(|block| filled(block.sequence))
    });
    // A gatherer or reader may still hold one; then its memory goes with the last of them.
    let free = forgotten.into_iter().filter_map(|planned| Arc::try_unwrap(planned).ok());
    spare.extend(free.map(|planned| (planned.located, planned.plan)));
    spare.truncate(AHEAD);
}
