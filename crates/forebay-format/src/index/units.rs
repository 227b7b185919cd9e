//! Units that many samples share: found once per call, so that each is read and decoded once.
//!
//! [Tiles](super::tiles) are one kind. The other are [`SharedUnits`](super::sidecar::SharedUnits):
//! a record is a range of their decoded bytes, and its unit is found by binary search.

use std::collections::HashMap;

use forebay_types::{CodecChain, Extent, Located, Piece, ShardId, Slice};

use super::Index;
use crate::{Error, SidecarError};

/// Numbers of units that were located for another sample of the call: by column, shard and place.
pub(super) type UnitNumbers = HashMap<(u32, u32, u64), u32>;

/// Working memory of a call.
#[derive(Default)]
pub(super) struct UnitWork {
    pub(super) units: UnitNumbers,
    /// For each chunk of a row its unit, and where the row begins in it.
    pub(super) parts: Vec<(u32, u64)>,
}

impl Index {
    /// Most samples that are decoded together; 1 where each sample is decoded alone, or none has to
    /// be.
    pub fn unit_samples(&self) -> u64 {
        if !self.is_coded() {
            return 1;
        }
        let tiles = self.contents.grids.iter().flatten().map(|grid| grid.rows);
        let units = self.meta().units.iter().flatten().map(|units| units.samples);
        tiles.chain(units).max().unwrap_or(1).max(1)
    }

    /// Adds the slice of a record that is a range of the decoded bytes of a shard's units.
    pub(super) fn locate_in_unit(
        &self,
        column: usize,
        shard: ShardId,
        (start, length): (u64, u64),
        work: &mut UnitWork,
        out: &mut Located,
    ) -> Result<(), Error> {
        if length == 0 {
            let unit = out.push_stored_unit(Extent { shard, offset: 0, length: 0 }, 0);
            out.push_slice(Slice { unit, offset: 0, length: 0 });
            return Ok(());
        }
        let starts = &self.unit_starts[column][shard.0 as usize];
        // Units of no bytes begin where the next one does.
        let place = starts.partition_point(|first| *first <= start) - 1;
        if starts.get(place + 1).is_none_or(|end| start + length > *end) {
            let found = format!("{length} bytes from decoded byte {start} on");
            let error = SidecarError::damaged(0, "record", "a range within one unit", found);
            return Err(self.unusable(error));
        }
        let units = self.meta().shared_units(column).expect("a column of shared units");
        let shared = units.shards[shard.0 as usize][place];
        let offset = start - starts[place];
        let codecs = CodecChain(shared.codecs);
        if codecs == CodecChain::STORED {
            let unit = out.push_stored_unit(Extent { shard, offset: shared.offset + offset, length }, 0);
            out.push_slice(Slice { unit, offset: 0, length });
            return Ok(());
        }
        let unit = *work.units.entry((column as u32, shard.0, place as u64)).or_insert_with(|| {
            let extent = Extent { shard, offset: shared.offset, length: shared.length };
            out.push_unit(&[Piece::Extent(extent)], codecs, shared.decoded_bytes, 0)
        });
        out.push_slice(Slice { unit, offset, length });
        Ok(())
    }
}
