//! The planner: turns the order into plans, a little ahead of the readers.
//!
//! One thread per process. All processes of a node compute the same segments with the same block
//! sequences. Where an epoch begins and the files are in the page cache by then, they end planning:
//! from there on each rank copies its samples from a mapping ([`Session::is_alone`]).
//!
//! Each process stores a segment until its own rank has gathered the last step and the readers
//! have filled all blocks, so that a reader that moves to this process finds the remaining work.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_plan::{
    Next, Plan, PlanWindow, SEGMENTS_AHEAD, Schedule, Segment, StagingRing, may_end_planning, plan_into,
    read_ahead_end,
};
use forebay_types::{Located, SampleId, SamplePlaces};

use crate::config::{LATER_RESIDENT_PERCENT, is_resident};
use crate::error::Error;
use crate::pipeline::context::Context;
use crate::pipeline::plan::root_lookup::RootLookup;
use crate::pipeline::plan_queue::PlannedSegment;
use crate::pipeline::session::{Session, WAKEUP_INTERVAL};
use crate::shm::block_state::{block_passed, publish_position};
use crate::shm::counters::{Counter, count_since};
use crate::shm::position::{AWAY, BlockSeq, Position};

/// Runs the planner of a session until it is stopped. `host_readers` is called often: what this
/// process is to read may change.
pub(crate) fn run(session: &Session, host_readers: &dyn Fn()) {
    if let Err(error) = plan_all(session, host_readers) {
        session.fail(error);
    }
    // Roots may overwrite all of its locations.
    publish_position(&session.context.slot().taken, session.number, AWAY);
    session.context.region.planning().notify();
}

fn plan_all(session: &Session, host_readers: &dyn Fn()) -> Result<(), Error> {
    let context = &session.context;
    let region = &context.region;
    let tranche_steps = context.settings.first_segment_steps..=context.settings.segment_steps;
    let mut schedule = Schedule::new(&context.order, &context.node_ranks, session.start, tranche_steps);
    let mut staging = StagingRing::new(region.layout().staging_bytes, region.layout().blocks as u64);
    let shard_bytes = context.index.shard_bytes();
    let roots = RootLookup::new(session);
    let mut waiting: Option<Segment> = None;
    let mut ids: Vec<SampleId> = Vec::new();
    let mut spare: Vec<(Located, Plan)> = Vec::new();
    let mut undecided = may_map(context).then_some(context.epoch_of(session.start));
    let mut is_ended = false;
    loop {
        if session.is_stopped() {
            return Ok(());
        }
        session.is_alive();
        host_readers();
        forget_done(session, &mut spare);
        if is_ended {
            let is_over = || {
                session.is_alive();
                session.is_stopped()
            };
            region.planning().wait(is_over, WAKEUP_INTERVAL);
            continue;
        }
        let mut lacking = None;
        if waiting.is_none() {
            match schedule.next(|epoch| context.given.get(epoch)) {
                Next::Segment(segment) => {
                    session.plans.cover(segment.first_step);
                    waiting = Some(segment);
                }
                Next::AwaitingOrder(epoch) => {
                    session.plans.cover(epoch * context.order.steps_per_epoch());
                    lacking = Some(epoch);
                }
            }
            session.plans.lack(lacking);
            region.filled().notify();
        }
        let is_located = |segment: &Segment| roots.as_ref().is_none_or(|roots| roots.is_ready(segment));
        let ready = |segment: &Segment| is_wanted(session, segment) && is_located(segment);
        if !waiting.as_ref().is_some_and(ready) {
            region.planning().wait(
                || {
                    session.is_alive();
                    session.is_stopped()
                        || waiting.as_ref().is_some_and(ready)
                        || lacking.is_some_and(|epoch| context.given.get(epoch).is_some())
                },
                WAKEUP_INTERVAL,
            );
            continue;
        }
        let Some(segment) = waiting.take() else { continue };
        let epoch = context.epoch_of(segment.first_step);
        if undecided.is_some_and(|next| next <= epoch) {
            undecided = Some(epoch + 1);
            is_ended = is_mapped_from(session, epoch);
            if is_ended {
                continue;
            }
        }
        let begun = Instant::now();
        let (mut located, mut plan) = spare.pop().unwrap_or_default();
        if !roots.as_ref().is_some_and(|roots| roots.take(&segment, &mut located)) {
            ids.clear();
            ids.extend(segment.demands.iter().map(|need| need.sample));
            context.index.locate(&ids, &mut located)?;
        }
        let begun = count_since(context.slot(), Counter::LocateNs, begun);
        plan_into(&segment, &located, &shard_bytes, &context.settings.limits, &mut staging, &mut plan);
        session.plans.push(PlannedSegment::new(segment, located, plan, context.options.local_rank));
        count_since(context.slot(), Counter::PlanNs, begun);
        context.notify_all();
    }
}

