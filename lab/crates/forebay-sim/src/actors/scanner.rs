//! A scan: one process of the job walks through all leaves of an LMDB file before the others begin,
//! and builds their index. It asks for the leaves of a branch when it reaches the branch, and
//! touches no record that is in no leaf.

use forebay_model::spec::PAGE_BYTES;
use forebay_model::{AccessMethod, ByteRange, ClientAccess, FileId, Kernel, OpenFile};

use crate::costs::nanoseconds;
use crate::world::World;

/// The scan, on the first node.
pub(crate) struct Scanner {
    open: Option<OpenFile>,
    /// Leaves that were touched.
    done: usize,
    /// Leaves that were asked for.
    asked: usize,
    access: Option<ClientAccess>,
}

impl Scanner {
    pub(crate) fn new() -> Scanner {
        Scanner { open: None, done: 0, asked: 0, access: None }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let (now, id, leaves) = (kernel.now(), world.nodes[0].id, world.places.leaves());
        loop {
            if let Some(access) = &mut self.access {
                if let Some(due) = world.storage.advance(now, id, access) {
                    return kernel.resume_at(due);
                }
                self.access = None;
                self.done += 1;
            }
            let Some(leaf) = leaves.get(self.done) else { return };
            let client = world.storage.client(id);
            let open = *self.open.get_or_insert_with(|| client.open(FileId(0), world.places.file_bytes()));
            if self.asked == self.done {
                let mut sent = 0;
                for leaf in leaves.iter().skip(self.asked).take(world.places.leaves_of_branch()) {
                    let range = ByteRange { offset: leaf.offset, length: PAGE_BYTES };
                    sent += world.storage.will_need(now, id, open, range);
                    self.asked += 1;
                }
                let duration = nanoseconds(world.job.costs.request_ns) * sent;
                let end = kernel.work(world.nodes[0].processors, duration);
                return kernel.resume_at(end);
            }
            let client = world.storage.client(id);
            self.access = Some(client.access(open, leaf.offset, PAGE_BYTES, AccessMethod::Mmap));
        }
    }
}
