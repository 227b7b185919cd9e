//! Gathering: copying (and decoding) the samples of a step into a batch buffer.
//!
//! A gather thread claims the next step with a free buffer, waits until the step is planned, and
//! copies its samples in slot order (`sample.rs` decides where their bytes come from). If staging
//! bytes of a step may be overwritten (the rank was detached), or if each rank reads its samples
//! itself, the thread locates the samples again and uses no staging memory. This path is always
//! correct.
//!
//! - `sample` and `sample_parts` deliver one sample; `in_place` has bytes that are staged in no
//!   block.
//! - `replacement` finds the sample that replaces a bad one.
//! - `in_caller` gathers in the thread of the script.

pub(crate) mod in_caller;
pub(crate) mod in_place;
pub(crate) mod replacement;
pub(crate) mod sample;
pub(crate) mod sample_parts;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_io::guard;
use forebay_plan::{Demand, PermutationCache, Plan, Segment};
use forebay_types::{Located, Rank, SampleId};

use crate::base::fallback::Wanted;
use crate::batch::buffer_pool::Claim;
use crate::batch::layout::{Batch, BatchLayout};
use crate::error::Error;
use crate::pipeline::context::Context;
use crate::pipeline::gather::replacement::{Replacements, is_of_sample};
use crate::pipeline::gather::sample::{Pick, Scratch, Step};
use crate::pipeline::plan::rank_locator;
use crate::pipeline::plan_queue::PlannedSegment;
use crate::pipeline::session::{Session, WAKEUP_INTERVAL};
use crate::shm::block_state::{first_safe_step, publish_position};
use crate::shm::counters::{CollectedCounts, Counter, Level, count, count_since};
use crate::shm::stall::GatherWait;

/// Runs a gather thread of a session until the session is stopped.
pub(crate) fn run(session: &Session) {
    let context = &session.context;
    let ring = &context.buffers.ring;
    let mut scratch = Scratch::default();
    while !session.is_stopped() {
        let Some(claim) = ring.claim(session.number, WAKEUP_INTERVAL) else { continue };
        if !context.settings.mode.is_alone() && !session.plans.covers(claim.step) {
            context.region.planning().notify();
        }
        serve(session, &claim, None, &mut scratch);
    }
}

/// Fills a claimed step and ends the claim. `found`: where its samples are, if that is known.
pub(crate) fn serve(session: &Session, claim: &Claim, found: Option<PlannedSegment>, scratch: &mut Scratch) {
    let ring = &session.context.buffers.ring;
    let mut buffer = claim.buffer;
    // The consumer would wait for ever for a claim that is never finished.
    let filled = catch_unwind(AssertUnwindSafe(|| fill(session, claim, found, &mut buffer, scratch)));
    let filled = filled.unwrap_or_else(|_| Err(Error::Panicked));
    if let Some(unused) = buffer {
        ring.give_back(unused);
    }
    match filled {
        Ok(Some(batch)) => finish(session, claim, Ok(batch)),
        Err(error) => finish(session, claim, Err(error)),
        Ok(None) => {
            ring.abandon(claim);
            session.claim_was_void();
        }
    }
}

fn finish(session: &Session, claim: &Claim, item: Result<Batch, Error>) {
    let finished =
        session.context.buffers.ring.finish(claim, item, |gathered| session.note_gathered(gathered));
    if finished.is_ok() {
        session.context.region.gathered().notify();
    } else {
        // A void batch is dropped without the pool's lock.
        drop(finished);
        session.claim_was_void();
    }
}

