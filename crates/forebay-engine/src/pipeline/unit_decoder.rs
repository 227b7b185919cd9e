//! Decoding units: for the whole node in a reader, or for one sample where no reader did.
//!
//! Readers decode what they fetched for a block of coded units straight into the block, once for
//! all ranks. Who finds no such block, because the ring had no room, the reader met an error, or
//! the rank was away, reads the unit and decodes it himself, and keeps the last one of each column:
//! samples that follow each other often share it.

use std::time::Instant;

use forebay_plan::Block;
use forebay_types::{CodecChain, Extent, Located, Piece};

use crate::pipeline::context::Context;
use crate::pipeline::plan_queue::PlannedSegment;
use crate::shm::counters::{Counter, count_since};

/// Alignment of what is fetched \[bytes\]: a page, which `O_DIRECT` needs.
const ALIGN: usize = 4096;

/// A reader's own memory for encoded bytes.
#[derive(Default)]
pub(crate) struct Fetched {
    memory: Vec<u8>,
}

impl Fetched {
    /// So many bytes, aligned; what they hold is not said.
    pub(crate) fn bytes(&mut self, length: usize) -> &mut [u8] {
        if self.memory.len() < length + ALIGN {
            self.memory = vec![0; length + ALIGN];
        }
        let start = self.memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        &mut self.memory[start..start + length]
    }
}

/// Decodes the units of a block into it; false where one is not what its codecs would have written.
pub(crate) fn decode_block(
    context: &Context,
    planned: &PlannedSegment,
    block: &Block,
    fetched: &[u8],
    memory: &mut [u8],
) -> bool {
    let begun = Instant::now();
    let (first, count) = (block.first_decode as usize, block.decodes as usize);
    let decoded = planned.plan.decodes[first..first + count].iter().all(|decode| {
        let encoded = decode.fetched_offset as usize..(decode.fetched_offset + decode.encoded_bytes) as usize;
        let into = decode.block_offset as usize..(decode.block_offset + decode.decoded_bytes) as usize;
        let codecs = planned.located.units()[decode.unit as usize].codecs;
        context.index.decode_unit(codecs, &fetched[encoded], &mut memory[into]).is_ok()
    });
    count_since(context.slot(), Counter::DecodeNs, begun);
    decoded
}

/// The unit that was decoded last.
#[derive(Default)]
pub(crate) struct LastUnit {
    key: Option<(Extent, CodecChain)>,
    pub(crate) bytes: Vec<u8>,
}

impl LastUnit {
    /// Whether it is this unit of `located`.
    pub(crate) fn is(&self, located: &Located, unit: u32) -> bool {
        self.key.is_some()
            && self.key == key(located, unit)
            && self.bytes.len() as u64 == decoded_bytes(located, unit)
    }

    /// Takes the memory for this unit; [`LastUnit::keep`] is called when it is filled.
    pub(crate) fn begin(&mut self, located: &Located, unit: u32) -> &mut [u8] {
        self.key = None;
        self.bytes.clear();
        self.bytes.resize(decoded_bytes(located, unit) as usize, 0);
        &mut self.bytes
    }

    /// Says that the memory holds this unit.
    pub(crate) fn keep(&mut self, located: &Located, unit: u32) {
        self.key = key(located, unit);
    }
}

fn decoded_bytes(located: &Located, unit: u32) -> u64 {
    located.units()[unit as usize].decoded_bytes
}

/// What tells a unit from others of the data set; nothing for one that stands in no file.
fn key(located: &Located, unit: u32) -> Option<(Extent, CodecChain)> {
    match located.pieces()[located.unit_pieces(unit)].first()? {
        Piece::Extent(extent) => Some((*extent, located.units()[unit as usize].codecs)),
        Piece::Literal { .. } => None,
    }
}
