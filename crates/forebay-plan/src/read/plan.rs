//! Input and output of planning: the I/O limits, and a plan of reads, blocks and decodes.
//!
//! A [`Plan`] of a segment states what each reader does ([`Block`], [`Read`], [`Decode`]), and
//! where the bytes of each sample lie afterwards ([`Part`]). `reads` and `decode_plan` make it.

use forebay_types::{Extent, Located, Piece, ShardId};
use serde::{Deserialize, Serialize};

/// Limits of requests that suit the storage; decided once per loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoLimits {
    /// Gap up to which two extents become one read \[bytes\].
    pub gap_bytes: u64,
    /// Largest read \[bytes\].
    pub max_read_bytes: u64,
    /// Alignment of offsets and lengths \[bytes\]: 1, or the page for `O_DIRECT`.
    pub align_bytes: u64,
    /// No read crosses a multiple of this in its file \[bytes\]: a stripe lies on one server, and a
    /// split read costs two requests, on disks two seeks. `None`: reads begin where a unit begins.
    pub boundary_bytes: Option<u64>,
    /// Smallest sample that is read in place if no other sample shares its read \[bytes\]; `None`:
    /// never.
    pub in_place_bytes: Option<u64>,
    /// Size up to which small reads share a block \[bytes\].
    pub block_bytes: u64,
    /// Number of reads up to which they share a block.
    pub reads_per_block: u32,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The file.
    pub shard: ShardId,
    /// First byte [bytes from the start of the file].
    pub file_offset: u64,
    /// Length \[bytes\].
    pub length: u64,
    /// Offset of its first byte in the block, or in the fetched bytes if the block's units are
    /// coded \[bytes\].
    pub block_offset: u64,
}

/// Reads that one reader makes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of the block in its session.
    pub sequence: u64,
    /// First byte in the staging ring.
    pub ring_offset: u64,
    /// Length \[bytes\].
    pub length: u64,
    /// The block may be filled after each rank has gathered all steps up to this one.
    pub after_step: Option<u64>,
    /// First of its reads in [`Plan::reads`].
    pub first_read: u32,
    /// Number of its reads.
    pub reads: u32,
    /// First of its units in [`Plan::decodes`], where its units are coded.
    pub first_decode: u32,
    /// Number of these; 0 if nothing has to be decoded.
    pub decodes: u32,
}

/// Location of a part of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index in [`Plan::blocks`], or [`Part::IN_PLACE`].
    pub block: u32,
    /// First byte in the block, or in the file.
    pub offset: u64,
    /// Length \[bytes\].
    pub length: u64,
}

impl Part {
    /// Value of `block` for "not in a block: read it from the file".
    pub const IN_PLACE: u32 = u32::MAX;

    /// Whether the ranks that need the bytes read them in place.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        self.block == Self::IN_PLACE
    }
}

/// A planned segment; its memory is reused from plan to plan.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Blocks, in ring order.
    pub blocks: Vec<Block>,
    /// Reads, by block.
    pub reads: Vec<Read>,
    /// Units that are decoded, by block.
    pub decodes: Vec<Decode>,
    /// For each unit, its decoded location; empty if no unit is coded.
    pub(crate) decoded: Vec<Part>,
    parts: Vec<Part>,
    part_starts: Vec<u32>,
}

impl Plan {
    /// Empties the plan and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.reads.clear();
        self.decodes.clear();
        self.decoded.clear();
        self.parts.clear();
        self.part_starts.clear();
    }

    /// Locations of a piece's bytes, in order; empty for literals.
    #[must_use]
    pub fn parts(&self, piece: u32) -> &[Part] {
        let piece = piece as usize;
        &self.parts[self.part_starts[piece] as usize..self.part_starts[piece + 1] as usize]
    }

    /// Location of a decoded unit; `None` if the ranks that need it decode it themselves.
    #[must_use]
    pub fn decoded(&self, unit: u32) -> Option<Part> {
        self.decoded.get(unit as usize).copied().filter(|part| !part.is_in_place())
    }

    /// Whether any bytes are left to the ranks that need them.
    #[must_use]
    pub fn leaves_in_place(&self) -> bool {
        self.parts.iter().chain(&self.decoded).any(Part::is_in_place)
    }

    /// A plan without blocks: the ranks that need a piece read it in place.
    #[must_use]
    pub fn in_place(located: &Located) -> Self {
        let mut plan = Self::default();
        plan.part_starts.push(0);
        for piece in located.pieces() {
            if let Piece::Extent(extent) = piece {
                plan.parts.push(PlacedPart::in_place(0, *extent).part);
            }
            plan.part_starts.push(plan.parts.len() as u32);
        }
        plan
    }

    /// Sorts parts in file order by piece: a counting sort, because most pieces have one part.
    pub(crate) fn sort_parts(&mut self, found: &[PlacedPart], pieces: usize) {
        self.part_starts.resize(pieces + 1, 0);
        for found in found {
            self.part_starts[found.piece as usize + 1] += 1;
        }
        for piece in 0..pieces {
            self.part_starts[piece + 1] += self.part_starts[piece];
        }
        self.parts.resize(found.len(), Part { block: Part::IN_PLACE, offset: 0, length: 0 });
        let mut next = self.part_starts.clone();
        for found in found {
            let place = &mut next[found.piece as usize];
            self.parts[*place as usize] = found.part;
            *place += 1;
        }
    }

    /// Bytes that the reads of all blocks fetch.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.reads.iter().map(|read| read.length).sum()
    }
}

/// A unit that is decoded after the reads of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decode {
    /// Index in [`Located::units`].
    pub unit: u32,
    /// Offset of its encoded bytes in the fetched bytes \[bytes\].
    pub fetched_offset: u64,
    /// Their length \[bytes\].
    pub encoded_bytes: u64,
    /// Offset of the decoded bytes in the block \[bytes\].
    pub block_offset: u64,
    /// Its length \[bytes\].
    pub decoded_bytes: u64,
}

/// A part of a piece and its location.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedPart {
    pub(crate) piece: u32,
    pub(crate) file_offset: u64,
    pub(crate) part: Part,
}

impl PlacedPart {
    pub(crate) fn in_place(piece: u32, extent: Extent) -> Self {
        let part = Part { block: Part::IN_PLACE, offset: extent.offset, length: extent.length };
        Self { piece, file_offset: extent.offset, part }
    }
}
