//! Gathering: copying (and decoding) the samples of a step into a batch buffer.
//!
//! A gather thread claims the next step with a free buffer, waits until the step is planned, and goes through its
//! samples in slot order (`sample.rs` says where their bytes come from). Steps whose landing bytes may be gone (the
//! rank was away), and all steps where every rank gets its samples alone, are found again without any landing memory:
//! that is the plain one-process path, and it is always right.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use forebay_plan::{Need, Plan, Tranche};
use forebay_types::{Located, Rank, SampleId};

use crate::batch::{Batch, BatchLayout};
use crate::error::Error;
use crate::pass::{PATIENCE, Pass};
use crate::plans::Planned;
use crate::protocol::{first_safe_step, publish_position};
use crate::ring::Claim;
use crate::sample::{Pick, Scratch, Step};
use crate::shared::Shared;
use crate::stats::{Counter, count, count_since};

/// Runs a gather thread of a pass until the pass is stopped.
pub(crate) fn run(pass: &Pass) {
    let shared = &pass.shared;
    let ring = &shared.buffers.ring;
    let mut scratch = Scratch::default();
    while !pass.is_stopped() {
        let Some(claim) = ring.claim(PATIENCE) else { continue };
        if !shared.settings.alone && !pass.plans.covers(claim.step) {
            shared.region.planning().ring();
        }
        let mut buffer = claim.buffer;
        // A claim that is never answered would be waited for.
        let filled = catch_unwind(AssertUnwindSafe(|| fill(pass, &claim, &mut buffer, &mut scratch)));
        let filled = filled.unwrap_or_else(|_| Err(Error::panicked()));
        if let Some(unused) = buffer {
            ring.give_back(unused);
        }
        match filled {
            Ok(Some(batch)) => finish(pass, &claim, Ok(batch)),
            Err(error) => finish(pass, &claim, Err(error)),
            Ok(None) => ring.abandon(&claim),
        }
    }
}

fn finish(pass: &Pass, claim: &Claim, item: Result<Batch, Error>) {
    // A void batch is dropped here, without the ring's lock.
    if let Ok(gathered) = pass.shared.buffers.ring.finish(claim, item) {
        pass.publish_gathered(gathered);
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
    let alone = shared.settings.alone;
    let known = || {
        if alone {
            shared.knows_order(claim.step / shared.order.steps_per_epoch())
        } else {
            pass.plans.covers(claim.step)
        }
    };
    if !step.wait_until(|| format!("the plan of step {}", claim.step), known) {
        return Ok(None);
    }
    let kept = !alone && claim.step >= pass.first_safe.load(Ordering::Acquire);
    let tranches = match kept.then(|| pass.plans.at(claim.step)).flatten() {
        Some(tranches) => tranches,
        None => vec![Arc::new(plain(pass, claim.step)?)],
    };
    let mut picks: Vec<(u32, Pick<'_>)> = Vec::with_capacity(shared.options.batch_size as usize);
    for planned in &tranches {
        picks.extend(planned.needs_at(claim.step).iter().map(|need| {
            let need = *need as usize;
            (planned.tranche.needs[need].slot, Pick { planned, need })
        }));
    }
    if tranches.len() > 1 {
        picks.sort_unstable_by_key(|(slot, _)| *slot);
    }
    let layout = layout(shared, &picks);
    let mut batch = Batch::new(&shared.buffers, buffer.take(), layout, picks.len());
    if batch.is_private() {
        count(shared.slot(), Counter::PrivateBatches, 1);
    }
    scratch.begin(batch.layout().places.len());
    if !step.samples(&mut batch, &picks, scratch)? {
        return Ok(None);
    }
    let idle = step.idle.get();
    count(shared.slot(), Counter::AskedBytes, scratch.asked_bytes());
    count(shared.slot(), Counter::MappedBytes, step.mapped_bytes.get());
    count(shared.slot(), Counter::GatherIdleNs, idle.as_nanos() as u64);
    count(shared.slot(), Counter::GatherNs, begun.elapsed().saturating_sub(idle).as_nanos() as u64);
    Ok(Some(batch))
}

/// The usual layout, or a larger one for a batch of ragged fields that does not fit it.
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
    let need = |(slot, sample): (usize, &SampleId)| Need {
        sample: *sample,
        local_rank: shared.options.local_rank,
        step: 0,
        slot: slot as u32,
    };
    let tranche =
        Tranche { first_step: step, last_step: step, needs: ids.iter().enumerate().map(need).collect() };
    let mut located = Located::default();
    let begun = Instant::now();
    if let Some(mappings) = shared.mappings.as_ref().filter(|_| shared.settings.walks_alone()) {
        let mut cursor = pass.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = |shard, offset, length| mappings.bytes(shard, offset, length);
        let dataset = shared.source.dataset();
        dataset.locate_by_cursor(&mut cursor, &shared.index, &ids, &bytes, &mut located)?;
    } else {
        shared.index.locate(&ids, &mut located)?;
    }
    count_since(shared.slot(), Counter::SeekNs, begun);
    let plan = Plan::in_place(&located);
    Ok(Planned::new(tranche, located, plan, shared.options.local_rank))
}

/// Publishes where a rank that was away goes on, and reads what it may rely on from there (protocol.rs).
pub(crate) fn come_back(pass: &Pass, step: u64) {
    let shared = &pass.shared;
    publish_position(&shared.slot().position, pass.number, step);
    let overwritten = shared.region.readers().iter().map(|reader| &reader.overwritten);
    let safe = overwritten.map(|word| first_safe_step(word, pass.number)).max().unwrap_or(0);
    pass.first_safe.store(safe, Ordering::Release);
}
