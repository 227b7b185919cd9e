//! A gather thread: copies the samples of a step into a batch buffer, and reads what no reader
//! staged. It stands for the threads of all ranks of the node that work on the same step.

use std::ops::Range;

use forebay_model::Kernel;

use crate::actors::in_place::RankReads;
use crate::actors::mapped_copy::{CopyScratch, MappedCopy};
use crate::actors::turns::RankTurns;
use crate::actors::walk::Walk;
use crate::costs::nanoseconds;
use crate::world::World;

/// A gather thread of each rank of a node.
pub(crate) struct Gather {
    node: usize,
    /// The cursors of ranks that find their samples themselves, one for each.
    walks: Vec<Walk>,
    scratch: CopyScratch,
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
    /// Its ranks touch the samples of this step in their mappings.
    Touching { step: u64, copies: Vec<MappedCopy>, turns: RankTurns },
    /// It copies the samples of this step.
    Copying(u64),
}

impl Gather {
    /// A thread of ranks that get their samples from readers, but for those that walk to them
    /// alone.
    pub(crate) fn new(node: usize, alone: Range<u32>) -> Gather {
        Gather {
            node,
            walks: alone.map(|rank| Walk::of_engine(node, rank..rank + 1)).collect(),
            scratch: CopyScratch::default(),
            state: State::Start,
        }
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
                        self.walks.iter_mut().for_each(|walk| walk.begin(world, step));
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
                    return self.copy(kernel, world, step, 0, touched);
                }
                State::Waiting(step) => {
                    let step = *step;
                    if !node.is_filled(step) {
                        return kernel.wait(node.filled);
                    }
                    let in_place = node.take_in_place(step);
                    if world.settings(self.node).leaves_faults_to_ranks() {
                        let copies = self.scratch.copies(self.node, step, world);
                        let turns = RankTurns::new(kernel.now(), copies.len());
                        self.state = State::Touching { step, copies, turns };
                        continue;
                    }
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
                    // What was read in place was copied by the read.
                    let (step, read_bytes) = (*step, *bytes / u64::from(world.nodes[place].ranks));
                    return self.copy(kernel, world, step, read_bytes, 0);
                }
                State::Touching { step, copies, turns } => {
                    let place = self.node;
                    if let Some(time) =
                        turns.run(kernel, |rank, kernel| copies[rank].advance(place, kernel, world))
                    {
                        return kernel.resume_at(time);
                    }
                    let step = *step;
                    let touched = copies.iter().map(|copy| copy.touched_ns(world)).max().unwrap_or(0);
                    return self.copy(kernel, world, step, 0, touched);
                }
                State::Copying(step) => {
                    node.finish(*step);
                    kernel.notify_after(node.gathered, wake_ns);
                    self.state = State::Claiming;
                }
            }
        }
    }

    /// Copies a step: all of it but the bytes that a rank has read into its batch. Each rank also
    /// works `touched` ns for what it touches.
    fn copy(&mut self, kernel: &mut Kernel, world: &World<'_>, step: u64, read_bytes: u64, touched: u64) {
        let bytes = world.job.batch_size * world.places.sample_bytes();
        let duration = world.gather_ns(bytes.saturating_sub(read_bytes)) + touched;
        self.state = State::Copying(step);
        let end = world.nodes[self.node].work_of_ranks(kernel, duration);
        kernel.resume_at(end);
    }
}
