//! Decoding units: for the whole node in a reader, or for one sample where no reader did.
//!
//! Readers decode what they fetched for a block of coded units straight into the block, once for
//! all ranks. Who finds no such block, because the ring had no room, the reader met an error, or
//! the rank was away, reads the unit and decodes it himself, and keeps the last one of each column:
//! samples that follow each other often share it.
//!
//! Where the order comes back to units, each process keeps those that it decoded within the memory
//! that is decided for that (`forebay_plan::UnitFacts`), and copies them instead.

use std::sync::Arc;
use std::time::Instant;

use forebay_format::UnitKey;
use forebay_plan::{Block, Decode};
use forebay_types::Located;

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

/// Fills a block with the units that this process keeps; false if it lacks one.
pub(crate) fn fill_from_kept(
    context: &Context,
    planned: &PlannedSegment,
    block: &Block,
    memory: &mut [u8],
) -> bool {
    let (first, count) = (block.first_decode as usize, block.decodes as usize);
    let kept = |decode: &Decode| context.kept_unit(&planned.located, decode.unit);
    let decodes = &planned.plan.decodes[first..first + count];
    let Some(units) = decodes.iter().map(kept).collect::<Option<Vec<_>>>() else { return false };
    for (decode, unit) in decodes.iter().zip(units) {
        memory[decode.block_offset as usize..][..unit.len()].copy_from_slice(&unit);
    }
    true
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
        let is_sound =
            context.index.decode_unit(codecs, &fetched[encoded], &mut memory[into.clone()]).is_ok();
        if is_sound && context.decoded.would_keep(decode.decoded_bytes) {
            context.keep_unit(&planned.located, decode.unit, Arc::new(memory[into].to_vec()));
        }
        is_sound
    });
    count_since(context.slot(), Counter::DecodeNs, begun);
    decoded
}

impl Context {
    /// A unit that this process keeps.
    pub(crate) fn kept_unit(&self, located: &Located, unit: u32) -> Option<Arc<Vec<u8>>> {
        self.decoded.get(UnitKey::of(located, unit)?, decoded_bytes(located, unit))
    }

    /// Keeps a unit, if it has room.
    pub(crate) fn keep_unit(&self, located: &Located, unit: u32, bytes: Arc<Vec<u8>>) {
        if let Some(key) = UnitKey::of(located, unit) {
            self.decoded.keep(key, bytes);
        }
    }
}

/// The unit that was decoded last.
#[derive(Default)]
pub(crate) struct LastUnit {
    key: Option<UnitKey>,
    pub(crate) bytes: Arc<Vec<u8>>,
}

impl LastUnit {
    /// Whether it is this unit of `located`.
    pub(crate) fn is(&self, located: &Located, unit: u32) -> bool {
        self.key.is_some()
            && self.key == UnitKey::of(located, unit)
            && self.bytes.len() as u64 == decoded_bytes(located, unit)
    }

    /// Memory for this unit, that of the last one where no one else has it.
    pub(crate) fn begin(&mut self, located: &Located, unit: u32) -> Vec<u8> {
        self.key = None;
        let mut bytes = Arc::into_inner(std::mem::take(&mut self.bytes)).unwrap_or_default();
        bytes.clear();
        bytes.resize(decoded_bytes(located, unit) as usize, 0);
        bytes
    }

    /// Takes the bytes of this unit.
    pub(crate) fn set(&mut self, located: &Located, unit: u32, bytes: Arc<Vec<u8>>) {
        self.key = UnitKey::of(located, unit);
        self.bytes = bytes;
    }
}

fn decoded_bytes(located: &Located, unit: u32) -> u64 {
    located.units()[unit as usize].decoded_bytes
}
