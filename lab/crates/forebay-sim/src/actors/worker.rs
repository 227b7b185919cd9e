//! A worker of a program that reads for itself: reads the samples of a step, and makes a batch of
//! them. It stands for a worker of each rank of the node.

use forebay_model::Kernel;
use forebay_plan::OrderKind;

use crate::actors::sample_reads::RankSampleReads;
use crate::actors::turns::RankTurns;
use crate::actors::walk::Walk;
use crate::costs::nanoseconds;
use crate::program::Program;
use crate::world::World;

/// A worker of each rank of a node.
pub(crate) struct Worker {
    node: usize,
    program: Program,
    /// What each rank touches.
    ranks: Vec<Touches>,
    state: State,
}

/// How a rank gets to its samples.
enum Touches {
    Walk(Walk),
    Samples(RankSampleReads),
}

enum State {
    /// The ranks of the node have not begun.
    Start,
    /// Its ranks list all keys.
    Listing(Vec<Walk>, RankTurns),
    /// It claims a step.
    Claiming,
    /// Its ranks read the samples of this step.
    Reading(u64, RankTurns),
    /// It copies them into a batch.
    Copying(u64),
}

impl Worker {
    pub(crate) fn new(world: &World<'_>, node: usize, program: Program) -> Worker {
        let touches = |rank| match program {
            Program::Cursor { .. } => Touches::Walk(Walk::new(node, rank..rank + 1, program.access())),
            Program::Samples(reads) => Touches::Samples(RankSampleReads::new(node, rank, reads)),
        };
        let mut ranks = world.job.ranks_of(node as u32);
        if matches!(program, Program::Cursor { .. }) && world.order.kind() == OrderKind::Sequential {
            // All touch the same: what one waits for is there, or on its way, for the others.
            ranks.end = ranks.start + 1;
        }
        Worker { node, program, ranks: ranks.map(touches).collect(), state: State::Start }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        loop {
            let node = &mut world.nodes[self.node];
            match &mut self.state {
                State::Start => {
                    self.state = match self.program {
                        Program::Samples(reads) if reads.lists_keys => self.list_keys(world),
                        _ => State::Claiming,
                    };
                    return kernel.resume_at(world.nodes[self.node].begin);
                }
                State::Listing(walks, turns) => {
                    if let Some(time) = turns.run(kernel, |rank, kernel| walks[rank].advance(kernel, world)) {
                        return kernel.resume_at(time);
                    }
                    self.state = State::Claiming;
                    let listed = world.places.samples() as f64 * world.job.costs.pass_ns;
                    let end = world.nodes[self.node].work_of_ranks(kernel, nanoseconds(listed));
                    return kernel.resume_at(end);
                }
                State::Claiming => {
                    let Some(step) = node.claim() else { return kernel.wait(node.room) };
                    for rank in &mut self.ranks {
                        match rank {
                            Touches::Walk(walk) => begin_walk(walk, world, step),
                            Touches::Samples(reads) => reads.begin(world, step),
                        }
                    }
                    self.state = State::Reading(step, RankTurns::new(kernel.now(), self.ranks.len()));
                }
                State::Reading(step, turns) => {
                    let ranks = &mut self.ranks;
                    let next = turns.run(kernel, |rank, kernel| match &mut ranks[rank] {
                        Touches::Walk(walk) => walk.advance(kernel, world),
                        Touches::Samples(reads) => reads.advance(kernel, world),
                    });
                    if let Some(time) = next {
                        return kernel.resume_at(time);
                    }
                    let step = *step;
                    let duration = self.work(world);
                    let end = world.nodes[self.node].work_of_ranks(kernel, duration);
                    self.state = State::Copying(step);
                    return kernel.resume_at(end);
                }
                State::Copying(step) => {
                    node.finish(*step);
                    kernel.notify_after(node.gathered, nanoseconds(world.job.costs.wake_ns));
                    self.state = State::Claiming;
                }
            }
        }
    }

    fn list_keys(&self, world: &World<'_>) -> State {
        let walk = |rank| {
            let mut walk = Walk::new(self.node, rank..rank + 1, self.program.access());
            // It touches the leaves on its way, and no record.
            walk.reach(world.places.samples()..world.places.samples());
            walk
        };
        let walks: Vec<Walk> = world.job.ranks_of(self.node as u32).map(walk).collect();
        let turns = RankTurns::new(world.nodes[self.node].begin, walks.len());
        State::Listing(walks, turns)
    }

    /// What each rank works for a step, apart from waiting for its reads \[ns\].
    fn work(&mut self, world: &World<'_>) -> u64 {
        let (costs, samples) = (&world.job.costs, world.job.batch_size);
        let of_step = samples * u64::from(world.job.ranks);
        let touched = self.ranks.iter_mut().map(|rank| match rank {
            Touches::Walk(walk) => walk.take_touched_ns(world),
            Touches::Samples(reads) => reads.take_touched_ns(world),
        });
        let touched = touched.max().unwrap_or(0);
        let passed = match self.program {
            Program::Cursor { .. } if world.order.kind() == OrderKind::Sequential => of_step,
            Program::Samples(reads) if reads.reads_all => of_step,
            Program::Cursor { .. } => samples,
            Program::Samples(_) => 0,
        };
        let own_ns = match self.program {
            Program::Cursor { .. } => costs.gather_ns,
            Program::Samples(reads) => reads.sample_ns,
        };
        touched
            + nanoseconds(passed as f64 * costs.pass_ns + samples as f64 * own_ns)
            + costs.copy(samples * world.places.sample_bytes())
    }
}

/// Sets out for a step. A cursor touches each record that it passes, as py-lmdb's do: in the order
/// `sequential` all records of the step, in another one those before the first that is its own.
fn begin_walk(walk: &mut Walk, world: &World<'_>, step: u64) {
    walk.begin(world, step);
    let step_samples = world.job.batch_size * u64::from(world.job.ranks);
    let first = step % world.order.steps_per_epoch() * step_samples;
    if world.order.kind() == OrderKind::Sequential {
        walk.reach(first..(first + step_samples).min(world.places.samples()));
    } else if step == 0 {
        walk.reach(0..walk.first());
    }
}
