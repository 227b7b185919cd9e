//! Plans the requests that fetch the units of a segment, their blocks, and the location of each
//! unit's bytes.
//!
//! 1. The extents of all units are sorted by shard and offset; what overlaps is read once.
//! 2. Neighbours become one read when the gap between them is at most `gap_bytes` and the read
//!    stays within `max_read_bytes`; a longer extent is cut. With `boundary_bytes` reads are cut at
//!    multiples of it instead.
//! 3. Reads are packed into blocks (one reader, one word): up to `block_bytes` and
//!    `reads_per_block`.
//! 4. Each block gets a slot in the staging ring. Blocks without a slot, and large samples that
//!    share their read with no other, are read *in place*: by the rank that needs them, directly
//!    from the file.
//!
//! With `align_bytes` > 1 (`O_DIRECT`) offsets and lengths of reads are aligned outwards; the last
//! read of a file may then extend past its end, where the reader expects a short read.

use forebay_types::{CodecChain, Extent, Located};

use crate::read::decodes::plan_coded;
use crate::read::plan::{Block, IoLimits, Part, PlacedPart, Plan, Read};
use crate::read::runs::{ReadRun, coalesce, cut, lonely_pieces, sorted_pieces, stored_pieces};
use crate::read::staging::StagingRing;
use crate::schedule::segment::Segment;

/// Plans a segment. A pure function of its arguments; `staging` moves on.
pub fn plan_into(
    segment: &Segment,
    located: &Located,
    shard_bytes: &[u64],
    limits: &IoLimits,
    staging: &mut StagingRing,
    plan: &mut Plan,
) {
    plan.clear();
    let coded = located.units().iter().any(|unit| unit.codecs != CodecChain::STORED);
    let mut sorted = sorted_pieces(located);
    if coded {
        let stored = stored_pieces(located);
        sorted.retain(|(_, piece)| stored[*piece as usize]);
    }
    let runs = coalesce(&sorted, shard_bytes, limits);
    let alone = lonely_pieces(located, limits);

    // Locations of each piece's bytes, in sorted order. Cut runs give a piece several entries.
    let mut packer =
        Packer { segment, limits, staging, plan, found: Vec::with_capacity(sorted.len()), open: None };
    for run in &runs {
        let pieces = &sorted[run.first as usize..(run.first + run.pieces) as usize];
        if let [(extent, piece)] = pieces
            && alone.get(*piece as usize).copied().unwrap_or(false)
        {
            packer.found.push(PlacedPart::in_place(*piece, *extent));
            continue;
        }
        packer.run(*run, pieces);
    }
    packer.finish();
    let mut found = packer.found;
    if coded {
        plan_coded(segment, located, limits, staging, plan, &mut found);
    }

    plan.sort_parts(&found, located.pieces().len());
}

struct Packer<'a> {
    segment: &'a Segment,
    limits: &'a IoLimits,
    staging: &'a mut StagingRing,
    plan: &'a mut Plan,
    found: Vec<PlacedPart>,
    open: Option<Open>,
}

/// A block that still takes reads.
struct Open {
    length: u64,
    first_read: usize,
    /// First entry of its contents in the list of parts.
    first_found: usize,
}

