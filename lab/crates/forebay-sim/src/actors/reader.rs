//! A reader: fills its blocks of the plan.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use forebay_model::{AccessMethod, ByteRange, ClientAccess, Kernel, ModelTime};
use forebay_plan::AnnounceWindow;
use forebay_plan::config::{AccessChoice, ReadAhead};

use crate::costs::nanoseconds;
use crate::node::BlockRead;
use crate::world::World;

/// The largest request of the page cache for announced bytes \[B\].
const REQUEST_BYTES: u64 = 1 << 20;

/// A reader of a node.
pub(crate) struct Reader {
    node: usize,
    number: u64,
    readers: u64,
    /// It looks for blocks from this one on.
    sequence: u64,
    state: State,
}

enum State {
    /// The ranks of the node have not begun.
    Start,
    /// It looks for its next block.
    Looking,
    /// It waits until the memory of this block may be overwritten.
    Room(u64),
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
    /// Reads that have been begun.
    begun: usize,
    /// The read that goes through the page cache.
    access: Option<ClientAccess>,
    /// Arrivals of direct reads that are in flight.
    in_flight: BinaryHeap<Reverse<ModelTime>>,
}

impl Filling {
    fn new(block: u64) -> Filling {
        Filling { block, begun: 0, access: None, in_flight: BinaryHeap::new() }
    }
}

impl Reader {
    pub(crate) fn new(node: usize, number: u64, readers: u64) -> Reader {
        Reader { node, number, readers, sequence: number, state: State::Start }
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
                    let Some((block, place)) = found else { return kernel.wait(node.gathered) };
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
                        return kernel.wait(node.gathered);
                    }
                    let announces = world.settings(self.node).read_ahead == ReadAhead::Announced;
                    self.state = if announces {
                        State::Announcing(block)
                    } else {
                        State::Reading(Filling::new(block))
                    };
                }
                State::Announcing(block) => {
                    let block = *block;
                    if node.is_announcing && node.announced <= block {
                        return kernel.wait(node.filled);
                    }
                    let window = AnnounceWindow::new(block, node.block(block).length, self.readers, None);
                    let next = if node.is_announcing { None } else { window.next(node.announced) };
                    let next = next.and_then(|sequence| node.next_block(sequence, 0, 1));
                    self.state = if let Some((announced, _)) = next {
                        node.is_announcing = true;
                        State::Sending { block, announced, read: 0, offset: 0 }
                    } else {
                        State::Reading(Filling::new(block))
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
                    // Requests end at multiples of their size.
                    let length = (REQUEST_BYTES - begin % REQUEST_BYTES).min(one.length - *offset);
                    *offset += length;
                    if *offset == one.length {
                        (*read, *offset) = (*read + 1, 0);
                    }
                    let (now, id) = (kernel.now(), node.id);
                    let open = world.open(self.node, one.shard.0);
                    let sent = world.storage.will_need(now, id, open, ByteRange { offset: begin, length });
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
    let (direct, depth) = match settings.access {
        AccessChoice::IoUring => (settings.direct, settings.depth as usize),
        _ => (settings.direct, 1),
    };
    loop {
        let now = kernel.now();
        if let Some(access) = &mut filling.access {
            if let Some(due) = world.storage.advance(now, world.nodes[node].id, access) {
                return Some(due);
            }
            filling.access = None;
            let costs = &world.job.costs;
            let bytes = read_at(world, node, filling.block, filling.begun - 1).map_or(0, |read| read.length);
            let duration = nanoseconds(costs.read_ns) + costs.copy(bytes);
            return Some(kernel.work(world.nodes[node].processors, duration));
        }
        while filling.in_flight.peek().is_some_and(|Reverse(due)| *due <= now) {
            filling.in_flight.pop();
        }
        if filling.in_flight.len() >= depth {
            return filling.in_flight.peek().map(|Reverse(due)| *due);
        }
        let Some(next) = read_at(world, node, filling.block, filling.begun) else {
            return filling.in_flight.peek().map(|Reverse(due)| *due);
        };
        filling.begun += 1;
        let open = world.open(node, next.shard.0);
        let (id, counters) = (world.nodes[node].id, &mut world.nodes[node].counters);
        counters.reads += 1;
        counters.read_bytes += next.length;
        let how = match settings.access {
            _ if direct => AccessMethod::Direct,
            AccessChoice::Mmap => AccessMethod::Mmap,
            _ => AccessMethod::Read,
        };
        let mut access = world.storage.client(id).access(open, next.offset, next.length, how);
        if direct {
            let due = world.storage.step(now, id, &mut access).due.unwrap_or(now);
            filling.in_flight.push(Reverse(due));
            let duration = nanoseconds(world.job.costs.read_ns);
            return Some(kernel.work(world.nodes[node].processors, duration));
        }
        filling.access = Some(access);
    }
}

fn read_at(world: &World<'_>, node: usize, block: u64, place: usize) -> Option<BlockRead> {
    world.nodes[node].block(block).reads.get(place).copied()
}

/// Drops what was read for a block from the page cache.
fn drop_behind(node: usize, block: u64, world: &mut World<'_>) {
    if !world.settings(node).drops_behind {
        return;
    }
    let mut place = 0;
    while let Some(read) = read_at(world, node, block, place) {
        let open = world.open(node, read.shard.0);
        let range = ByteRange { offset: read.offset, length: read.length };
        world.storage.client(world.nodes[node].id).wont_need(open, range);
        place += 1;
    }
}
