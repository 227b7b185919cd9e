//! Gathering: copying (and decoding) the samples of a step into a batch buffer.
//!
//! A gather thread claims the next step with a free buffer, waits until the step is planned, and goes through its
//! samples in slot order (`sample.rs` says where their bytes come from). Steps whose landing bytes may be gone (the
//! rank was away), and all steps where every rank gets its samples alone, are found again without any landing memory:
//! that is the plain one-process path, and it is always right.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use forebay_io::{Mappings, guard};
use forebay_plan::{Demand, Plan, Segment};
use forebay_types::{Located, Rank, SampleId};

use crate::batch::{Batch, BatchLayout};
use crate::blame::Waiting;
use crate::error::Error;
use crate::pass::{PATIENCE, Pass};
use crate::plans::Planned;
use crate::protocol::{first_safe_step, publish_position};
use crate::ring::Claim;
use crate::sample::{Pick, Scratch, Step};
use crate::shared::Shared;
use crate::skip::{StandIns, is_of_sample};
use crate::stats::{Counter, count, count_since};
use crate::threads::in_storage;

/// Runs a gather thread of a pass until the pass is stopped.
pub(crate) fn run(pass: &Pass) {
    let shared = &pass.shared;
    let ring = &shared.buffers.ring;
    let mut scratch = Scratch::default();
    while !pass.is_stopped() {
        let Some(claim) = ring.claim(pass.number, PATIENCE) else { continue };
        if !shared.settings.mode.is_alone() && !pass.plans.covers(claim.step) {
            shared.region.planning().notify();
        }
        let mut buffer = claim.buffer;
        // A claim that is never answered would be waited for.
        let filled = catch_unwind(AssertUnwindSafe(|| fill(pass, &claim, &mut buffer, &mut scratch)));
        let filled = filled.unwrap_or_else(|_| Err(Error::Panicked));
        if let Some(unused) = buffer {
            ring.give_back(unused);
        }
        match filled {
            Ok(Some(batch)) => finish(pass, &claim, Ok(batch)),
            Err(error) => finish(pass, &claim, Err(error)),
            Ok(None) => {
                ring.abandon(&claim);
                pass.claim_was_void();
            }
        }
    }
}

fn finish(pass: &Pass, claim: &Claim, item: Result<Batch, Error>) {
    let finished = pass.shared.buffers.ring.finish(claim, item, |gathered| pass.note_gathered(gathered));
    if finished.is_ok() {
        pass.shared.region.gathered().notify();
    } else {
        // A void batch is dropped without the ring's lock.
        drop(finished);
        pass.claim_was_void();
    }
}

/// Fills the batch of a claimed step; `None` when the claim became void. Takes `buffer` if it comes to use it.
fn fill(
    pass: &Pass,
    claim: &Claim,
    buffer: &mut Option<usize>,
    scratch: &mut Scratch,
) -> Result<Option<Batch>, Error> {
    let shared = &pass.shared;
    let begun = Instant::now();
    let step = Step::new(pass, claim);
    let alone = shared.settings.mode.is_alone();
    let known = || {
        if alone {
            shared.knows_order(claim.step / shared.order.steps_per_epoch())
        } else {
            pass.plans.covers(claim.step)
        }
    };
    if !step.wait_until(Waiting::Plan, known) {
        return Ok(None);
    }
    let kept = !alone && claim.step >= pass.first_safe.load(Ordering::Acquire);
    let tranches = match kept.then(|| pass.plans.at(claim.step)).flatten() {
        Some(tranches) => tranches,
        None => vec![Arc::new(plain(pass, claim.step)?)],
    };
    let mut stand_ins: Vec<StandIn<'_>> = Vec::new();
    let batch = loop {
        guard::keep();
        let faults = guard::faults();
        let gathered = gather(&step, &tranches, &stand_ins, buffer, scratch);
        if shared.mappings.is_some() && guard::faults() != faults {
            // Lost pages read as zeros. From now on their file is read, and what is wrong with it met there.
            drop(gathered);
            step.mmap_bytes.set(0);
            shared.falls_back("a file lost pages while it was mapped; it is read with pread".into());
            continue;
        }
        match gathered {
            Ok(Some(batch)) => break batch,
            Ok(None) => return Ok(None),
            Err((place, error)) if shared.options.skips_bad_samples && is_of_sample(&error) => {
                replace(pass, claim.step, place, error, &tranches, &mut stand_ins)?;
            }
            Err((_, error)) => return Err(error),
        }
    };
    count(shared.slot(), Counter::ReplacedSamples, stand_ins.len() as u64);
    let idle = step.idle.get();
    count(shared.slot(), Counter::RequestedBytes, scratch.requested_bytes());
    count(shared.slot(), Counter::MmapBytes, step.mmap_bytes.get());
    count(shared.slot(), Counter::GatherIdleNs, idle.as_nanos() as u64);
    count(shared.slot(), Counter::GatherNs, begun.elapsed().saturating_sub(idle).as_nanos() as u64);
    Ok(Some(batch))
}