/// Fills the batch of a claimed step; `None` if the claim became void. Takes `buffer` if it uses
/// it.
fn fill(
    session: &Session,
    claim: &Claim,
    found: Option<PlannedSegment>,
    buffer: &mut Option<usize>,
    scratch: &mut Scratch,
) -> Result<Option<Batch>, Error> {
    let context = &session.context;
    let begun = Instant::now();
    let step = Step::new(session, claim);
    let Some(segments) = segments_of(&step, found, scratch)? else { return Ok(None) };
    let mut stand_ins: Vec<StandIn<'_>> = Vec::new();
    let batch = loop {
        guard::keep();
        let faults = guard::faults();
        let gathered = gather(&step, &segments, &stand_ins, buffer, scratch);
        let is_cut = step.found_cut_file();
        let is_mapped = context.mappings.is_some() || context.tiers.is_some();
        if is_cut || is_mapped && guard::faults() != faults {
            // Lost pages read as zeros. From now on read their file, which raises the error.
            drop(gathered);
            step.found.replace(CollectedCounts::default());
            if !context.tiers.as_ref().is_some_and(|tiers| tiers.notice_lost()) {
                context.falls_back(Wanted::Mapping, "a file lost pages while it was mapped");
            }
            continue;
        }
        match gathered {
            Ok(Some(batch)) => break batch,
            Ok(None) => return Ok(None),
            Err((place, error)) if context.options.skips_bad_samples && is_of_sample(&error) => {
                replace(session, claim.step, place, error, &segments, &mut stand_ins)?;
            }
            Err((_, error)) => return Err(error),
        }
    };
    count(context.slot(), Counter::ReplacedSamples, stand_ins.len() as u64);
    let idle = step.idle.get();
    count(context.slot(), Counter::RequestedBytes, scratch.requested_bytes());
    for (level, counts) in step.found.borrow().levels() {
        context.count_level(context.epoch_of(claim.step), level, counts);
        if level == Level::PageCache {
            count(context.slot(), Counter::MmapBytes, counts.bytes);
        }
    }
    count(context.slot(), Counter::GatherIdleNs, idle.as_nanos() as u64);
    count(context.slot(), Counter::GatherNs, begun.elapsed().saturating_sub(idle).as_nanos() as u64);
    Ok(Some(batch))
}

/// Waits until the samples of a step are planned, unless the rank reads them itself, and returns
/// where they are; `None` if the claim became void.
fn segments_of(
    step: &Step<'_>,
    found: Option<PlannedSegment>,
    scratch: &mut Scratch,
) -> Result<Option<Vec<Arc<PlannedSegment>>>, Error> {
    if let Some(found) = found {
        return Ok(Some(vec![Arc::new(found)]));
    }
    let (session, context, claim) = (step.session, &step.session.context, step.claim);
    let known = || {
        // In this order: what covers the step says whether it is planned.
        (context.settings.mode.is_alone() || session.plans.covers(claim.step))
            && (!session.is_alone(claim.step) || context.knows_order(context.epoch_of(claim.step)))
    };
    if !step.wait_until(GatherWait::Plan, known) {
        return Ok(None);
    }
    let kept = !session.is_alone(claim.step) && claim.step >= session.first_safe.load(Ordering::Acquire);
    Ok(Some(match kept.then(|| session.plans.at(claim.step)).flatten() {
        Some(mut segments) => {
            segments.extend(resident(session, claim.step)?.map(Arc::new));
            segments
        }
        None => vec![Arc::new(plain(session, claim.step, &mut scratch.kept)?)],
    }))
}

/// A replacement of a bad sample.
struct StandIn<'a> {
    /// Index of the bad one among the samples of the step.
    place: usize,
    planned: PlannedSegment,
    others: Replacements<'a>,
}

/// The samples of a step, in slot order.
fn picks_of<'a>(
    step: u64,
    segments: &'a [Arc<PlannedSegment>],
    stand_ins: &'a [StandIn<'_>],
) -> Vec<(u32, Pick<'a>)> {
    let mut picks: Vec<(u32, Pick<'_>)> = Vec::new();
    for planned in segments {
        picks.extend(planned.needs_at(step).iter().map(|need| {
            let need = *need as usize;
            (planned.segment.demands[need].slot, Pick { planned, need })
        }));
    }
    if segments.len() > 1 {
        picks.sort_unstable_by_key(|(slot, _)| *slot);
    }
    for one in stand_ins {
        picks[one.place].1 = Pick { planned: &one.planned, need: 0 };
    }
    picks
}

/// Fills a batch; `None` if the claim became void. A failure carries the index of its sample.
fn gather<'a>(
    step: &Step<'a>,
    segments: &'a [Arc<PlannedSegment>],
    stand_ins: &'a [StandIn<'_>],
    buffer: &mut Option<usize>,
    scratch: &mut Scratch,
) -> Result<Option<Batch>, (usize, Error)> {
    let context = &step.session.context;
    let picks = picks_of(step.claim.step, segments, stand_ins);
    let layout = layout(context, &picks);
    let mut batch = Batch::new(&context.buffers, buffer.take(), layout, picks.len());
    scratch.begin(batch.layout());
    let is_full = step.samples(&mut batch, &picks, scratch)?;
    step.done();
    if batch.is_private() {
        count(context.slot(), Counter::HeapBatches, 1);
    }
    Ok(is_full.then_some(batch))
}

