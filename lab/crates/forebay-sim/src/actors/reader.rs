//! A reader: fills its blocks of the plan.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_model::{AccessMethod, ClientAccess, Kernel, ModelTime};
use forebay_plan::AnnounceWindow;
use forebay_plan::config::{AccessChoice, ReadAhead};
use forebay_types::{Extent, MAX_ANNOUNCED_BYTES};

use crate::actors::transfers::Transfers;
use crate::costs::nanoseconds;
use crate::gate::ReadToken;
use crate::node::Node;
use crate::planned_segment::BlockRead;
use crate::request::Request;
use crate::world::World;

/// A reader of a node.
pub(crate) struct Reader {
    node: usize,
    number: u64,
    readers: u64,
    /// It looks for blocks from this one on.
    sequence: u64,
    token: ReadToken,
    state: State,
}

enum State {
    /// The ranks of the node have not begun.
    Start,
    /// It looks for its next block.
    Looking,
    /// It waits until the memory of this block may be overwritten.
    Room(u64),
    /// It waits until its node may read, in order to read this block.
    Turn(u64),
    /// It announces blocks, at last this one.
    Announcing(u64),
    /// It announces `announced`, before it reads `block`: from `offset` of read `read` on.
    Sending { block: u64, announced: u64, read: usize, offset: u64 },
    /// It reads this block.
    Reading(Filling),
}

/// A block that is read.
struct Filling {
    block: u64,
    /// The first step that needs something of its segment.
    first_step: u64,
    /// Its reads.
    transfers: Transfers,
    /// Requests that have been begun.
    begun: usize,
    /// The request that goes through the page cache; without access where memory answers it.
    waiting: Option<(Request, Option<ClientAccess>)>,
    /// Arrivals of direct reads that are in flight.
    in_flight: BinaryHeap<Reverse<ModelTime>>,
}

impl Filling {
    fn new(block: u64, node: &Node) -> Filling {
        Filling {
            block,
            first_step: node.segment_start(block).0,
            transfers: Transfers::new(node.block(block).reads.iter().map(BlockRead::extent)),
            begun: 0,
            waiting: None,
            in_flight: BinaryHeap::new(),
        }
    }
}

impl Reader {
    pub(crate) fn new(node: usize, number: u64, readers: u64) -> Reader {
        Reader { node, number, readers, sequence: number, token: ReadToken::default(), state: State::Start }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let wake_ns = nanoseconds(world.job.costs.wake_ns);
        loop {
            let node = &mut world.nodes[self.node];
            match &mut self.state {
                State::Start => {
                    self.state = State::Looking;
                    return kernel.resume_at(node.begin);
                }
                State::Looking => {
                    let found = node.next_block(self.sequence, self.number, self.readers);
                    let Some((block, place)) = found else {
                        self.token.give_back(node.gate.as_mut(), kernel, wake_ns);
                        return kernel.wait(node.gathered);
                    };
                    self.sequence = block + 1;
                    node.begun = node.begun.max(block + 1);
                    if place < self.readers as usize {
                        kernel.notify_after(node.planning, wake_ns);
                    }
                    self.state = State::Room(block);
                }
                State::Room(block) => {
                    let block = *block;
                    if node.block(block).after_step.is_some_and(|step| node.position <= step) {
                        self.token.give_back(node.gate.as_mut(), kernel, wake_ns);
                        return kernel.wait(node.gathered);
                    }
                    self.state = State::Turn(block);
                }
                State::Turn(block) => {
                    let block = *block;
                    let (segment, _) = node.segment_start(block);
                    if !self.token.take(segment, node.gate.as_mut(), kernel, wake_ns) {
                        return node.gate.iter().for_each(|gate| kernel.wait(gate.changes));
                    }
                    let settings = world.settings(self.node);
                    self.state = if settings.read_ahead == ReadAhead::Announced {
                        State::Announcing(block)
                    } else {
                        State::Reading(Filling::new(block, &world.nodes[self.node]))
                    };
                }
                State::Announcing(block) => {
                    let block = *block;
                    if node.is_announcing && node.announced <= block {
                        return kernel.wait(node.filled);
                    }
                    // Another segment needs another token.
                    let (segment, first) = node.segment_start(block);
                    let token_start = world.job.strategy.stagger.map(|_| first);
                    let length = node.block(block).length;
                    let window = AnnounceWindow::new(block, length, self.readers, token_start);
                    let next = if node.is_announcing { None } else { window.next(node.announced) };
                    let next = next
                        .and_then(|sequence| node.next_block(sequence, 0, 1))
                        .filter(|(next, _)| token_start.is_none() || node.segment_start(*next).0 == segment);
                    self.state = if let Some((announced, _)) = next {
                        node.is_announcing = true;
                        State::Sending { block, announced, read: 0, offset: 0 }
                    } else {
                        State::Reading(Filling::new(block, &world.nodes[self.node]))
                    };
                }
                State::Sending { block, announced, read, offset } => {
                    let reads = &node.block(*announced).reads;
                    let Some(&one) = reads.get(*read) else {
                        node.is_announcing = false;
                        node.announced = *announced + 1;
                        kernel.notify_after(node.filled, wake_ns);
                        self.state = State::Announcing(*block);
                        continue;
                    };
                    let begin = one.offset + *offset;
                    let length = MAX_ANNOUNCED_BYTES.min(one.length - *offset);
                    *offset += length;
                    if *offset == one.length {
                        (*read, *offset) = (*read + 1, 0);
                    }
                    let part = Extent { shard: one.shard, offset: begin, length };
                    let sent = world.will_need(kernel.now(), self.node, part);
                    let duration = nanoseconds(world.job.costs.request_ns) * sent;
                    let end = kernel.work(world.nodes[self.node].processors, duration);
                    return kernel.resume_at(end);
                }
                State::Reading(filling) => {
                    if let Some(due) = read(filling, self.node, kernel, world) {
                        return kernel.resume_at(due);
                    }
                    let block = filling.block;
                    drop_behind(self.node, block, world);
                    let node = &mut world.nodes[self.node];
                    let length = node.block(block).length;
                    self.token.count(length, node.gate.as_mut());
                    node.fill(block);
                    kernel.notify_after(node.filled, wake_ns);
                    self.state = State::Looking;
                }
            }
        }
    }
}

