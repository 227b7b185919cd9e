//! A root: locates the samples of all ranks of its node by a walk, ahead of the planner. Root k of
//! R locates those of the steps s with s mod R = k.

use std::ops::Range;

use forebay_model::{AccessMethod, Kernel};
use forebay_plan::wanted_end;

use crate::actors::walk::Walk;
use crate::costs::nanoseconds;
use crate::world::World;

/// A root of a node.
pub(crate) struct Root {
    node: usize,
    number: usize,
    roots: u64,
    step: u64,
    walk: Walk,
    state: State,
}

enum State {
    /// The ranks of the node have not begun.
    Start,
    /// It waits until there is room for the places of its step.
    Waiting,
    /// It walks.
    Walking,
    /// It has walked, and touches pages that are in memory.
    Touching,
}

impl Root {
    pub(crate) fn new(node: usize, number: usize, roots: usize, ranks: Range<u32>) -> Root {
        let (roots, step) = (roots as u64, number as u64);
        Root {
            node,
            number,
            roots,
            step,
            walk: Walk::new(node, ranks, AccessMethod::Mmap),
            state: State::Start,
        }
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
                    self.walk.begin(world, self.step);
                    self.state = State::Walking;
                }
                State::Walking => {
                    if let Some(due) = self.walk.advance(kernel, world) {
                        return kernel.resume_at(due);
                    }
                    let duration = self.walk.take_touched_ns(world);
                    self.state = State::Touching;
                    let end = kernel.work(world.nodes[self.node].processors, duration);
                    return kernel.resume_at(end);
                }
                State::Touching => {
                    self.step += self.roots;
                    node.located[self.number] = self.step;
                    kernel.notify_after(node.planning, nanoseconds(world.job.costs.wake_ns));
                    self.state = State::Waiting;
                }
            }
        }
    }
}
