//! The planner: turns the order into plans, a little ahead of the readers.
//!
//! One thread per process. All processes of a node compute the same tranches with the same block sequences; each keeps
//! a tranche until its own rank has gathered its last step and all its blocks are filled (by whomever), so that a
//! reader that moves to this process finds what is left to do. The planner also starts the readers that this process
//! hosts.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_plan::{Landing, Next, Plan, Schedule, Tranche, plan_into};
use forebay_types::{Located, SampleId};

use crate::error::Error;
use crate::pass::Pass;
use crate::position::{AWAY, Position};
use crate::protocol::block_passed;
use crate::stats::{Counter, count_since};

/// Tranches planned ahead of the readers: one they can begin at once, one behind it.
const AHEAD: usize = 2;
/// How long a waiting thread sleeps at most before it looks around \[ms\].
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);

/// A planned tranche.
pub(crate) struct Planned {
    pub(crate) tranche: Tranche,
    pub(crate) located: Located,
    pub(crate) plan: Plan,
    /// Positions in `tranche.needs` of this rank, by step (relative) and slot.
    own: Vec<u32>,
    /// For each step of the tranche, where its needs begin in `own`.
    own_starts: Vec<u32>,
}

impl Planned {
    /// Sorts out what belongs to `local_rank`.
    pub(crate) fn new(tranche: Tranche, located: Located, plan: Plan, local_rank: u32) -> Self {
        let steps = (tranche.last_step - tranche.first_step + 1) as usize;
        let mut own: Vec<u32> = (0..tranche.needs.len() as u32)
            .filter(|need| tranche.needs[*need as usize].local_rank == local_rank)
            .collect();
        own.sort_unstable_by_key(|need| {
            let need = &tranche.needs[*need as usize];
            (need.step, need.slot)
        });
        let mut own_starts = Vec::with_capacity(steps + 1);
        let mut at = 0;
        for step in 0..=steps as u32 {
            while at < own.len() && tranche.needs[own[at] as usize].step < step {
                at += 1;
            }
            own_starts.push(at as u32);
        }
        Self { tranche, located, plan, own, own_starts }
    }

    /// This rank's needs at an absolute step: positions in `tranche.needs`, by slot.
    pub(crate) fn needs_at(&self, step: u64) -> &[u32] {
        if step < self.tranche.first_step || step > self.tranche.last_step {
            return &[];
        }
        let relative = (step - self.tranche.first_step) as usize;
        &self.own[self.own_starts[relative] as usize..self.own_starts[relative + 1] as usize]
    }

    fn last_sequence(&self) -> Option<u64> {
        self.plan.blocks.last().map(|block| block.sequence)
    }
}

/// The plans that a process holds.
pub(crate) struct Plans {
    list: Mutex<VecDeque<Arc<Planned>>>,
    /// All needs of steps before this one are planned.
    covered: AtomicU64,
    /// Steps up to this one may have lost a tranche; exclusive.
    forgotten: AtomicU64,
    /// The epoch + 1 for which planning waits until the user gives its order, else 0.
    lacking: AtomicU64,
}