impl Packer<'_> {
    /// Turns a run into reads, each in a block, and records the locations of its pieces.
    fn run(&mut self, run: ReadRun, mut pieces: &[(Extent, u32)]) {
        for read in cut(run.extent, self.limits) {
            let begun = pieces.partition_point(|(extent, _)| extent.offset < read.end());
            self.read(read, &pieces[..begun]);
            // Pieces that reach into the next read stay; ended ones among them are passed over
            // there.
            let ended = pieces.iter().take_while(|(extent, _)| extent.end() <= read.end()).count();
            pieces = &pieces[ended..];
        }
    }

    fn read(&mut self, read: Extent, pieces: &[(Extent, u32)]) {
        let full = self.open.as_ref().is_some_and(|open| {
            open.length + read.length > self.limits.block_bytes
                || self.plan.reads.len() - open.first_read >= self.limits.reads_per_block as usize
        });
        if full {
            self.finish();
        }
        let (first_read, first_found) = (self.plan.reads.len(), self.found.len());
        let open = self.open.get_or_insert(Open { length: 0, first_read, first_found });
        // Only O_DIRECT needs alignment; cache lines keep copies fast.
        let block_offset = open.length.next_multiple_of(self.limits.align_bytes.max(64));
        open.length = block_offset + read.length;
        self.plan.reads.push(Read {
            shard: read.shard,
            file_offset: read.offset,
            length: read.length,
            block_offset,
        });
        let block = self.plan.blocks.len() as u32;
        for (extent, piece) in pieces {
            let from = extent.offset.max(read.offset);
            let to = extent.end().min(read.end());
            if from < to {
                let part = Part { block, offset: block_offset + (from - read.offset), length: to - from };
                self.found.push(PlacedPart { piece: *piece, file_offset: from, part });
            }
        }
    }

    /// Places the open block in the ring; if it does not fit, its pieces are read in place.
    fn finish(&mut self) {
        let Some(open) = self.open.take() else { return };
        let placed = self.staging.place(open.length, self.segment.first_step, self.segment.last_step);
        if let Some(slot) = placed {
            self.plan.blocks.push(Block {
                sequence: slot.sequence,
                ring_offset: slot.offset,
                length: open.length,
                after_step: slot.after_step,
                first_read: open.first_read as u32,
                reads: (self.plan.reads.len() - open.first_read) as u32,
                first_decode: 0,
                decodes: 0,
            });
            return;
        }
        self.plan.reads.truncate(open.first_read);
        for found in &mut self.found[open.first_found..] {
            found.part.block = Part::IN_PLACE;
            found.part.offset = found.file_offset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{Piece, ShardId, Slice};
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

    fn segment() -> Segment {
        Segment { first_step: 5, last_step: 5, demands: Vec::new() }
    }

    fn located(extents: &[(u32, u64, u64)]) -> Located {
        let mut located = Located::default();
        located.clear(1);
        for (shard, offset, length) in extents {
            let extent = Extent { shard: ShardId(*shard), offset: *offset, length: *length };
            let unit = located.push_stored_unit(extent, 0);
            located.push_slice(Slice { unit, offset: 0, length: *length });
            located.end_column();
        }
        located
    }

    fn planned(extents: &[(u32, u64, u64)], limits: &IoLimits, staging_bytes: u64) -> (Located, Plan) {
        let located = located(extents);
        let mut plan = Plan::default();
        let shard_bytes = [1 << 40, 1 << 40];
        plan_into(
            &segment(),
            &located,
            &shard_bytes,
            limits,
            &mut StagingRing::new(staging_bytes, 1000),
            &mut plan,
        );
        (located, plan)
    }

    #[test]
    fn near_neighbours_become_one_read_and_duplicates_are_read_once() {
        let (_, plan) =
            planned(&[(0, 500, 50), (0, 0, 400), (0, 500, 50), (0, 651, 10), (1, 0, 1)], &LIMITS, 1 << 20);
        let reads: Vec<_> =
            plan.reads.iter().map(|read| (read.shard.0, read.file_offset, read.length)).collect();
        assert_eq!(reads, [(0, 0, 550), (0, 651, 10), (1, 0, 1)]);
        assert_eq!(plan.parts(0), plan.parts(2));
        assert_eq!(plan.parts(0), [Part { block: 0, offset: 500, length: 50 }]);
        assert_eq!(plan.blocks.len(), 1);
    }

    #[test]
    fn a_long_extent_is_cut_into_reads_of_the_largest_size() {
        let (_, plan) = planned(&[(0, 10, 25_000)], &LIMITS, 1 << 20);
        assert_eq!(plan.reads.iter().map(|read| read.length).collect::<Vec<_>>(), [10_000, 10_000, 5_000]);
        assert_eq!(plan.parts(0).iter().map(|part| part.length).sum::<u64>(), 25_000);
        assert_eq!(plan.blocks.len(), 3);
    }

    #[test]
    fn reads_end_at_boundaries_and_are_whole_between_them() {
        let limits = IoLimits { boundary_bytes: Some(10_000), ..LIMITS };
        let (_, plan) =
            planned(&[(0, 3_000, 5_000), (0, 8_000, 4_000), (0, 12_000, 30_000)], &limits, 1 << 20);
        let reads: Vec<_> = plan.reads.iter().map(|read| (read.file_offset, read.length)).collect();
        let whole = [(10_000, 10_000), (20_000, 10_000), (30_000, 10_000)];
        assert_eq!(reads, [&[(3_000, 7_000)], &whole[..], &[(40_000, 2_000)]].concat());
        assert_eq!(plan.parts(1).iter().map(|part| part.length).collect::<Vec<_>>(), [2_000, 2_000]);
    }

    #[test]
    fn what_finds_no_room_is_read_in_place() {
        let (_, plan) = planned(&[(0, 10, 3_000), (0, 90_000, 9_000)], &LIMITS, 8192);
        assert_eq!(plan.parts(0), [Part { block: 0, offset: 0, length: 3_000 }]);
        assert_eq!(plan.parts(1), [Part { block: Part::IN_PLACE, offset: 90_000, length: 9_000 }]);
        assert_eq!(plan.read_bytes(), 3_000);
    }

    #[test]
    fn a_large_sample_that_shares_its_read_with_nobody_is_read_in_place() {
        let limits = IoLimits { in_place_bytes: Some(1_000), ..LIMITS };
        let extents = [
            (0, 0, 2_000),
            (0, 50_000, 2_000),
            (0, 52_000, 2_000),
            (0, 90_000, 10),
            (1, 0, 1_000),
            (1, 0, 1_000),
        ];
        let (_, plan) = planned(&extents, &limits, 1 << 20);
        let in_place: Vec<bool> = (0..6).map(|piece| plan.parts(piece)[0].is_in_place()).collect();
        assert_eq!(in_place, [true, false, false, false, false, false]);
    }

    #[test]
    fn direct_reads_are_aligned_outwards() {
        let limits = IoLimits { align_bytes: 4096, ..LIMITS };
        let (_, plan) = planned(&[(0, 5_000, 100), (0, 50_001, 4_096)], &limits, 1 << 20);
        for read in &plan.reads {
            assert_eq!((read.file_offset % 4096, read.length % 4096, read.block_offset % 4096), (0, 0, 0));
        }
        assert_eq!(plan.parts(0)[0].offset, 5_000 - 4_096);
    }

    #[test]
    fn literals_have_no_parts() {
        let mut located = Located::default();
        located.clear(1);
        let piece = located.push_literal(&[1, 2, 3]);
        located.push_unit(&[piece], CodecChain::STORED, 3, 0);
        located.end_column();
        let mut plan = Plan::default();
        plan_into(&segment(), &located, &[], &LIMITS, &mut StagingRing::new(1 << 20, 10), &mut plan);
        assert!(plan.parts(0).is_empty() && plan.blocks.is_empty());
    }

    fn limits() -> impl Strategy<Value = IoLimits> {
        (
            0_u64..300,
            1_u64..4000,
            prop_oneof![Just(1_u64), Just(512)],
            proptest::option::of(1_u64..6000),
            proptest::option::of(1_u64..600),
            1_u64..5000,
            1_u32..5,
        )
            .prop_map(
                |(gap_bytes, read, align_bytes, boundary, in_place_bytes, block_bytes, reads_per_block)| {
                    IoLimits {
                        gap_bytes,
                        max_read_bytes: read.next_multiple_of(align_bytes),
                        align_bytes,
                        boundary_bytes: boundary.map(|bytes: u64| bytes.next_multiple_of(align_bytes)),
                        in_place_bytes,
                        block_bytes,
                        reads_per_block,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn every_unit_finds_its_bytes_and_no_byte_is_read_twice(
            extents in proptest::collection::vec((0_u32..2, 0_u64..20_000, 1_u64..2_000), 1..60),
            limits in limits(), pages in 0_u64..40,
        ) {
            let (located, plan) = planned(&extents, &limits, pages * 4096);
            // The byte at an offset of a file is a function of both; run the reads on such files.
            let byte = |shard: ShardId, offset: u64| (offset.wrapping_mul(31) ^ (offset >> 8) ^ u64::from(shard.0)) as u8;
            let mut blocks: Vec<Vec<u8>> = plan.blocks.iter().map(|block| vec![0; block.length as usize]).collect();
            let mut read: Vec<(u32, u64, u64)> = Vec::new();
            for (block, bytes) in plan.blocks.iter().zip(&mut blocks) {
                prop_assert!(block.reads <= limits.reads_per_block.max(1));
                for one in &plan.reads[block.first_read as usize..(block.first_read + block.reads) as usize] {
                    prop_assert!(one.length <= limits.max_read_bytes);
                    if let Some(boundary) = limits.boundary_bytes {
                        prop_assert!(one.file_offset / boundary == (one.file_offset + one.length - 1) / boundary);
                    }
                    for at in 0..one.length {
                        bytes[(one.block_offset + at) as usize] = byte(one.shard, one.file_offset + at);
                    }
                    read.push((one.shard.0, one.file_offset, one.file_offset + one.length));
                }
            }
            read.sort_unstable();
            for pair in read.windows(2) {
                prop_assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?} overlap");
            }
            for (number, piece) in located.pieces().iter().enumerate() {
                let Piece::Extent(extent) = piece else { unreachable!() };
                let mut at = extent.offset;
                for part in plan.parts(number as u32) {
                    if part.is_in_place() {
                        prop_assert_eq!(part.offset, at);
                    } else {
                        let bytes = &blocks[part.block as usize][part.offset as usize..(part.offset + part.length) as usize];
                        for (step, found) in bytes.iter().enumerate() {
                            prop_assert_eq!(*found, byte(extent.shard, at + step as u64));
                        }
                    }
                    at += part.length;
                }
                prop_assert_eq!(at, extent.end());
            }
        }
    }

    #[test]
    fn a_plan_is_used_again_without_traces() {
        let extents = [(0, 0, 400), (0, 500, 50)];
        let located = located(&extents);
        let mut plan = Plan::default();
        for _ in 0..2 {
            plan_into(
                &segment(),
                &located,
                &[1 << 20],
                &LIMITS,
                &mut StagingRing::new(1 << 20, 10),
                &mut plan,
            );
            assert_eq!((plan.blocks.len(), plan.reads.len(), plan.parts(1).len()), (1, 1, 1));
        }
    }
}
