//! A planned segment: its blocks, which steps need them, and what ranks read themselves.

use forebay_plan::{Plan, Segment};
use forebay_types::{Extent, Located, Piece, ShardId};

/// A read of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockRead {
    pub(crate) shard: ShardId,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl BlockRead {
    pub(crate) fn extent(&self) -> Extent {
        Extent { shard: self.shard, offset: self.offset, length: self.length }
    }
}

/// A block of a plan.
#[derive(Debug)]
pub(crate) struct PlannedBlock {
    pub(crate) length: u64,
    /// It may be filled once all ranks have gathered this step.
    pub(crate) after_step: Option<u64>,
    pub(crate) reads: Vec<BlockRead>,
    /// Steps that need it.
    pub(crate) steps: Vec<u64>,
    pub(crate) is_filled: bool,
}

/// A planned segment.
#[derive(Debug)]
pub(crate) struct PlannedSegment {
    pub(crate) first_step: u64,
    pub(crate) last_step: u64,
    /// Sequence of its first block; where it has none, of the next one that will be planned.
    pub(crate) first_block: u64,
    pub(crate) blocks: Vec<PlannedBlock>,
    /// What ranks read themselves: step, local rank, bytes.
    pub(crate) in_place: Vec<(u64, u32, Extent)>,
}

impl PlannedSegment {
    pub(crate) fn new(segment: &Segment, located: &Located, plan: &Plan, first_block: u64) -> Self {
        let mut blocks: Vec<PlannedBlock> = plan
            .blocks
            .iter()
            .map(|block| PlannedBlock {
                length: block.length,
                after_step: block.after_step,
                reads: plan.reads[block.first_read as usize..(block.first_read + block.reads) as usize]
                    .iter()
                    .map(|read| BlockRead {
                        shard: read.shard,
                        offset: read.file_offset,
                        length: read.length,
                    })
                    .collect(),
                steps: Vec::new(),
                is_filled: false,
            })
            .collect();
        let mut in_place = Vec::new();
        for (need, demand) in segment.demands.iter().enumerate() {
            let step = segment.first_step + u64::from(demand.step);
            for slice in located.slices(need, 0) {
                for piece in located.unit_pieces(slice.unit) {
                    let Piece::Extent(extent) = located.pieces()[piece] else { continue };
                    for part in plan.parts(piece as u32) {
                        let Some(block) = blocks.get_mut(part.block as usize) else {
                            let extent = Extent { offset: part.offset, length: part.length, ..extent };
                            in_place.push((step, demand.local_rank, extent));
                            continue;
                        };
                        // Demands come by step, so most repetitions are neighbours.
                        if block.steps.last() != Some(&step) {
                            block.steps.push(step);
                        }
                    }
                }
            }
        }
        for block in &mut blocks {
            block.steps.sort_unstable();
            block.steps.dedup();
        }
        let first_block = plan.blocks.first().map_or(first_block, |block| block.sequence);
        let (first_step, last_step) = (segment.first_step, segment.last_step);
        PlannedSegment { first_step, last_step, first_block, blocks, in_place }
    }
}