/// Whether planning may end because the files are in the page cache: by facts that all ranks of the
/// node share, not by what this one could map.
fn may_map(context: &Context) -> bool {
    let has_own_levels = context.tier_plan.is_some() || context.resident_plan.is_some();
    may_end_planning(&context.settings, context.order.kind(), context.index.is_coded(), has_own_levels)
}

/// Whether this epoch and all later ones are copied from the page cache; then gather threads are
/// told.
fn is_mapped_from(session: &Session, epoch: u64) -> bool {
    let context = &session.context;
    let index = &context.index;
    let is_there = |mappings| is_resident(mappings, index, LATER_RESIDENT_PERCENT);
    let is_resident = || context.mappings.as_deref().is_some_and(is_there);
    if !context.region.mapped_epochs().decide(session.number, epoch, is_resident) {
        return false;
    }
    let loader = &context.options.name;
    tracing::info!(loader, epoch, "the files are in the page cache: nothing is planned from here on");
    session.plans.end_at(epoch * context.order.steps_per_epoch());
    context.notify_all();
    true
}

/// Whether a segment should be planned now: gather threads need it, or the readers are about to run
/// out.
fn is_wanted(session: &Session, segment: &Segment) -> bool {
    let claim = session.context.buffers.ring.next_claim();
    let steps = session.context.order.steps_per_epoch();
    let window = PlanWindow {
        wanted_end: wanted_end(session),
        read_ahead_end: read_ahead_end(slowest(session), steps),
        claim,
    };
    window.wants(segment.first_step, || session.plans.ahead_of(begun(session), claim))
}

/// The first block that no reader has begun.
fn begun(session: &Session) -> u64 {
    session
        .context
        .region
        .readers()
        .iter()
        .map(|reader| Position::from_word(reader.begun.load(Ordering::Acquire)))
        .filter(|position| position.session() == session.number)
        .map(Position::step)
        .max()
        .unwrap_or(0)
}

/// First step that no rank of the node needs, as far as known: it is neither located nor read.
pub(crate) fn wanted_end(session: &Session) -> u64 {
    let reached =
        session.context.active().map(|(_, slot)| Position::from_word(slot.reached.load(Ordering::Acquire)));
    let reached = reached.filter(|position| position.session() == session.number).map(Position::step).max();
    session.context.wanted_end(reached.unwrap_or(0))
}

/// The step of the slowest rank; `None` while all are detached.
fn slowest(session: &Session) -> Option<u64> {
    let positions =
        session.context.active().map(|(_, slot)| Position::from_word(slot.position.load(Ordering::Acquire)));
    positions
        .filter(|position| position.session() == session.number && position.step() < AWAY)
        .map(Position::step)
        .min()
}

/// Drops segments from the front that no thread of this process needs, and reuses their memory.
fn forget_done(session: &Session, spare: &mut Vec<(Located, Plan)>) {
    let region = &session.context.region;
    let position = Position::from_word(session.context.slot().position.load(Ordering::Acquire));
    let gathered = if position.session() == session.number { position.step() } else { AWAY };
    let filled = |sequence: u64| {
        block_passed(region.block_word(BlockSeq(sequence)), session.number, BlockSeq(sequence))
    };
    let forgotten = session.plans.forget_while(|planned| {
        // Each reader begins its blocks in order, so the last ones decide; the others are checked
        // for safety.
        planned.segment.last_step < gathered
            && planned.plan.blocks.iter().rev().all(|block| filled(block.sequence))
    });
    // A gather thread or reader may still hold one; the last of them frees its memory.
    let free = forgotten.into_iter().filter_map(|planned| Arc::try_unwrap(planned).ok());
    spare.extend(free.map(|planned| (planned.located, planned.plan)));
    spare.truncate(SEGMENTS_AHEAD);
}
