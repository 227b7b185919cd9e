//! Locating samples in tiled columns: from the row of a sample to its chunks, from the chunks to
//! units.
//!
//! A chunk that has to be decoded is one unit for all samples of a call, so it is read and decoded
//! once. Of a stored chunk a sample needs its own row only, which is a unit; rows of chunks that
//! were never written are units too.

use std::sync::Arc;

use forebay_types::{CodecChain, Extent, Located, Piece, ShardId, Slice};

use super::units::{UnitNumbers, UnitWork};
use super::{Index, push_pieces};
use crate::Error;
use crate::codec::{self, Codec};
use crate::index::sidecar::block::{Block, BlockError, Part, PartPiece, RecordLocation};
use crate::index::sidecar::tiles::Grid;

/// A tiled column, prepared for look-ups.
#[derive(Debug)]
pub(super) struct TiledColumn {
    /// For each shard the number of its first block in the column.
    first_blocks: Vec<u64>,
}

/// Where a chunk is.
enum ChunkLocation {
    Plain { class: u8, start: u64, length: u64 },
    Exception(Arc<Block>, RecordLocation),
}

impl TiledColumn {
    pub(super) fn new(records: impl Iterator<Item = u64>, block_records: u64) -> Self {
        let first_blocks = records
            .scan(0, |blocks, records| {
                let first = *blocks;
                *blocks += records.div_ceil(block_records);
                Some(first)
            })
            .collect();
        Self { first_blocks }
    }

    /// The first block of a shard in its column.
    pub(super) fn first_block(&self, shard: usize) -> u64 {
        self.first_blocks[shard]
    }
}

impl Index {
    /// Adds the slices of row `row` of a shard of a tiled column.
    pub(super) fn locate_row(
        &self,
        column: usize,
        shard: usize,
        row: u64,
        work: &mut UnitWork,
        out: &mut Located,
    ) -> Result<(), Error> {
        let tiles = self.meta().tiles(column).expect("a tiled column");
        let grid = &self.contents.grids[column][tiles.shards[shard] as usize];
        let first_chunk = row / grid.rows * grid.row_chunks;
        work.parts.clear();
        for chunk in first_chunk..first_chunk + grid.row_chunks {
            let part = self.chunk_unit(column, shard, chunk, row % grid.rows, &mut work.units, out)?;
            work.parts.push(part);
        }
        for run in &grid.runs {
            let (unit, first) = work.parts[run.chunk as usize];
            out.push_slice(Slice { unit, offset: first + run.offset, length: run.length });
        }
        Ok(())
    }

    /// The unit that holds the row `row` of a chunk, and where the row begins in it.
    fn chunk_unit(
        &self,
        column: usize,
        shard: usize,
        chunk: u64,
        row: u64,
        units: &mut UnitNumbers,
        out: &mut Located,
    ) -> Result<(u32, u64), Error> {
        let tiles = self.meta().tiles(column).expect("a tiled column");
        let grid = &self.contents.grids[column][tiles.shards[shard] as usize];
        let row_start = row * grid.row_bytes;
        let key = (column as u32, shard as u32, chunk);
        if let Some(unit) = units.get(&key) {
            return Ok((*unit, row_start));
        }
        let shard_id = ShardId(shard as u32);
        let unit = match self.chunk_place(column, shard, chunk)? {
            ChunkLocation::Plain { class, start, length } => {
                let chain = CodecChain(tiles.chains[usize::from(class)]);
                if chain == CodecChain::STORED {
                    let extent =
                        Extent { shard: shard_id, offset: start + row_start, length: grid.row_bytes };
                    return Ok((out.push_stored_unit(extent, 0), 0));
                }
                let extent = Extent { shard: shard_id, offset: start, length };
                out.push_unit(&[Piece::Extent(extent)], chain, grid.chunk_bytes, 0)
            }
            ChunkLocation::Exception(block, place) => {
                let part = &block.exception(place)[0];
                let pieces = push_pieces(part, shard_id, out);
                if self.is_fill(part) {
                    return Ok((out.push_unit(&pieces, CodecChain(part.codecs), grid.row_bytes, 0), 0));
                }
                out.push_unit(&pieces, CodecChain(part.codecs), grid.chunk_bytes, part.guard)
            }
        };
        units.insert(key, unit);
        Ok((unit, row_start))
    }

    fn chunk_place(&self, column: usize, shard: usize, chunk: u64) -> Result<ChunkLocation, Error> {
        let block_records = u64::from(self.contents.header.block_records);
        let tiled = self.tiled[column].as_ref().expect("a tiled column");
        let within = tiled.first_block(shard) + chunk / block_records;
        self.with_block(column, shard, within, |block| {
            let place = block.place((chunk % block_records) as usize);
            if place.is_exception() {
                return ChunkLocation::Exception(Arc::clone(block), place);
            }
            let (class, start, length) = place.plain();
            ChunkLocation::Plain { class, start, length }
        })
    }

    fn is_fill(&self, part: &Part) -> bool {
        matches!(self.meta().codec_chains[usize::from(part.codecs)][..], [Codec::Fill { .. }])
    }

    /// Checks the chunks of a block against what they have to become.
    pub(super) fn check_chunks(
        &self,
        column: usize,
        grid: &Grid,
        block: &Block,
        records: usize,
    ) -> Result<(), BlockError> {
        let chains = &self.meta().codec_chains;
        let tiles = self.meta().tiles(column).expect("a tiled column");
        for place in (0..records).map(|index| block.place(index)) {
            let (chain, bytes, is_one) = if place.is_exception() {
                let parts = block.exception(place);
                let is_one = matches!(
                    parts,
                    [part] if part.offset == 0 && part.length == grid.chunk_bytes && part.decoded_bytes == grid.chunk_bytes
                );
                let bytes = parts.iter().flat_map(|part| &part.pieces).map(PartPiece::length).sum();
                (parts.first().map_or(0, |part| part.codecs), bytes, is_one)
            } else {
                let (class, _, length) = place.plain();
                (tiles.chains[usize::from(class)], length, true)
            };
            if !is_one || !codec::is_plausible(&chains[usize::from(chain)], bytes, grid.chunk_bytes) {
                let expected = format!("one of {} bytes when it is decoded", grid.chunk_bytes);
                return Err(BlockError::new("chunk", expected, format!("{bytes} bytes, chain {chain}")));
            }
        }
        Ok(())
    }
}