/// Puts the next candidate in place of a bad sample, or of an earlier candidate that is also bad.
fn replace<'a>(
    session: &'a Session,
    step: u64,
    place: usize,
    error: Error,
    segments: &[Arc<PlannedSegment>],
    stand_ins: &mut Vec<StandIn<'a>>,
) -> Result<(), Error> {
    let context = &session.context;
    let known = stand_ins.iter_mut().find(|one| one.place == place);
    let (slot, pick) = picks_of(step, segments, &[])[place];
    let bad = known.as_ref().map_or(pick.sample(), |one| one.planned.segment.demands[0].sample);
    context.bad_samples.add(bad, &error);
    let find = |others: &mut Replacements<'_>| match others
        .find(|sample| *sample != bad && !context.bad_samples.knows(*sample))
    {
        Some(sample) => located_alone(session, step, &[sample]),
        None => Err(others.none_left()),
    };
    if let Some(one) = known {
        one.planned = find(&mut one.others)?;
    } else {
        let mut others = Replacements::new(context, step, slot as usize, error);
        let planned = find(&mut others)?;
        stand_ins.push(StandIn { place, planned, others });
    }
    Ok(())
}

/// The usual layout, or a larger one for a batch of ragged fields that will not fit it: one whose
/// records are longer than the room for their values. Decoded values may be longer still, which
/// shows when they are there (`Batch::grow`).
fn layout(context: &Context, picks: &[(u32, Pick<'_>)]) -> Arc<BatchLayout> {
    if !context.layout.is_ragged() {
        return Arc::clone(&context.layout);
    }
    let bytes: u64 = picks.iter().map(|(_, pick)| pick.record_bytes()).sum();
    if bytes <= context.settings.ragged_bytes {
        return Arc::clone(&context.layout);
    }
    BatchLayout::new(context.decoding.fields(), context.order.largest_batch(), bytes)
        .map_or_else(|| Arc::clone(&context.layout), Arc::new)
}

/// Finds the samples of one step of this rank, to be copied or read in place.
pub(crate) fn plain(
    session: &Session,
    step: u64,
    kept: &mut PermutationCache,
) -> Result<PlannedSegment, Error> {
    let context = &session.context;
    let (epoch, within) = (step / context.order.steps_per_epoch(), step % context.order.steps_per_epoch());
    let given = context.given.get(epoch);
    let mut ids: Vec<SampleId> = Vec::new();
    let rank = Rank(context.options.rank);
    context.order.batch_keeping(epoch, within, rank, given.as_deref(), kept, &mut ids);
    match rank_locator::locate(session, step)? {
        Some(located) => Ok(planned_alone(context, step, &ids, located)),
        None => located_alone(session, step, &ids),
    }
}

/// Finds the samples of one step of this rank that are resident on its node, which no plan has;
/// none but in the order `opportunistic`.
fn resident(session: &Session, step: u64) -> Result<Option<PlannedSegment>, Error> {
    let context = &session.context;
    if context.resident_plan.is_none() {
        return Ok(None);
    }
    let (epoch, within) = (context.epoch_of(step), step % context.order.steps_per_epoch());
    let mut found = Vec::new();
    context.order.resident_batch(epoch, within, Rank(context.options.rank), &mut found);
    let ids: Vec<SampleId> = found.iter().map(|(_, sample)| *sample).collect();
    let mut planned = located_alone(session, step, &ids)?;
    for (demand, (slot, _)) in planned.segment.demands.iter_mut().zip(&found) {
        demand.slot = *slot;
    }
    Ok(Some(planned))
}

/// Asks the index where these samples of this rank lie, to be copied or read in place.
fn located_alone(session: &Session, step: u64, ids: &[SampleId]) -> Result<PlannedSegment, Error> {
    let context = &session.context;
    let mut located = Located::default();
    let begun = Instant::now();
    context.index.locate(ids, &mut located)?;
    count_since(context.slot(), Counter::LocateNs, begun);
    Ok(planned_alone(context, step, ids, located))
}

fn planned_alone(context: &Context, step: u64, ids: &[SampleId], located: Located) -> PlannedSegment {
    let need = |(slot, sample): (usize, &SampleId)| Demand {
        sample: *sample,
        local_rank: context.options.local_rank,
        step: 0,
        slot: slot as u32,
    };
    let demands = ids.iter().enumerate().map(need).collect();
    let segment = Segment { first_step: step, last_step: step, demands };
    let plan = Plan::in_place(&located);
    PlannedSegment::new(segment, located, plan, context.options.local_rank)
}

/// Publishes where a detached rank continues, and reads which staging bytes are safe from there
/// (`block_state.rs`).
pub(crate) fn reattach(session: &Session, step: u64) {
    let context = &session.context;
    publish_position(&context.slot().position, session.number, step);
    let overwritten = context.region.readers().iter().map(|reader| &reader.overwritten);
    let safe = overwritten.map(|word| first_safe_step(word, session.number)).max().unwrap_or(0);
    session.first_safe.store(safe, Ordering::Release);
}
