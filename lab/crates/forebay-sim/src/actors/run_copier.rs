//! A thread of the daemon of `forebay run`: reads blocks of one file after the other, and copies
//! them.

use std::collections::VecDeque;

use forebay_model::{AccessMethod, ClientAccess, Kernel};
use forebay_plan::block_extent;

use crate::costs::nanoseconds;
use crate::run::CopyJob;
use crate::world::World;

/// A copying thread of a node.
pub(crate) struct RunCopier {
    node: usize,
    state: State,
}

enum State {
    Waiting,
    /// It comes to the next of these blocks.
    Beginning(CopyJob, VecDeque<u32>),
    /// It reads the first of them.
    Reading(CopyJob, VecDeque<u32>, ClientAccess),
    /// It has read it.
    Writing(CopyJob, VecDeque<u32>),
}

impl RunCopier {
    pub(crate) fn new(node: usize) -> RunCopier {
        RunCopier { node, state: State::Waiting }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let (now, id) = (kernel.now(), world.nodes[self.node].id);
        let costs = &world.job.costs;
        loop {
            let run = &mut world.runs[self.node];
            self.state = match std::mem::replace(&mut self.state, State::Waiting) {
                State::Waiting => {
                    let Some(job) = run.jobs.pop_front() else { return kernel.wait(run.given) };
                    let blocks = run.blocks_of(job.shard);
                    State::Beginning(job, blocks)
                }
                State::Beginning(job, blocks) => {
                    let Some(block) = blocks.front() else {
                        run.done.push_back(job.shard);
                        kernel.notify_after(run.ended, nanoseconds(costs.wake_ns));
                        continue;
                    };
                    let (offset, length) = block_extent(*block, job.bytes);
                    let client = world.storage.client(id);
                    let access = client.access(job.source, offset, length as u64, AccessMethod::Read);
                    State::Reading(job, blocks, access)
                }
                State::Reading(job, blocks, mut access) => {
                    if let Some(due) = world.storage.advance(now, id, &mut access) {
                        self.state = State::Reading(job, blocks, access);
                        return kernel.resume_at(due);
                    }
                    let length = blocks.front().map_or(0, |block| block_extent(*block, job.bytes).1);
                    // Into memory of the thread, and to the page cache of the tier.
                    let duration = nanoseconds(costs.read_ns) + 2 * costs.copy(length as u64);
                    self.state = State::Writing(job, blocks);
                    let end = kernel.work(world.nodes[self.node].processors, duration);
                    return kernel.resume_at(end);
                }
                State::Writing(job, mut blocks) => {
                    let goes_on = blocks.pop_front().map_or(now, |block| run.write(now, job.shard, block));
                    self.state = State::Beginning(job, blocks);
                    return kernel.resume_at(goes_on);
                }
            };
        }
    }
}
