//! Plans coded units, which must be decoded before use.
//!
//! A reader fetches a coded unit (a compressed chunk of HDF5) into private memory and decodes it
//! into the block, once per node. So the size of a block of coded units is their decoded size.
//! Whole units share a block while they fit; reads are joined and split as for other units. Ranks
//! decode a unit themselves if it has several extents or none, or if its block does not fit into
//! the ring.

use forebay_types::{CodecChain, Extent, Located, Piece};

use crate::read::plan::{Block, Decode, IoLimits, Part, PlacedPart, Plan, Read};
use crate::read::runs::{align_down, cut};
use crate::read::staging::StagingRing;
use crate::schedule::segment::Segment;

/// Alignment of decoded units in their block \[bytes\]: a cache line.
const ALIGN: u64 = 64;

/// Units that are read and decoded together.
#[derive(Default)]
struct Batch {
    decodes: Vec<Decode>,
    runs: Vec<Fetch>,
    decoded_bytes: u64,
}

/// A range of a file that is fetched, aligned outwards.
struct Fetch {
    extent: Extent,
    fetched_offset: u64,
}

/// Plans the coded units of a segment; pieces that ranks decode themselves go to `found`.
pub(crate) fn plan_coded(
    segment: &Segment,
    located: &Located,
    limits: &IoLimits,
    staging: &mut StagingRing,
    plan: &mut Plan,
    found: &mut Vec<PlacedPart>,
) {
    let units = located.units();
    let nowhere = Part { block: Part::IN_PLACE, offset: 0, length: 0 };
    plan.decoded.resize(units.len(), nowhere);
    let mut sorted: Vec<(Extent, u32)> = Vec::new();
    for (number, unit) in units.iter().enumerate().filter(|(_, unit)| unit.codecs != CodecChain::STORED) {
        let range = located.unit_pieces(number as u32);
        if let [Piece::Extent(extent)] = located.pieces()[range.clone()]
            && unit.decoded_bytes > 0
        {
            sorted.push((extent, number as u32));
            continue;
        }
        left(located, number as u32, found);
    }
    sorted.sort_unstable_by_key(|(extent, unit)| (extent.shard, extent.offset, *unit));
    let mut batch = Batch::default();
    for (extent, unit) in sorted {
        let decoded_bytes = units[unit as usize].decoded_bytes;
        if !batch.takes(extent, decoded_bytes, limits) {
            place(segment, located, limits, staging, plan, found, &std::mem::take(&mut batch));
        }
        batch.push(extent, unit, decoded_bytes, limits);
    }
    place(segment, located, limits, staging, plan, found, &batch);
}

/// Leaves a unit to the ranks that need it.
fn left(located: &Located, unit: u32, found: &mut Vec<PlacedPart>) {
    for piece in located.unit_pieces(unit) {
        if let Piece::Extent(extent) = located.pieces()[piece] {
            found.push(PlacedPart::in_place(piece as u32, extent));
        }
    }
}

impl Batch {
    /// Whether another unit may join.
    fn takes(&self, extent: Extent, decoded_bytes: u64, limits: &IoLimits) -> bool {
        let Some(last) = self.runs.last() else { return true };
        last.extent.shard == extent.shard
            && self.decoded_bytes + decoded_bytes <= limits.block_bytes
            && self.runs.len() < limits.reads_per_block.max(1) as usize
    }

    fn push(&mut self, extent: Extent, unit: u32, decoded_bytes: u64, limits: &IoLimits) {
        let align = limits.align_bytes.max(1);
        let start = align_down(extent.offset, align);
        let end = extent.end().next_multiple_of(align);
        match self.runs.last_mut() {
            Some(run) if start <= run.extent.end().saturating_add(limits.gap_bytes) => {
                run.extent.length = run.extent.length.max(end - run.extent.offset);
            }
            last => {
                let behind = last.map_or(0, |run| run.fetched_offset + run.extent.length);
                let fetched_offset = behind.next_multiple_of(align.max(ALIGN));
                self.runs.push(Fetch {
                    extent: Extent { offset: start, length: end - start, ..extent },
                    fetched_offset,
                });
            }
        }
        let run = self.runs.last().expect("just there");
        let block_offset = self.decoded_bytes.next_multiple_of(ALIGN);
        self.decodes.push(Decode {
            unit,
            fetched_offset: run.fetched_offset + (extent.offset - run.extent.offset),
            encoded_bytes: extent.length,
            block_offset,
            decoded_bytes,
        });
        self.decoded_bytes = block_offset + decoded_bytes;
    }
}

