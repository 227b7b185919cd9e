//! A gather thread: copies the samples of a step into a batch buffer, and reads what no reader
//! staged. It stands for the threads of all ranks of the node that work on the same step.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use forebay_model::{AccessMethod, Kernel, ModelTime};
use forebay_plan::OrderKind;
use forebay_types::SamplePlaces;

use crate::actors::in_place::RankReads;
use crate::actors::walk::Walk;
use crate::costs::nanoseconds;
use crate::program::Program;
use crate::world::World;

/// A gather thread of each rank of a node.
pub(crate) struct Gather {
    node: usize,
    /// The cursors of ranks that find their samples themselves, one for each.
    walks: Vec<Walk>,
    state: State,
}

enum State {
    /// The ranks of the node have not begun.
    Start,
    /// It claims a step.
    Claiming,
    /// Its ranks walk to their samples of this step.
    Walking { step: u64, turns: RankTurns },
    /// It waits for the blocks of this step.
    Waiting(u64),
    /// Its ranks read what no block has of this step.
    Reading { step: u64, ranks: Vec<RankReads>, turns: RankTurns, bytes: u64 },
    /// It copies the samples of this step.
    Copying(u64),
}

/// Ranks that do something each for itself, and when each of them goes on.
pub(crate) struct RankTurns(BinaryHeap<Reverse<(ModelTime, usize)>>);

impl RankTurns {
    /// All ranks go on now.
    pub(super) fn new(now: ModelTime, ranks: usize) -> RankTurns {
        RankTurns((0..ranks).map(|rank| Reverse((now, rank))).collect())
    }

    /// Lets all ranks go on whose time has come: `go_on` returns when its rank continues, if it
    /// does. Returns when the next one continues, or `None` once all are done.
    pub(super) fn run(
        &mut self,
        kernel: &mut Kernel,
        mut go_on: impl FnMut(usize, &mut Kernel) -> Option<ModelTime>,
    ) -> Option<ModelTime> {
        loop {
            let Reverse((time, rank)) = *self.0.peek()?;
            if time > kernel.now() {
                return Some(time);
            }
            self.0.pop();
            self.0.extend(go_on(rank, kernel).map(|time| Reverse((time, rank))));
        }
    }
}

impl Gather {
    /// A thread of ranks that get their samples from readers, but for those that walk to them
    /// alone.
    pub(crate) fn new(node: usize, alone: Range<u32>, program: Option<Program>) -> Gather {
        let how = program.map_or(AccessMethod::Mmap, Program::access);
        let walks = alone.map(|rank| Walk::new(node, rank..rank + 1, how)).collect();
        Gather { node, walks, state: State::Start }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let wake_ns = nanoseconds(world.job.costs.wake_ns);
        loop {
            let node = &mut world.nodes[self.node];
            match &mut self.state {
                State::Start => {
                    self.state = State::Claiming;
                    return kernel.resume_at(node.begin);
                }
                State::Claiming => {
                    let Some(step) = node.claim() else { return kernel.wait(node.room) };
                    if !self.walks.is_empty() {
                        self.walks.iter_mut().for_each(|walk| begin(walk, world, step));
                        let turns = RankTurns::new(kernel.now(), self.walks.len());
                        self.state = State::Walking { step, turns };
                        continue;
                    }
                    if node.covered <= step {
                        kernel.notify_after(node.planning, wake_ns);
                    }
                    self.state = State::Waiting(step);
                }
                State::Walking { step, turns } => {
                    let walks = &mut self.walks;
                    if let Some(time) = turns.run(kernel, |rank, kernel| walks[rank].advance(kernel, world)) {
                        return kernel.resume_at(time);
                    }
                    let step = *step;
                    let touched = self.walks.iter_mut().map(|walk| walk.take_touched_ns(world)).max();
                    let touched = touched.unwrap_or(0);
                    let (costs, samples) = (&world.job.costs, world.job.batch_size);
                    let copied = costs.copy(samples * world.places.sample_bytes());
                    let passed = nanoseconds(passed_by_program(world) as f64 * costs.pass_ns);
                    let gathered = nanoseconds(samples as f64 * costs.gather_ns);
                    let duration = gathered + copied + touched + passed;
                    let end = world.nodes[self.node].work_of_ranks(kernel, duration);
                    self.state = State::Copying(step);
                    return kernel.resume_at(end);
                }
                State::Waiting(step) => {
                    let step = *step;
                    if !node.is_filled(step) {
                        return kernel.wait(node.filled);
                    }
                    let in_place = node.take_in_place(step);
                    let bytes = in_place.iter().map(|(_, extent)| extent.length).sum();
                    let ranks = RankReads::of(&in_place);
                    let turns = RankTurns::new(kernel.now(), ranks.len());
                    self.state = State::Reading { step, ranks, turns, bytes };
                }
                State::Reading { step, ranks, turns, bytes } => {
                    let place = self.node;
                    let place_and_epoch = (place, *step / world.order.steps_per_epoch());
                    if let Some(time) =
                        turns.run(kernel, |rank, kernel| ranks[rank].read(place_and_epoch, kernel, world))
                    {
                        return kernel.resume_at(time);
                    }
                    let node = &world.nodes[place];
                    // What was read in place was copied by the read.
                    let (step, bytes) = (*step, *bytes / u64::from(node.ranks));
                    let (costs, samples) = (&world.job.costs, world.job.batch_size);
                    let copied = (samples * world.places.sample_bytes()).saturating_sub(bytes);
                    let duration = nanoseconds(samples as f64 * costs.gather_ns) + costs.copy(copied);
                    let end = node.work_of_ranks(kernel, duration);
                    self.state = State::Copying(step);
                    return kernel.resume_at(end);
                }
                State::Copying(step) => {
                    node.finish(*step);
                    kernel.notify_after(node.gathered, wake_ns);
                    self.state = State::Claiming;
                }
            }
        }
    }
}

/// Sets out for a step. A program in the order `sequential` has passed all records of the step when
/// it hands out its batch.
fn begin(walk: &mut Walk, world: &World<'_>, step: u64) {
    walk.begin(world, step);
    if world.job.program.is_some() && world.order.kind() == OrderKind::Sequential {
        let step_samples = world.job.batch_size * u64::from(world.job.ranks);
        let within = step % world.order.steps_per_epoch();
        walk.pass_to(((within + 1) * step_samples).min(world.places.samples()));
    }
}

/// Records that each rank of a program passes in a step.
fn passed_by_program(world: &World<'_>) -> u64 {
    match world.job.program {
        None => 0,
        Some(_) if world.order.kind() == OrderKind::Sequential => {
            world.job.batch_size * u64::from(world.job.ranks)
        }
        Some(_) => world.job.batch_size,
    }
}
