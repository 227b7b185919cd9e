//! The training script: takes a batch, computes, meets all others. It stands for all ranks of the
//! node.

use forebay_model::{Kernel, ModelTime};

use crate::costs::nanoseconds;
use crate::world::World;

/// The scripts of a node.
pub(crate) struct Consumer {
    node: usize,
    compute_ns: u64,
    step: u64,
    /// Since when it does what `state` says.
    since: ModelTime,
    state: State,
}

enum State {
    /// The ranks of the node have not begun.
    Start,
    /// It asks for the batch of the step.
    Taking,
    /// It has its first batch, and meets the others.
    First,
    /// It computes.
    Computing,
    /// It has computed, and meets the others.
    Meeting,
}

impl Consumer {
    pub(crate) fn new(node: usize, compute_ns: u64) -> Consumer {
        Consumer { node, compute_ns, step: 0, since: 0, state: State::Start }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let now = kernel.now();
        loop {
            let node = &mut world.nodes[self.node];
            match self.state {
                State::Start => {
                    (self.since, self.state) = (node.start, State::Taking);
                    return kernel.resume_at(node.begin);
                }
                State::Taking => {
                    node.is_starving = !node.take(self.step);
                    // A buffer is free, or the script waits for one.
                    if node.buffer_use().is_worth_a_wake_up() {
                        kernel.notify_after(node.room, nanoseconds(world.job.costs.wake_ns));
                    }
                    if node.is_starving {
                        return kernel.wait(node.gathered);
                    }
                    let waited = now - self.since;
                    if self.step == 0 {
                        node.counters.startup_ns = waited;
                        self.state = State::First;
                        return meet(kernel, world);
                    }
                    node.counters.wait_ns += waited;
                    self.state = State::Computing;
                    self.since = now;
                    return kernel.resume_after(self.compute_ns);
                }
                State::First => {
                    world.ready = now;
                    self.state = State::Computing;
                    self.since = now;
                    return kernel.resume_after(self.compute_ns);
                }
                State::Computing => {
                    node.counters.compute_ns += now - self.since;
                    self.since = now;
                    self.state = State::Meeting;
                    return meet(kernel, world);
                }
                State::Meeting => {
                    node.counters.skew_ns += now - self.since;
                    self.step += 1;
                    if self.step == world.uncounted {
                        node.counters.begin_window();
                    }
                    if world.step_ends.len() as u64 + 1 == self.step {
                        world.end_step(now);
                    }
                    if self.step == world.steps {
                        if world.meet() {
                            kernel.stop();
                        }
                        return;
                    }
                    self.since = now;
                    self.state = State::Taking;
                }
            }
        }
    }
}

/// Waits until all nodes are here.
fn meet(kernel: &mut Kernel, world: &mut World<'_>) {
    kernel.wait(world.together);
    if world.meet() {
        kernel.notify_after(world.together, world.job.meeting_ns());
    }
}