/// A sample that stands in for a bad one.
struct StandIn<'a> {
    /// The bad one's place among the samples of the step.
    place: usize,
    planned: Planned,
    others: StandIns<'a>,
}

/// The samples of a step, in slot order.
fn picks_of<'a>(
    step: u64,
    tranches: &'a [Arc<Planned>],
    stand_ins: &'a [StandIn<'_>],
) -> Vec<(u32, Pick<'a>)> {
    let mut picks: Vec<(u32, Pick<'_>)> = Vec::new();
    for planned in tranches {
        picks.extend(planned.needs_at(step).iter().map(|need| {
            let need = *need as usize;
            (planned.tranche.demands[need].slot, Pick { planned, need })
        }));
    }
    if tranches.len() > 1 {
        picks.sort_unstable_by_key(|(slot, _)| *slot);
    }
    for one in stand_ins {
        picks[one.place].1 = Pick { planned: &one.planned, need: 0 };
    }
    picks
}

/// Fills a batch; `None` when the claim became void. A failure comes with the place of the sample that it is about.
fn gather<'a>(
    step: &Step<'a>,
    tranches: &'a [Arc<Planned>],
    stand_ins: &'a [StandIn<'_>],
    buffer: &mut Option<usize>,
    scratch: &mut Scratch,
) -> Result<Option<Batch>, (usize, Error)> {
    let shared = &step.pass.shared;
    let picks = picks_of(step.claim.step, tranches, stand_ins);
    let layout = layout(shared, &picks);
    let mut batch = Batch::new(&shared.buffers, buffer.take(), layout, picks.len());
    scratch.begin(batch.layout());
    let is_full = step.samples(&mut batch, &picks, scratch)?;
    step.done();
    if batch.is_private() {
        count(shared.slot(), Counter::HeapBatches, 1);
    }
    Ok(is_full.then_some(batch))
}

/// Puts the next sample of the order in place of a bad one, or of one that stood in for it and is bad, too.
fn replace<'a>(
    pass: &'a Pass,
    step: u64,
    place: usize,
    error: Error,
    tranches: &[Arc<Planned>],
    stand_ins: &mut Vec<StandIn<'a>>,
) -> Result<(), Error> {
    let shared = &pass.shared;
    let known = stand_ins.iter_mut().find(|one| one.place == place);
    let (slot, pick) = picks_of(step, tranches, &[])[place];
    let bad = known.as_ref().map_or(pick.sample(), |one| one.planned.tranche.demands[0].sample);
    shared.bad_samples.add(bad, &error);
    let find = |others: &mut StandIns<'_>| match others
        .find(|sample| *sample != bad && !shared.bad_samples.knows(*sample))
    {
        Some(sample) => located_alone(pass, step, &[sample]),
        None => Err(others.none_left()),
    };
    if let Some(one) = known {
        one.planned = find(&mut one.others)?;
    } else {
        let mut others = StandIns::new(shared, step, slot as usize, error);
        let planned = find(&mut others)?;
        stand_ins.push(StandIn { place, planned, others });
    }
    Ok(())
}