impl Plans {
    pub(crate) fn new(start: u64) -> Self {
        Self {
            list: Mutex::new(VecDeque::new()),
            covered: AtomicU64::new(start),
            forgotten: AtomicU64::new(0),
            lacking: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Planned>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all needs of a step are planned.
    pub(crate) fn covers(&self, step: u64) -> bool {
        self.covered.load(Ordering::Acquire) > step
    }

    /// The epoch for which planning waits until the user gives its order.
    pub(crate) fn lacking(&self) -> Option<u64> {
        self.lacking.load(Ordering::Acquire).checked_sub(1)
    }

    /// Whether all blocks before block `place` of `planned` that lie in the same memory, or have the same word, are filled.
    ///
    /// A tranche that was forgotten had all its blocks filled.
    pub(crate) fn is_free(
        &self,
        planned: &Planned,
        place: usize,
        words: u64,
        filled: impl Fn(u64) -> bool,
    ) -> bool {
        let block = &planned.plan.blocks[place];
        let end = block.ring_offset + block.length;
        let earlier = |other: &&forebay_plan::Block| other.sequence < block.sequence;
        self.lock().iter().flat_map(|planned| planned.plan.blocks.iter()).take_while(earlier).all(|other| {
            let overlaps = other.ring_offset < end && block.ring_offset < other.ring_offset + other.length;
            let same_word = other.sequence + words <= block.sequence;
            !(overlaps || same_word) || filled(other.sequence)
        })
    }

    /// The tranches with needs at a step; `None` where one of them may have been forgotten.
    pub(crate) fn at(&self, step: u64) -> Option<Vec<Arc<Planned>>> {
        let list = self.lock();
        if step < self.forgotten.load(Ordering::Relaxed) {
            return None;
        }
        Some(
            list.iter()
                .filter(|planned| planned.tranche.first_step <= step && step <= planned.tranche.last_step)
                .cloned()
                .collect(),
        )
    }

    /// The tranche that holds the first block at or behind `sequence` that belongs to `reader` of `readers`, and its place.
    pub(crate) fn next_block(
        &self,
        sequence: u64,
        reader: u64,
        readers: u64,
    ) -> Option<(Arc<Planned>, usize)> {
        let list = self.lock();
        for planned in list.iter() {
            let Some(first) = planned.plan.blocks.first().map(|block| block.sequence) else { continue };
            let from = sequence.max(first);
            let wanted = from + (reader + readers - from % readers) % readers;
            if let Some(place) = wanted.checked_sub(first)
                && (place as usize) < planned.plan.blocks.len()
            {
                return Some((Arc::clone(planned), place as usize));
            }
        }
        None
    }
}

/// Runs the planner of a pass until it is stopped.
pub(crate) fn run(pass: &Arc<Pass>) {
    if let Err(error) = plan_all(pass) {
        pass.fail(error);
    }
}

fn plan_all(pass: &Arc<Pass>) -> Result<(), Error> {
    let shared = &pass.shared;
    let region = &shared.region;
    let mut schedule =
        Schedule::new(&shared.order, &shared.node_ranks, pass.start, shared.settings.steps_per_tranche);
    let mut landing = Landing::new(region.layout().landing_bytes, region.layout().blocks as u64);
    let shard_bytes: Vec<u64> = shared.index.shards().iter().map(|shard| shard.bytes).collect();
    let mut waiting: Option<Tranche> = None;
    let mut ids: Vec<SampleId> = Vec::new();
    let mut spare: Vec<(Located, Plan)> = Vec::new();
    loop {
        if pass.is_stopped() {
            return Ok(());
        }
        pass.host_readers();
        forget_done(pass, &mut spare);
        let mut lacking = None;
        if waiting.is_none() {
            match schedule.next(|epoch| shared.given.get(epoch)) {
                Next::Tranche(tranche) => {
                    pass.plans.covered.fetch_max(tranche.first_step, Ordering::AcqRel);
                    waiting = Some(tranche);
                }
                Next::NeedsGiven(epoch) => {
                    pass.plans.covered.fetch_max(epoch * shared.order.steps_per_epoch(), Ordering::AcqRel);
                    lacking = Some(epoch);
                }
            }
            pass.plans.lacking.store(lacking.map_or(0, |epoch| epoch + 1), Ordering::Release);
            region.filled().ring();
        }
        let wanted = waiting.as_ref().is_some_and(|tranche| is_wanted(pass, tranche));
        if !wanted {
            region.planning().wait(
                || {
                    pass.is_stopped()
                        || waiting.as_ref().is_some_and(|tranche| is_wanted(pass, tranche))
                        || lacking.is_some_and(|epoch| shared.given.get(epoch).is_some())
                },
                PATIENCE,
            );
            continue;
        }
        let Some(tranche) = waiting.take() else { continue };
        let begun = Instant::now();
        ids.clear();
        ids.extend(tranche.needs.iter().map(|need| need.sample));
        let (mut located, mut plan) = spare.pop().unwrap_or_default();
        shared.index.locate(&ids, &mut located)?;
        let begun = count_since(shared.slot(), Counter::SeekNs, begun);
        plan_into(&tranche, &located, &shard_bytes, &shared.traits, &mut landing, &mut plan);
        let planned = Planned::new(tranche, located, plan, shared.options.local_rank);
        pass.plans.lock().push_back(Arc::new(planned));
        count_since(shared.slot(), Counter::PlanNs, begun);
        shared.ring_all();
    }
}

/// Whether a tranche should be planned now: the gatherers need it, or the readers are about to run out.
fn is_wanted(pass: &Pass, tranche: &Tranche) -> bool {
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
    let list = pass.plans.lock();
    let ahead = list.iter().rev().take_while(|planned| match planned.last_sequence() {
        Some(last) => last >= begun,
        None => claim.is_none_or(|step| planned.tranche.first_step > step),
    });
    ahead.count() < AHEAD
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
    let mut list = pass.plans.lock();
    let mut dropped = Vec::new();
    while let Some(front) = list.front() {
        let filled = |sequence: u64| block_passed(region.block_word(sequence), pass.number, sequence);
        let done = front.tranche.last_step < gathered
            // Blocks of a tranche are begun in order by each reader; the last ones decide, the others are looked at to be sure.
            && front.plan.blocks.iter().rev().all(|block| filled(block.sequence));
        if !done {
            break;
        }
        pass.plans.forgotten.fetch_max(front.tranche.last_step + 1, Ordering::Relaxed);
        dropped.extend(list.pop_front());
    }
    drop(list);
    // A gatherer or reader may still hold one; then its memory goes with the last of them.
    let free = dropped.into_iter().filter_map(|planned: Arc<Planned>| Arc::try_unwrap(planned).ok());
    spare.extend(free.map(|planned| (planned.located, planned.plan)));
    spare.truncate(AHEAD);
}