/// Gives a batch its block, or leaves its units to the ranks.
fn place(
    segment: &Segment,
    located: &Located,
    limits: &IoLimits,
    staging: &mut StagingRing,
    plan: &mut Plan,
    found: &mut Vec<PlacedPart>,
    batch: &Batch,
) {
    if batch.decodes.is_empty() {
        return;
    }
    let Some(slot) = staging.place(batch.decoded_bytes, segment.first_step, segment.last_step) else {
        for decode in &batch.decodes {
            left(located, decode.unit, found);
        }
        return;
    };
    let (first_read, first_decode) = (plan.reads.len() as u32, plan.decodes.len() as u32);
    for run in &batch.runs {
        plan.reads.extend(cut(run.extent, limits).map(|read| Read {
            shard: read.shard,
            file_offset: read.offset,
            length: read.length,
            block_offset: run.fetched_offset + (read.offset - run.extent.offset),
        }));
    }
    let block = plan.blocks.len() as u32;
    for decode in &batch.decodes {
        plan.decoded[decode.unit as usize] =
            Part { block, offset: decode.block_offset, length: decode.decoded_bytes };
    }
    plan.decodes.extend(&batch.decodes);
    plan.blocks.push(Block {
        sequence: slot.sequence,
        ring_offset: slot.offset,
        length: batch.decoded_bytes,
        after_step: slot.after_step,
        first_read,
        reads: plan.reads.len() as u32 - first_read,
        first_decode,
        decodes: batch.decodes.len() as u32,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan_into;
    use forebay_types::{ShardId, Slice};
    use proptest::prelude::*;

    const LIMITS: IoLimits = IoLimits {
        gap_bytes: 100,
        max_read_bytes: 10_000,
        align_bytes: 1,
        boundary_bytes: None,
        in_place_bytes: None,
        block_bytes: 10_000,
        reads_per_block: 4,
    };

    /// Units by (shard, offset, encoded length, decoded length, chain), each with a sample of its
    /// own.
    fn located(units: &[(u32, u64, u64, u64, u16)]) -> Located {
        let mut located = Located::default();
        located.clear(1);
        for (shard, offset, length, decoded_bytes, chain) in units {
            let extent = Extent { shard: ShardId(*shard), offset: *offset, length: *length };
            let unit = located.push_unit(&[Piece::Extent(extent)], CodecChain(*chain), *decoded_bytes, 0);
            located.push_slice(Slice { unit, offset: 0, length: *decoded_bytes });
            located.end_column();
        }
        located
    }

    fn planned(located: &Located, limits: &IoLimits, staging_bytes: u64) -> Plan {
        let mut plan = Plan::default();
        let segment = Segment { first_step: 5, last_step: 5, demands: Vec::new() };
        plan_into(
            &segment,
            located,
            &[1 << 40; 2],
            limits,
            &mut StagingRing::new(staging_bytes, 1000),
            &mut plan,
        );
        plan
    }

    #[test]
    fn neighbours_are_fetched_at_once_and_stand_decoded_in_one_block() {
        let located = located(&[(0, 0, 400, 3_000, 1), (0, 450, 500, 3_000, 1), (0, 9_000, 10, 3_000, 2)]);
        let plan = planned(&located, &LIMITS, 1 << 20);
        let reads: Vec<_> = plan.reads.iter().map(|read| (read.file_offset, read.length)).collect();
        assert_eq!(reads, [(0, 950), (9_000, 10)]);
        assert_eq!((plan.blocks.len(), plan.blocks[0].decodes), (1, 3));
        assert_eq!(plan.blocks[0].length, 2 * 3_008 + 3_000);
        assert_eq!(plan.decoded(1), Some(Part { block: 0, offset: 3_008, length: 3_000 }));
        assert_eq!(plan.decodes[1].fetched_offset, 450);
        assert!(plan.parts(0).is_empty(), "no rank reads encoded bytes of a decoded unit");
    }

    #[test]
    fn what_finds_no_room_is_left_to_the_ranks() {
        let located = located(&[(0, 0, 400, 30_000, 1)]);
        let plan = planned(&located, &LIMITS, 8_192);
        assert_eq!(plan.decoded(0), None);
        assert_eq!(plan.parts(0), [Part { block: Part::IN_PLACE, offset: 0, length: 400 }]);
        assert!(plan.blocks.is_empty() && plan.reads.is_empty() && plan.decodes.is_empty());
    }

    #[test]
    fn stored_units_beside_coded_ones_have_blocks_of_their_own() {
        let located = located(&[(0, 0, 400, 400, 0), (0, 400, 500, 900, 1)]);
        let plan = planned(&located, &LIMITS, 1 << 20);
        assert_eq!(plan.blocks.iter().map(|block| block.decodes).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(plan.parts(0), [Part { block: 0, offset: 0, length: 400 }]);
        assert_eq!((plan.decoded(0), plan.decoded(1).map(|part| part.block)), (None, Some(1)));
    }

    proptest! {
        #[test]
        fn every_unit_is_decoded_from_its_own_bytes_or_left(
            units in proptest::collection::vec((0_u32..2, 0_u64..20_000, 1_u64..2_000, 1_u64..4_000, 0_u16..3), 1..40),
            gap_bytes in 0_u64..300, max_read in 1_u64..4_000, aligned in any::<bool>(), boundary in proptest::option::of(1_u64..6_000),
            block_bytes in 1_u64..9_000, reads_per_block in 1_u32..5, pages in 0_u64..60,
        ) {
            let align_bytes = if aligned { 512 } else { 1 };
            let limits = IoLimits {
                gap_bytes, align_bytes, block_bytes, reads_per_block, in_place_bytes: None,
                max_read_bytes: max_read.next_multiple_of(align_bytes),
                boundary_bytes: boundary.map(|bytes: u64| bytes.next_multiple_of(align_bytes)),
            };
            let located = located(&units);
            let plan = planned(&located, &limits, pages * 4096);
            let byte = |shard: ShardId, offset: u64| (offset.wrapping_mul(31) ^ (offset >> 8) ^ u64::from(shard.0)) as u8;
            let mut seen = vec![false; units.len()];
            for (number, block) in plan.blocks.iter().enumerate().filter(|(_, block)| block.decodes > 0) {
                let reads = &plan.reads[block.first_read as usize..(block.first_read + block.reads) as usize];
                let mut fetched = vec![0_u8; reads.iter().map(|read| read.block_offset + read.length).max().unwrap_or(0) as usize];
                let mut end = 0;
                for read in reads {
                    prop_assert!(read.length <= limits.max_read_bytes && read.block_offset >= end);
                    prop_assert!(read.file_offset % align_bytes == 0 && read.block_offset % align_bytes == 0);
                    end = read.block_offset + read.length;
                    for at in 0..read.length {
                        fetched[(read.block_offset + at) as usize] = byte(read.shard, read.file_offset + at);
                    }
                }
                let mut free = 0;
                for decode in &plan.decodes[block.first_decode as usize..(block.first_decode + block.decodes) as usize] {
                    let (shard, offset, length, decoded_bytes, _) = units[decode.unit as usize];
                    prop_assert_eq!((decode.encoded_bytes, decode.decoded_bytes), (length, decoded_bytes));
                    for at in 0..length {
                        prop_assert_eq!(fetched[(decode.fetched_offset + at) as usize], byte(ShardId(shard), offset + at));
                    }
                    prop_assert!(decode.block_offset >= free);
                    free = decode.block_offset + decoded_bytes;
                    prop_assert!(free <= block.length);
                    let part = Part { block: number as u32, offset: decode.block_offset, length: decoded_bytes };
                    prop_assert_eq!(plan.decoded(decode.unit), Some(part));
                    prop_assert!(!std::mem::replace(&mut seen[decode.unit as usize], true));
                }
            }
            for (number, (_, offset, length, _, chain)) in units.iter().enumerate() {
                if *chain == 0 || plan.decoded(number as u32).is_none() {
                    prop_assert!(!seen[number]);
                    prop_assert_eq!(plan.parts(number as u32).iter().map(|part| part.length).sum::<u64>(), *length);
                    if *chain > 0 {
                        prop_assert_eq!(plan.parts(number as u32)[0].offset, *offset);
                    }
                }
            }
        }
    }
}
