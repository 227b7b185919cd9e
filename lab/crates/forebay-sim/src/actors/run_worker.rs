//! The worker of the daemon of `forebay run`: looks every few milliseconds at what programs opened,
//! copies what they have read, and lets programs get the copies that are whole.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_model::{ByteRange, FileId, Kernel, ModelTime};
use forebay_plan::{CopyStep, LOOK_IDLE_EVERY, block_extent, look_again_after, may_begin_copy};

use crate::costs::nanoseconds;
use crate::run::Wanted;
use crate::world::World;

/// The worker of a node.
pub(crate) struct RunWorker {
    node: usize,
    /// It ends once all files are staged.
    only_stages: bool,
    /// The files that it has still to look at.
    files: VecDeque<u32>,
    /// The one that it looks at, and the blocks of it that it has still to try.
    file: Option<u32>,
    blocks: VecDeque<u32>,
    /// When it did something, and since when it waits for the next look.
    acted: ModelTime,
    waits_since: ModelTime,
    acts: bool,
    /// Threads have done something since it began to look.
    is_done: bool,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// It begins a look.
    Looking,
    /// It begins to copy files.
    Beginning,
    /// It opens this one.
    Opening(Wanted),
    /// It looks for blocks that programs have read.
    Following,
    /// It has read this block from the page cache.
    Writing { shard: u32, block: u32 },
    /// It has written it.
    Written { shard: u32, block: u32 },
    /// It waits for copies to reach their devices.
    Flushing,
    /// The oldest of them has.
    Publishing,
    /// It has waited for something to do.
    Idle,
}

impl RunWorker {
    pub(crate) fn new(node: usize, only_stages: bool) -> RunWorker {
        RunWorker {
            node,
            only_stages,
            files: VecDeque::new(),
            file: None,
            blocks: VecDeque::new(),
            acted: 0,
            waits_since: 0,
            acts: false,
            is_done: false,
            state: State::Looking,
        }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let (now, id) = (kernel.now(), world.nodes[self.node].id);
        let wake_ns = nanoseconds(world.job.costs.wake_ns);
        loop {
            let run = &mut world.runs[self.node];
            match self.state {
                State::Idle => {
                    self.state = State::Looking;
                    return kernel.resume_at(self.next_look(now));
                }
                State::Looking => {
                    self.acts = run.take_wishes();
                    self.state = State::Beginning;
                }
                State::Beginning => {
                    if may_begin_copy(run.copying.len())
                        && let Some(wanted) = run.next_wanted()
                    {
                        self.acts = true;
                        self.state = State::Opening(wanted);
                        return kernel.resume_at(world.storage.model().metadata(now, id));
                    }
                    self.files.clone_from(&run.order);
                    self.state = State::Following;
                }
                State::Opening(wanted) => {
                    self.state = State::Beginning;
                    if run.is_known(wanted.shard) {
                        continue;
                    }
                    let bytes = world.places.bytes_of_file(wanted.shard.into());
                    let file = FileId(wanted.shard.into());
                    let source = world.storage.client(id).open(file, bytes);
                    run.begin_copy(now, wanted, source, bytes);
                    if run.options.fetch.reads_whole(wanted.is_staged) {
                        run.hand(kernel, wanted.shard, wake_ns);
                    }
                }
                State::Following => {
                    if let Some(end) = self.follow(kernel, world) {
                        return kernel.resume_at(end);
                    }
                    if self.file.is_none() && self.files.is_empty() {
                        self.is_done = world.runs[self.node].take_done(now);
                        self.acts |= self.is_done;
                        self.state = State::Flushing;
                    }
                }
                State::Writing { shard, block } => {
                    self.state = State::Written { shard, block };
                    return kernel.resume_at(run.write(now, shard, block));
                }
                State::Written { shard, block } => {
                    self.acts = true;
                    run.followed(now, shard, block);
                    self.state = State::Following;
                }
                State::Flushing => {
                    if let Some(due) = run.flush_due(now) {
                        self.state = State::Publishing;
                        return kernel.resume_at(due);
                    }
                    if self.acts {
                        self.acted = now;
                    }
                    if self.is_done {
                        // The threads may have nothing to do now.
                        self.state = State::Looking;
                        continue;
                    }
                    self.waits_since = now;
                    if run.is_idle() {
                        self.state = State::Idle;
                        if !self.only_stages {
                            kernel.wait(run.wished);
                        }
                        return;
                    }
                    self.state = State::Looking;
                    kernel.wait(run.ended);
                    let acted_before = Duration::from_nanos(now - self.acted);
                    let after = look_again_after(acted_before, run.copying.len());
                    return kernel.resume_after(after.as_nanos() as u64);
                }
                State::Publishing => {
                    self.acts = true;
                    run.publish();
                    self.state = State::Flushing;
                }
            }
        }
    }

    /// Looks at the next block, or decides about the first file; returns when a block is read.
    fn follow(&mut self, kernel: &mut Kernel, world: &mut World<'_>) -> Option<ModelTime> {
        let (now, node) = (kernel.now(), &world.nodes[self.node]);
        let run = &mut world.runs[self.node];
        let shard = match self.file {
            Some(shard) => shard,
            None => self.files.pop_front()?,
        };
        let copying = run.copying.get(&shard).filter(|copying| !copying.is_handed);
        let Some(copying) = copying else {
            self.file = None;
            return None;
        };
        if self.file.is_none() {
            self.file = Some(shard);
            self.blocks.extend(copying.blocks.to_follow());
        }
        while let Some(block) = self.blocks.pop_front() {
            let (offset, length) = block_extent(block, copying.blocks.bytes());
            let range = ByteRange { offset, length: length as u64 };
            if world.storage.is_resident(now, node.id, copying.source, range) {
                self.state = State::Writing { shard, block };
                let costs = &world.job.costs;
                // From the page cache, and to that of the tier.
                let duration = nanoseconds(costs.read_ns) + 2 * costs.copy(range.length);
                return Some(kernel.work(node.processors, duration));
            }
        }
        self.file = None;
        match run.step(now, shard)? {
            CopyStep::Finish => run.written(now, shard),
            CopyStep::Wait => {}
            CopyStep::ReadRest => run.hand(kernel, shard, nanoseconds(world.job.costs.wake_ns)),
            CopyStep::GiveUp => run.abandon(shard),
        }
        None
    }

    /// The look that finds what a program opens now, after others that found nothing.
    fn next_look(&self, now: ModelTime) -> ModelTime {
        let mut look = self.waits_since;
        while look < now {
            let every = look_again_after(Duration::from_nanos(look - self.acted), 0);
            let every_ns = every.as_nanos() as u64;
            let looks = if every == LOOK_IDLE_EVERY { (now - look).div_ceil(every_ns) } else { 1 };
            look += looks * every_ns;
        }
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_opens_is_found_at_the_next_look() {
        let ms = 1_000_000;
        // It did something at 3 ms, and has looked at 7 ms: at 12, 17, 22, 27, 47, 67 and so on.
        let worker = RunWorker { acted: 3 * ms, waits_since: 7 * ms, ..RunWorker::new(0, false) };
        for (opened, expected) in
            [(7, 7), (8, 12), (12, 12), (21, 22), (23, 27), (28, 47), (47, 47), (1000, 1007)]
        {
            assert_eq!(worker.next_look(opened * ms), expected * ms, "{opened} ms");
        }
    }
}
