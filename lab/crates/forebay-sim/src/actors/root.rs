//! A root: locates the samples of all ranks of its node by a walk, ahead of the planner. Root k of
//! R locates those of the steps s with s mod R = k.

use std::ops::Range;

use forebay_model::Kernel;
use forebay_plan::config::Locate;
use forebay_plan::{OrderKind, wanted_end};

use crate::actors::handoff_walk::HandoffWalk;
use crate::actors::walk::Walk;
use crate::costs::nanoseconds;
use crate::world::World;

/// A root of a node.
pub(crate) struct Root {
    node: usize,
    number: usize,
    roots: u64,
    step: u64,
    locator: Locator,
    state: State,
}

enum State {
    /// The ranks of the node have not begun.
    Start,
    /// It waits until there is room for the places of its step.
    Waiting,
    /// It locates the samples of its step.
    Locating,
}

enum Locator {
    Cursors(CursorWalks),
    Handoff(Box<HandoffWalk>),
}

impl Root {
    pub(crate) fn new(world: &World<'_>, node: usize, number: usize, roots: usize) -> Root {
        let locator = if world.job.strategy.locate == Locate::Handoff {
            Locator::Handoff(Box::new(HandoffWalk::new(world, node)))
        } else {
            Locator::Cursors(CursorWalks::new(world, node))
        };
        Root { node, number, roots: roots as u64, step: number as u64, locator, state: State::Start }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        loop {
            let node = &mut world.nodes[self.node];
            match self.state {
                State::Start => {
                    self.state = State::Waiting;
                    return kernel.resume_at(node.begin);
                }
                State::Waiting => {
                    let ahead = world.settings(self.node).region.location_steps;
                    let end = wanted_end(Some(world.job.epochs), world.order.steps_per_epoch(), 0);
                    let node = &world.nodes[self.node];
                    if self.step >= node.planned + ahead || self.step >= end {
                        return kernel.wait(node.planning);
                    }
                    match &mut self.locator {
                        Locator::Cursors(walks) => walks.begin(world, self.step),
                        Locator::Handoff(walk) => walk.begin(world, self.step),
                    }
                    self.state = State::Locating;
                }
                State::Locating => {
                    let is_done = match &mut self.locator {
                        Locator::Cursors(walks) => walks.advance(kernel, world),
                        Locator::Handoff(walk) => walk.advance(kernel, world),
                    };
                    if !is_done {
                        return;
                    }
                    self.step += self.roots;
                    let node = &mut world.nodes[self.node];
                    node.located[self.number] = self.step;
                    kernel.notify_after(node.planning, nanoseconds(world.job.costs.wake_ns));
                    self.state = State::Waiting;
                }
            }
        }
    }
}

/// Walks that depend on no other node: one for all ranks, or one for each where each has a region
/// of its own. One walk begins when the one before it has ended.
struct CursorWalks {
    node: usize,
    walks: Vec<Walk>,
    /// Walks that have reached all, and one more once the time for that is booked.
    done: usize,
}

impl CursorWalks {
    fn new(world: &World<'_>, node: usize) -> CursorWalks {
        let ranks = world.job.ranks_of(node as u32);
        let of = |ranks: Range<u32>| Walk::of_engine(node, ranks);
        let walks = if world.order.kind() == OrderKind::Contiguous {
            ranks.map(|rank| of(rank..rank + 1)).collect()
        } else {
            vec![of(ranks)]
        };
        CursorWalks { node, walks, done: 0 }
    }

    fn begin(&mut self, world: &World<'_>, step: u64) {
        self.walks.iter_mut().for_each(|walk| walk.begin(world, step));
        self.done = 0;
    }

    /// Goes on; false: it has asked the kernel to be resumed.
    fn advance(&mut self, kernel: &mut Kernel, world: &mut World<'_>) -> bool {
        while let Some(walk) = self.walks.get_mut(self.done) {
            if let Some(due) = walk.advance(kernel, world) {
                kernel.resume_at(due);
                return false;
            }
            self.done += 1;
        }
        if self.done > self.walks.len() {
            return true;
        }
        self.done += 1;
        let duration = self.walks.iter_mut().map(|walk| walk.take_touched_ns(world)).sum();
        let end = kernel.work(world.nodes[self.node].processors, duration);
        kernel.resume_at(end);
        false
    }
}