/// Goes on with the reads of a block; returns when it continues, or `None` once it is filled.
fn read(filling: &mut Filling, node: usize, kernel: &mut Kernel, world: &mut World<'_>) -> Option<ModelTime> {
    let settings = world.settings(node);
    if settings.leaves_faults_to_ranks() {
        return None;
    }
    let (direct, depth) = match settings.access {
        AccessChoice::IoUring => (settings.direct, settings.depth as usize),
        _ => (settings.direct, 1),
    };
    // No rank waits for a segment that all are before.
    let ranks = &world.nodes[node];
    let has_time = !ranks.is_starving && ranks.position < filling.first_step;
    let epoch = filling.first_step / world.order.steps_per_epoch();
    let now = kernel.now();
    loop {
        if let Some((request, access)) = &mut filling.waiting {
            if let Some(access) = access
                && let Some(due) = world.advance_request(now, node, request.holder, access)
            {
                return Some(due);
            }
            let duration = world.request_ns(request);
            filling.waiting = None;
            return Some(kernel.work(world.nodes[node].processors, duration));
        }
        if let Some(due) = filling.transfers.plan(now, world, node, has_time) {
            return Some(due);
        }
        while filling.in_flight.peek().is_some_and(|Reverse(due)| *due <= now) {
            filling.in_flight.pop();
        }
        if filling.in_flight.len() >= depth {
            return filling.in_flight.peek().map(|Reverse(due)| *due);
        }
        let Some(&next) = filling.transfers.requests.get(filling.begun) else {
            if let Some(Reverse(due)) = filling.in_flight.peek() {
                return Some(*due);
            }
            return filling.transfers.land(kernel, world, node, has_time);
        };
        filling.begun += 1;
        if direct {
            filling.in_flight.push(Reverse(world.send_request(now, node, &next, epoch)));
            let duration = nanoseconds(world.job.costs.read_ns);
            return Some(kernel.work(world.nodes[node].processors, duration));
        }
        let how = match settings.access {
            AccessChoice::Mmap => AccessMethod::Mmap,
            _ => AccessMethod::Read,
        };
        filling.waiting = Some((next, world.begin_request(node, &next, how, epoch)));
    }
}

/// Drops what was read for a block from the page cache.
fn drop_behind(node: usize, block: u64, world: &mut World<'_>) {
    if !world.settings(node).drops_behind {
        return;
    }
    let mut place = 0;
    while let Some(read) = world.nodes[node].block(block).reads.get(place).copied() {
        world.wont_need(node, read.extent());
        place += 1;
    }
}
