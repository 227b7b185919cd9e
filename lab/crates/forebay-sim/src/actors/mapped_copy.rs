//! What a rank copies from the mapping of the files: the samples of a step, each a page fault where
//! its page is not in the page cache.

use std::vec::IntoIter;

use forebay_model::spec::PAGE_BYTES;
use forebay_model::{AccessMethod, ClientAccess, Kernel, ModelTime};
use forebay_plan::PermutationCache;
use forebay_types::{Extent, Located, Piece, Rank, SampleId, SamplePlaces};

use crate::costs::nanoseconds;
use crate::world::World;

/// The copies of one rank for a step, by slot.
pub(crate) struct MappedCopy {
    local_rank: usize,
    extents: IntoIter<Extent>,
    access: Option<ClientAccess>,
    pages: u64,
}

/// What the copies of several steps share.
#[derive(Default)]
pub(crate) struct CopyScratch {
    kept: PermutationCache,
    ids: Vec<SampleId>,
    located: Located,
}

impl CopyScratch {
    /// The copies of each rank of a node for a step.
    pub(crate) fn copies(&mut self, node: usize, step: u64, world: &World<'_>) -> Vec<MappedCopy> {
        let CopyScratch { kept, ids, located } = self;
        let copy = |(local_rank, rank)| {
            world.order.batches_of_ranks(step, [Rank(rank)], kept, ids);
            let Ok(()) = world.places.locate(ids, located);
            let extents = located.pieces().iter().filter_map(|piece| match piece {
                Piece::Extent(extent) => Some(*extent),
                Piece::Literal { .. } => None,
            });
            let extents = extents.collect::<Vec<_>>().into_iter();
            MappedCopy { local_rank, extents, access: None, pages: 0 }
        };
        (0..).zip(world.job.ranks_of(node as u32)).map(copy).collect()
    }
}

impl MappedCopy {
    /// Goes on; returns when it continues, or `None` once it has touched all.
    pub(crate) fn advance(
        &mut self,
        node: usize,
        kernel: &Kernel,
        world: &mut World<'_>,
    ) -> Option<ModelTime> {
        let (now, id) = (kernel.now(), world.nodes[node].id);
        loop {
            if let Some(access) = &mut self.access {
                if let Some(due) = world.storage.advance(now, id, access) {
                    return Some(due);
                }
                self.access = None;
            }
            let Extent { shard, offset, length } = self.extents.next()?;
            self.pages += (offset + length).div_ceil(PAGE_BYTES) - offset / PAGE_BYTES;
            let open = world.map(node, self.local_rank, shard.0);
            self.access = Some(world.storage.client(id).access(open, offset, length, AccessMethod::Mmap));
        }
    }

    /// Time of page faults that found their page \[ns\].
    pub(crate) fn touched_ns(&self, world: &World<'_>) -> u64 {
        nanoseconds(self.pages as f64 * world.job.costs.fault_ns)
    }
}
