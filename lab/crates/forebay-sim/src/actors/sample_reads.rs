//! What a rank of a program reads for a step, sample by sample.

use std::collections::{BTreeMap, VecDeque};

use forebay_model::spec::PAGE_BYTES;
use forebay_model::{AccessMethod, ClientAccess, Kernel, ModelTime};
use forebay_plan::PermutationCache;
use forebay_types::{Extent, Located, Piece, Rank, SampleId, SamplePlaces, ShardId};

use crate::actors::program_files::ProgramFile;
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
    /// What it reads: the file, none where the bytes are in memory, and the length.
    access: Option<(ProgramFile, Option<ClientAccess>, u64)>,
    /// Files that its process has open.
    opens: BTreeMap<u32, ProgramFile>,
    epoch: u64,
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
            epoch: 0,
            touched_pages: 0,
            ids: Vec::new(),
            kept: PermutationCache::default(),
            located: Located::default(),
        }
    }

    /// Sets out for the samples of a step.
    pub(crate) fn begin(&mut self, world: &World<'_>, step: u64) {
        let epoch = step / world.order.steps_per_epoch();
        if self.reads.reopens && epoch != self.epoch {
            self.opens.clear();
        }
        self.epoch = epoch;
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
        let now = kernel.now();
        loop {
            if let Some((file, access, length)) = &mut self.access {
                if let Some(access) = access
                    && let Some(due) = world.advance_program_access(now, self.node, file, access)
                {
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
                        return Some(kernel.work(world.nodes[self.node].processors, duration));
                    }
                }
            }
            let next = *self.extents.front()?;
            let file = if let Some(file) = self.opens.get(&next.shard.0) {
                *file
            } else {
                let file = world.open_of_program(kernel, self.node, next.shard.0);
                self.opens.insert(next.shard.0, file);
                if self.reads.opens || self.reads.reopens {
                    return Some(world.open_time(now, self.node, &file));
                }
                file
            };
            self.extents.pop_front();
            if self.reads.opens {
                self.opens.remove(&next.shard.0);
            }
            let counters = &mut world.nodes[self.node].counters;
            counters.reads += 1;
            counters.read_bytes += next.length;
            let (range, how) = ((next.offset, next.length), self.reads.access);
            let access = world.begin_program_access(self.node, &file, range, how, self.epoch);
            self.access = Some((file, access, next.length));
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
