//! A thread that loads what a node keeps in memory, before the loader begins: it takes parts of it,
//! one after the other, and reads each.

use std::collections::VecDeque;

use forebay_model::{AccessMethod, ClientAccess, Kernel};
use forebay_types::Extent;

use crate::costs::nanoseconds;
use crate::world::World;

/// A loading thread of a node.
pub(crate) struct Loader {
    node: usize,
    /// What it has still to read of its part.
    part: VecDeque<Extent>,
    /// What it reads.
    access: Option<(u64, ClientAccess)>,
}

impl Loader {
    pub(crate) fn new(node: usize) -> Loader {
        Loader { node, part: VecDeque::new(), access: None }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let now = kernel.now();
        loop {
            if let Some((length, access)) = &mut self.access {
                if let Some(due) = world.storage.advance(now, world.nodes[self.node].id, access) {
                    return kernel.resume_at(due);
                }
                let length = *length;
                self.access = None;
                world.nodes[self.node].counters.loaded_bytes += length;
                // Read into memory of the thread, and written to the share.
                let duration = nanoseconds(world.job.costs.read_ns) + 2 * world.job.costs.copy(length);
                let end = kernel.work(world.nodes[self.node].processors, duration);
                return kernel.resume_at(end);
            }
            let Some(Extent { shard, offset, length }) = self.part.pop_front() else {
                match world.loads[self.node].pop_front() {
                    Some(part) => self.part = part.into(),
                    None => return,
                }
                continue;
            };
            let open = world.open(self.node, shard.0);
            let client = world.storage.client(world.nodes[self.node].id);
            self.access = Some((length, client.access(open, offset, length, AccessMethod::Read)));
        }
    }
}