/// The usual layout, or a larger one for a batch of ragged fields that will not fit it: one whose records are longer than
/// the room for their values. Decoded values may be longer still, which shows when they are there (`Batch::grow`).
fn layout(shared: &Shared, picks: &[(u32, Pick<'_>)]) -> Arc<BatchLayout> {
    if !shared.layout.is_ragged() {
        return Arc::clone(&shared.layout);
    }
    let bytes: u64 = picks.iter().map(|(_, pick)| pick.record_bytes()).sum();
    if bytes <= shared.settings.ragged_bytes {
        return Arc::clone(&shared.layout);
    }
    BatchLayout::new(shared.index.fields(), shared.options.batch_size, bytes)
        .map_or_else(|| Arc::clone(&shared.layout), Arc::new)
}

/// Finds the samples of one step of this rank, to be copied or read in place.
fn plain(pass: &Pass, step: u64) -> Result<Planned, Error> {
    let shared = &pass.shared;
    let (epoch, within) = (step / shared.order.steps_per_epoch(), step % shared.order.steps_per_epoch());
    let given = shared.given.get(epoch);
    let mut ids: Vec<SampleId> = Vec::new();
    shared.order.batch(epoch, within, Rank(shared.options.rank), given.as_deref(), &mut ids);
    let Some(mappings) = shared.mappings.as_ref().filter(|_| shared.settings.mode.walks_alone()) else {
        return located_alone(pass, step, &ids);
    };
    guard::keep();
    let faults = guard::faults();
    let walked = walked_alone(pass, mappings, step, &ids);
    // A walk through lost pages found zeros; reading the samples tells what became of them.
    if guard::faults() != 0 && (guard::faults() != faults || walked.is_err()) && mappings.is_any_lost() {
        return located_alone(pass, step, &ids);
    }
    walked
}

/// Finds these samples of this rank by its own cursor.
fn walked_alone(pass: &Pass, mappings: &Mappings, step: u64, ids: &[SampleId]) -> Result<Planned, Error> {
    let shared = &pass.shared;
    let mut located = Located::default();
    located.clear(1);
    let mut cursor = pass.cursor.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = |shard, offset, length| mappings.bytes(shard, offset, length);
    let (begun, mut io) = (Instant::now(), Duration::ZERO);
    for id in ids {
        let dataset = shared.source.dataset();
        let place = in_storage(|| dataset.find_by_cursor(&mut cursor, &shared.index, *id, &bytes))?;
        place.push(&mut located);
        io += in_storage(|| shared.touch(mappings, place.extent));
    }
    let seek = begun.elapsed().saturating_sub(io);
    count(shared.slot(), Counter::LocateNs, seek.as_nanos() as u64);
    Ok(planned_alone(shared, step, ids, located))
}

/// Asks the index where these samples of this rank lie, to be copied or read in place.
fn located_alone(pass: &Pass, step: u64, ids: &[SampleId]) -> Result<Planned, Error> {
    let shared = &pass.shared;
    let mut located = Located::default();
    let begun = Instant::now();
    shared.index.locate(ids, &mut located)?;
    count_since(shared.slot(), Counter::LocateNs, begun);
    Ok(planned_alone(shared, step, ids, located))
}

fn planned_alone(shared: &Shared, step: u64, ids: &[SampleId], located: Located) -> Planned {
    let need = |(slot, sample): (usize, &SampleId)| Demand {
        sample: *sample,
        local_rank: shared.options.local_rank,
        step: 0,
        slot: slot as u32,
    };
    let demands = ids.iter().enumerate().map(need).collect();
    let tranche = Segment { first_step: step, last_step: step, demands };
    let plan = Plan::in_place(&located);
    Planned::new(tranche, located, plan, shared.options.local_rank)
}

/// Publishes where a rank that was away goes on, and reads what it may rely on from there (protocol.rs).
pub(crate) fn come_back(pass: &Pass, step: u64) {
    let shared = &pass.shared;
    publish_position(&shared.slot().position, pass.number, step);
    let overwritten = shared.region.readers().iter().map(|reader| &reader.overwritten);
    let safe = overwritten.map(|word| first_safe_step(word, pass.number)).max().unwrap_or(0);
    pass.first_safe.store(safe, Ordering::Release);
}
