//! What a rank of a program reads for a step, sample by sample.

use std::collections::{BTreeMap, VecDeque};

use forebay_model::spec::PAGE_BYTES;
use forebay_model::{AccessMethod, ClientAccess, FileId, Kernel, ModelTime, OpenFile};
use forebay_plan::PermutationCache;
use forebay_types::{Extent, Located, Piece, Rank, SampleId, SamplePlaces, ShardId};

use crate::costs::nanoseconds;
use crate::program::SampleReads;
use crate::world::World;

/// A read of a program that reads all records \[B\]: the buffer of `TFRecordDataset`.
const LARGE_READ_BYTES: u64 = 256 << 10;

/// The reads of one rank.
pub(crate) struct RankSampleReads {
    node: usize,
    rank: u32,
    reads: SampleReads,
    /// What it has to read, in order.
    extents: VecDeque<Extent>,
    access: Option<(ClientAccess, u64)>,
    /// Files that its process has open.
    opens: BTreeMap<u32, OpenFile>,
    /// Pages of a mapping that were touched since [`RankSampleReads::take_touched_ns`].
    touched_pages: u64,
    ids: Vec<SampleId>,
    kept: PermutationCache,
    located: Located,
}

impl RankSampleReads {
    pub(crate) fn new(node: usize, rank: u32, reads: SampleReads) -> RankSampleReads {
        RankSampleReads {
            node,
            rank,
            reads,
            extents: VecDeque::new(),
            access: None,
            opens: BTreeMap::new(),
            touched_pages: 0,
            ids: Vec::new(),
            kept: PermutationCache::default(),
            located: Located::default(),
        }
    }

    /// Sets out for the samples of a step.
    pub(crate) fn begin(&mut self, world: &World<'_>, step: u64) {
        let ranks = if self.reads.reads_all { 0..world.job.ranks } else { self.rank..self.rank + 1 };
        world.order.batches_of_ranks(step, ranks.map(Rank), &mut self.kept, &mut self.ids);
        let Ok(()) = world.places.locate(&self.ids, &mut self.located);
        let leaves = world.places.leaves();
        for (place, id) in self.ids.iter().enumerate() {
            if self.reads.reads_all {
                break;
            }
            if let Some(leaf) = leaves.partition_point(|leaf| leaf.first <= id.0).checked_sub(1) {
                let leaf = Extent { shard: ShardId(0), offset: leaves[leaf].offset, length: PAGE_BYTES };
                self.extents.push_back(leaf);
            }
            for slice in self.located.slices(place, 0) {
                for piece in self.located.unit_pieces(slice.unit) {
                    if let Piece::Extent(extent) = self.located.pieces()[piece] {
                        self.extents.push_back(extent);
                    }
                }
            }
        }
        if self.reads.reads_all {
            self.extents.extend(large_reads(self.located.pieces()));
        }
    }

    /// Goes on; returns when it continues, or `None` once it has read all.
    pub(crate) fn advance(&mut self, kernel: &mut Kernel, world: &mut World<'_>) -> Option<ModelTime> {
        let (now, node) = (kernel.now(), &world.nodes[self.node]);
        let (id, processors) = (node.id, node.processors);
        loop {
            if let Some((access, length)) = &mut self.access {
                if let Some(due) = world.storage.advance(now, id, access) {
                    return Some(due);
                }
                let length = *length;
                self.access = None;
                match self.reads.access {
                    AccessMethod::Mmap | AccessMethod::MmapRandom => {
                        self.touched_pages += length.div_ceil(PAGE_BYTES);
                    }
                    AccessMethod::Read | AccessMethod::Direct => {
                        let costs = &world.job.costs;
                        let duration = nanoseconds(costs.read_ns) + costs.copy(length);
                        return Some(kernel.work(processors, duration));
                    }
                }
            }
            let next = *self.extents.front()?;
            let open = if let Some(open) = self.opens.get(&next.shard.0) {
                *open
            } else {
                let bytes = world.places.bytes_of_file(next.shard.0.into());
                let open = world.storage.client(id).open(FileId(next.shard.0.into()), bytes);
                self.opens.insert(next.shard.0, open);
                if self.reads.opens {
                    return Some(world.storage.model().metadata(now, id));
                }
                open
            };
            self.extents.pop_front();
            if self.reads.opens {
                self.opens.remove(&next.shard.0);
            }
            let counters = &mut world.nodes[self.node].counters;
            counters.reads += 1;
            counters.read_bytes += next.length;
            let access = world.storage.client(id).access(open, next.offset, next.length, self.reads.access);
            self.access = Some((access, next.length));
        }
    }

    /// Time of page faults that found their page, since the last call \[ns\].
    pub(crate) fn take_touched_ns(&mut self, world: &World<'_>) -> u64 {
        nanoseconds(std::mem::take(&mut self.touched_pages) as f64 * world.job.costs.fault_ns)
    }
}

/// The reads of all bytes from the first to the last piece of each file.
fn large_reads(pieces: &[Piece]) -> Vec<Extent> {
    let mut files: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for piece in pieces {
        let Piece::Extent(extent) = piece else { continue };
        let (begin, end) = files.entry(extent.shard.0).or_insert((extent.offset, extent.end()));
        (*begin, *end) = ((*begin).min(extent.offset), (*end).max(extent.end()));
    }
    let reads = files.into_iter().flat_map(|(shard, (begin, end))| {
        (begin..end).step_by(LARGE_READ_BYTES as usize).map(move |offset| Extent {
            shard: ShardId(shard),
            offset,
            length: LARGE_READ_BYTES.min(end - offset),
        })
    });
    reads.collect()
}
