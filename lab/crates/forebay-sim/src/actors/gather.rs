//! A gather thread: copies the samples of a step into a batch buffer, and reads what no reader
//! staged. It stands for the threads of all ranks of the node that work on the same step.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_model::{Kernel, ModelTime};

use crate::actors::in_place::RankReads;
use crate::costs::nanoseconds;
use crate::world::World;

/// A gather thread of each rank of a node.
pub(crate) struct Gather {
    node: usize,
    state: State,
}

enum State {
    /// It claims a step.
    Claiming,
    /// It waits for the blocks of this step.
    Waiting(u64),
    /// Its ranks read what no block has of this step.
    Reading { step: u64, ranks: Vec<RankReads>, due: BinaryHeap<Reverse<(ModelTime, usize)>>, bytes: u64 },
    /// It copies the samples of this step.
    Copying(u64),
}

impl Gather {
    pub(crate) fn new(node: usize) -> Gather {
        Gather { node, state: State::Claiming }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let wake_ns = nanoseconds(world.job.costs.wake_ns);
        loop {
            let node = &mut world.nodes[self.node];
            match &mut self.state {
                State::Claiming => {
                    let Some(step) = node.claim() else { return kernel.wait(node.room) };
                    if node.covered <= step {
                        kernel.notify_after(node.planning, wake_ns);
                    }
                    self.state = State::Waiting(step);
                }
                State::Waiting(step) => {
                    let step = *step;
                    if !node.is_filled(step) {
                        return kernel.wait(node.filled);
                    }
                    let in_place = node.take_in_place(step);
                    let bytes = in_place.iter().map(|(_, extent)| extent.length).sum();
                    let ranks = RankReads::of(&in_place);
                    let due = (0..ranks.len()).map(|rank| Reverse((kernel.now(), rank))).collect();
                    self.state = State::Reading { step, ranks, due, bytes };
                }
                State::Reading { step, ranks, due, bytes } => {
                    if let Some(Reverse((time, rank))) = due.pop() {
                        if time > kernel.now() {
                            due.push(Reverse((time, rank)));
                            return kernel.resume_at(time);
                        }
                        if let Some(time) = ranks[rank].read(self.node, kernel, world) {
                            due.push(Reverse((time, rank)));
                        }
                        continue;
                    }
                    // What was read in place was copied by the read.
                    let (step, bytes) = (*step, *bytes / u64::from(node.ranks));
                    let (costs, samples) = (&world.job.costs, world.job.batch_size);
                    let copied = (samples * world.job.places().sample_bytes).saturating_sub(bytes);
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
