//! The index: sample ids to the places of their bytes.
//!
//! An [`Index`] reads a sidecar in memory of any kind, for example a sealed memfd that all
//! processes of a node map. Its other memory is a bounded number of expanded blocks ([`cache`]).
//! [`Index::locate`] sorts the ids by block, fetches each block once, and writes the locations in
//! the order of the ids.

mod cache;
mod guard;
mod names;
mod selection;
pub mod sidecar;
mod tiles;
mod units;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_io::Links;
use forebay_types::{
    CodecChain, Extent, Field, Located, Piece, SampleId, SamplePlaces, ShardId, Slice, Unit,
};

use crate::codec::{self, CodecError};
use crate::schema::Schema;
use crate::{Error, OpenOptions, SidecarError, Summary};
use cache::{Cache, Held};
use guard::Guard;
use names::Names;
pub use selection::Selection;
use sidecar::block::{Block, Limits, Part, PartPiece, RecordLocation};
use sidecar::{Contents, Meta, NUMBER_BYTES, RecordClass, ShardInfo, SharedUnits, StoredIn, decode};
use tiles::TiledColumn;
use units::UnitWork;

/// Memory for expanded blocks \[bytes\]: 2 M records, a quarter of what a budget of 128 MiB leaves
/// per process.
const EXPANDED_BYTES: u64 = 32 << 20;

/// Ids that are sorted at once: bounds the working memory of a call to 2 MiB, and positions to 16
/// bits.
const IDS_AT_ONCE: usize = 1 << 16;

/// Where the samples of a dataset lie.
pub struct Index {
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    contents: Arc<Contents>,
    fields: Vec<Field>,
    shards: Arc<[ShardBlocks]>,
    guards: Vec<Guard>,
    links: Links,
    /// For each column, where its blocks are if it is tiled.
    tiled: Arc<[Option<TiledColumn>]>,
    /// For each column and shard, where its shared units begin among their decoded bytes.
    unit_starts: Arc<[Vec<Vec<u64>>]>,
    cache: Cache<Block>,
    names: Option<Names>,
    /// Which records of the files are the samples; all of them without one.
    selection: Option<Arc<Selection>>,
}

impl Held for Block {
    fn bytes(&self) -> u64 {
        self.bytes()
    }
}

/// Which samples a shard has, and which blocks in every column that is not tiled.
#[derive(Clone, Copy, Debug)]
struct ShardBlocks {
    first_sample: u64,
    first_block: u64,
}

impl fmt::Debug for Index {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Index")
            .field("samples", &self.samples())
            .field("columns", &self.columns())
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

impl Index {
    /// Reads a sidecar of the dataset with this fingerprint.
    ///
    /// Header, description and directory are checked now, each block when it is first used.
    pub fn from_bytes(
        bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
        expected_fingerprint: u128,
    ) -> Result<Self, Error> {
        Self::read(bytes, expected_fingerprint)
            .map_err(|error| Error::Sidecar { path: PathBuf::from("dataset"), source: Box::new(error) })
    }

    pub(crate) fn read(
        bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
        expected_fingerprint: u128,
    ) -> Result<Self, SidecarError> {
        let contents = Contents::read((*bytes).as_ref(), expected_fingerprint)?;
        let (mut first_sample, mut first_block) = (0, 0);
        let shards = contents
            .meta
            .shards
            .iter()
            .map(|shard| {
                let blocks = ShardBlocks { first_sample, first_block };
                first_sample += shard.samples;
                first_block += shard.samples.div_ceil(u64::from(contents.header.block_records));
                blocks
            })
            .collect();
        let format = contents.meta.format;
        let guards = contents.meta.shards.iter().map(|shard| Guard::of(format, &shard.state)).collect();
        let fields = contents.meta.schema.fields(&contents.meta.summary);
        let cache = Cache::new(contents.first_name_block(), EXPANDED_BYTES);
        let names = Names::read((*bytes).as_ref(), &contents)?;
        let block_records = u64::from(contents.header.block_records);
        let tiled = (0..contents.meta.columns.len())
            .map(|column| {
                contents.meta.tiles(column)?;
                let records = (0..contents.meta.shards.len())
                    .map(|shard| contents.meta.column_records(column, shard, &contents.grids[column]));
                Some(TiledColumn::new(records, block_records))
            })
            .collect();
        let unit_starts = (0..contents.meta.columns.len())
            .map(|column| contents.meta.shared_units(column).map_or_else(Vec::new, SharedUnits::starts))
            .collect();
        Ok(Self {
            bytes,
            contents: Arc::new(contents),
            fields,
            shards,
            guards,
            tiled,
            unit_starts,
            cache,
            names,
            selection: None,
            links: Links::Refused,
        })
    }

    /// The same index with separate expanded blocks. No lock is shared: a process that forks
    /// while threads use the one can use the other in its child.
    #[must_use]
    pub fn apart(&self) -> Self {
        Self {
            bytes: Arc::clone(&self.bytes),
            contents: Arc::clone(&self.contents),
            fields: self.fields.clone(),
            shards: Arc::clone(&self.shards),
            guards: self.guards.clone(),
            links: self.links,
            tiled: Arc::clone(&self.tiled),
            unit_starts: Arc::clone(&self.unit_starts),
            cache: Cache::new(self.contents.first_name_block(), EXPANDED_BYTES),
            names: self.names.as_ref().map(|names| names.apart(&self.contents)),
            selection: self.selection.clone(),
        }
    }

    /// Its sidecar with another schema.
    pub(crate) fn sidecar_with(&self, schema: Schema) -> Vec<u8> {
        let Contents { header, meta, .. } = &*self.contents;
        let meta = Meta { schema, ..meta.clone() };
        sidecar::assemble(header, &meta, &(*self.bytes).as_ref()[header.meta_range().end..])
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.selection.as_ref().map_or(self.records(), |selection| selection.samples())
    }

    /// Number of samples that the files have, selected or not.
    pub fn records(&self) -> u64 {
        self.contents.header.samples
    }

    /// Bytes of the samples; of a selection, estimated from its number of samples.
    pub fn record_bytes(&self) -> u64 {
        let bytes = u128::from(self.summary().record_bytes) * u128::from(self.samples());
        (bytes / u128::from(self.records().max(1))) as u64
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.contents.header.columns as usize
    }

    /// How columns become fields.
    pub fn schema(&self) -> &Schema {
        &self.meta().schema
    }

    /// The fields of a sample.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The files.
    pub fn shards(&self) -> &[ShardInfo] {
        &self.meta().shards
    }

    /// Sizes and counts.
    pub fn summary(&self) -> &Summary {
        &self.meta().summary
    }

    /// All contents of the sidecar except the locations.
    pub fn meta(&self) -> &Meta {
        &self.contents.meta
    }

    /// Memory that expanded blocks take now \[bytes\].
    pub fn expanded_bytes(&self) -> u64 {
        self.cache.held_bytes()
    }

    /// Finds the units and slices of samples, in the order of `ids`; what `out` held is dropped. Of
    /// a selection, `ids` are places in it.
    ///
    /// Fails for an id that does not exist ([`Error::Usage`]) and for a damaged block
    /// ([`Error::Sidecar`]).
    pub fn locate(&self, ids: &[SampleId], out: &mut Located) -> Result<(), Error> {
        let columns = self.columns();
        out.clear(columns);
        let mut work = Work::default();
        for ids in ids.chunks((IDS_AT_ONCE / columns).max(1)) {
            match &self.selection {
                None => self.locate_some(ids, &mut work, out)?,
                Some(selection) => self.locate_some(&selection.records_of(ids)?, &mut work, out)?,
            }
        }
        Ok(())
    }

    fn locate_some(&self, ids: &[SampleId], work: &mut Work, out: &mut Located) -> Result<(), Error> {
        let columns = self.columns();
        let Work { keys, places, exceptional, units } = work;
        keys.clear();
        for (position, id) in ids.iter().enumerate() {
            let (block, index) = self.block_of(*id)?;
            keys.push(block << 32 | index << 16 | position as u64);
        }
        if !keys.is_sorted_by_key(|key| key >> 32) {
            keys.sort_unstable();
        }
        places.clear();
        places.resize(ids.len() * columns, (RecordLocation::default(), 0, 0));
        exceptional.clear();
        for group in keys.chunk_by(|left, right| left >> 32 == right >> 32) {
            let within = group[0] >> 32;
            let shard = self.shard_of(|shard| shard.first_block <= within);
            for column in (0..columns).filter(|column| self.tiled[*column].is_none()) {
                self.with_block(column, shard, within, |block| {
                    for key in group {
                        let (index, position) = (*key as u32 >> 16, *key as u16);
                        let place = block.place(index as usize);
                        let held = exceptional.len() as u32;
                        if place.is_exception() {
                            exceptional.push(Arc::clone(block));
                        }
                        places[usize::from(position) * columns + column] = (place, shard as u32, held);
                    }
                })?;
            }
        }
        for (entry, (place, shard, held)) in places.iter().enumerate() {
            let shard = ShardId(*shard);
            if self.tiled[entry % columns].is_some() {
                let id = ids[entry / columns];
                let (shard, first_sample) = self.shard_of_record(id)?;
                self.locate_row(entry % columns, shard, id.0 - first_sample, units, out)?;
            } else if place.is_exception() {
                push_exception(exceptional[*held as usize].exception(*place), shard, out);
            } else {
                let (class, start, length) = place.plain();
                let class = &self.meta().columns[entry % columns][usize::from(class)];
                match class.stored_in {
                    StoredIn::Shard => push_plain(class, shard, start, length, out),
                    // There are at most 2^32 samples where they have files of their own.
                    StoredIn::File => {
                        push_plain(class, ShardId(ids[entry / columns].0 as u32), 0, length, out);
                    }
                    StoredIn::Number => push_number(start, out),
                    StoredIn::Unit => {
                        self.locate_in_unit(entry % columns, shard, (start, length), units, out)?;
                    }
                }
            }
            out.end_column();
        }
        Ok(())
    }

    /// The shard that holds a record, and the first record of that shard.
    #[inline]
    pub fn shard_of_record(&self, id: SampleId) -> Result<(usize, u64), Error> {
        if id.0 >= self.records() {
            return Err(no_sample(id, self.records()));
        }
        let shard = self.shard_of(|shard| shard.first_sample <= id.0);
        Ok((shard, self.shards[shard].first_sample))
    }

    /// Block (within a column) and index in the block of a sample.
    #[inline]
    fn block_of(&self, id: SampleId) -> Result<(u64, u64), Error> {
        let (shard, first_sample) = self.shard_of_record(id)?;
        let first_block = self.shards[shard].first_block;
        let block_records = u64::from(self.contents.header.block_records);
        let within = id.0 - first_sample;
        Ok((first_block + within / block_records, within % block_records))
    }

    /// The last shard that `begins` at or before the target. Shards without samples are never
    /// found.
    #[inline]
    fn shard_of(&self, begins: impl Fn(&ShardBlocks) -> bool) -> usize {
        if self.shards.len() == 1 { 0 } else { self.shards.partition_point(begins) - 1 }
    }

    /// Hands the block `within` its column, which belongs to `shard`, to `each`.
    fn with_block<T>(
        &self,
        column: usize,
        shard: usize,
        within: u64,
        each: impl FnOnce(&Arc<Block>) -> T,
    ) -> Result<T, Error> {
        let number = (self.contents.first_blocks[column] + within) as usize;
        let expand = || self.expand(number, column, shard, within);
        self.cache.with(number, expand, each).map_err(|error| self.unusable(error))
    }

    fn expand(&self, number: usize, column: usize, shard: usize, block: u64) -> Result<Block, SidecarError> {
        let contents = &self.contents;
        let error = |error| contents.block_error(number, error);
        let body = sidecar::unpack_block(self.stored_block(number)?).map_err(error)?;
        let block_records = u64::from(contents.header.block_records);
        let (meta, summary) = (self.meta(), self.summary());
        let grids = &contents.grids[column];
        let tiled = self.tiled[column].as_ref();
        let first_block = tiled.map_or(self.shards[shard].first_block, |tiled| tiled.first_block(shard));
        let left = meta.column_records(column, shard, grids) - (block - first_block) * block_records;
        let limits = Limits {
            records: left.min(block_records) as usize,
            data: meta.shards[shard].data_range(),
            decoded: 0..self.unit_starts[column]
                .get(shard)
                .and_then(|starts| starts.last())
                .map_or(0, |end| *end),
            // The codecs of a chunk are checked later.
            lengths: tiled
                .map_or((summary.shortest_record_bytes, summary.longest_record_bytes), |_| (0, u64::MAX)),
            chains: meta.codec_chains.len(),
        };
        let expanded = decode(&body, &meta.columns[column], &limits).map_err(error)?;
        if let Some(tiles) = meta.tiles(column) {
            let grid = &grids[tiles.shards[shard] as usize];
            self.check_chunks(column, grid, &expanded, limits.records).map_err(error)?;
        }
        Ok(expanded)
    }

    /// Number of records of a block of a shard.
    fn records_of(&self, shard: usize, block: u64) -> usize {
        let block_records = u64::from(self.contents.header.block_records);
        let left =
            self.meta().shards[shard].samples - (block - self.shards[shard].first_block) * block_records;
        left.min(block_records) as usize
    }

    fn stored_block(&self, number: usize) -> Result<&[u8], SidecarError> {
        self.contents.stored_block((*self.bytes).as_ref(), number)
    }

    fn unusable(&self, error: SidecarError) -> Error {
        let name = self.shards().first().map_or("dataset", |shard| &shard.name);
        Error::Sidecar { path: PathBuf::from(name), source: Box::new(error) }
    }

    /// Compares the checksums of all blocks.
    pub(crate) fn check_blocks(&self) -> Result<(), SidecarError> {
        (0..self.contents.block_checksums.len()).try_for_each(|number| self.stored_block(number).map(|_| ()))
    }

    /// Whether any unit has to be decoded.
    pub fn is_coded(&self) -> bool {
        self.meta().codec_chains.len() > 1
    }

    /// Decodes a unit: reverses its chain of codecs. The output must fill `into`, which is
    /// `decoded_bytes` long.
    pub fn decode_unit(&self, codecs: CodecChain, encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
        let chain = self.meta().codec_chains.get(usize::from(codecs.0));
        codec::decode(chain.expect("a chain of a unit that this index located"), encoded, into)
    }

    /// Checks the first bytes of a unit after a read: `extent` is the unit's first, `head` its
    /// first bytes.
    ///
    /// LMDB: the header of the overflow run (page number, type, number of pages). Units of formats
    /// without such a check have guard 0, for which this does nothing. `head` needs only the
    /// format's header (24 bytes).
    pub fn check_unit(&self, unit: &Unit, extent: Extent, head: &[u8]) -> Result<(), Error> {
        if unit.guard == 0 {
            return Ok(());
        }
        let Some((shard, guard)) = self.guarded(extent) else {
            return Err(Error::Usage {
                message: format!("there is no shard {}", extent.shard.0),
                hint: String::new(),
            });
        };
        guard.check_head(unit.guard, extent, head, Path::new(&shard.name))
    }

    /// Whether [`Index::check_data`] checks records: the format keeps a checksum of every one, or
    /// the caller stated a vocabulary. Checksums of chunks are codecs, and always checked.
    pub fn has_checksums(&self) -> bool {
        self.has_vocabulary() || self.guards.iter().any(|guard| matches!(guard, Guard::RecordChecksum))
    }

    /// Whether the caller stated a vocabulary, so that every record is checked.
    pub fn has_vocabulary(&self) -> bool {
        self.guards.iter().any(|guard| matches!(guard, Guard::Vocabulary { .. }))
    }

    /// The same index, read as the caller chose: tokens are checked to be below a number of ids,
    /// symbolic links are followed.
    #[must_use]
    pub(crate) fn adapted(mut self, options: &OpenOptions) -> Self {
        self.links = if options.follow_symlinks { Links::Followed } else { Links::Refused };
        let ids = options.tokens.as_ref().and_then(|tokens| tokens.vocabulary);
        if let (Some(ids), [field]) = (ids, &self.fields[..]) {
            self.guards = vec![Guard::Vocabulary { ids, dtype: field.dtype }; self.guards.len()];
        }
        self
    }

    /// Checks the data of a stored record, which lies at `extent` between `head` and `tail`,
    /// against their checksum, if the format keeps one.
    pub fn check_data(&self, extent: Extent, head: &[u8], data: &[u8], tail: &[u8]) -> Result<(), Error> {
        let Some((shard, guard)) = self.guarded(extent) else { return Ok(()) };
        guard.check_data([head, data, tail], extent.offset, Path::new(&shard.name))
    }

    /// The same for a stored unit of one extent that was read whole.
    pub(crate) fn check_record(&self, unit: &Unit, extent: Extent, bytes: &[u8]) -> Result<(), Error> {
        match self.guarded(extent) {
            Some((shard, guard)) if unit.pieces == 1 && unit.codecs == CodecChain::STORED => {
                guard.check_record(bytes, extent.offset, Path::new(&shard.name))
            }
            _ => Ok(()),
        }
    }

    /// The shard of an extent, and how it is checked.
    fn guarded(&self, extent: Extent) -> Option<(&ShardInfo, &Guard)> {
        let number = extent.shard.0 as usize;
        self.shards().get(number).zip(self.guards.get(number))
    }
}

/// Working memory of a call.
#[derive(Default)]
struct Work {
    /// For each id its block, its index in the block (16 bits) and its position in the call (16
    /// bits).
    keys: Vec<u64>,
    /// Location, shard and, for exceptions, number in `exceptional`.
    places: Vec<(RecordLocation, u32, u32)>,
    /// Blocks of the exceptions that were found.
    exceptional: Vec<Arc<Block>>,
    /// Units that samples share, found so far.
    units: UnitWork,
}

#[inline]
fn no_sample(id: SampleId, samples: u64) -> Error {
    Error::Usage {
        message: format!("there is no sample {}: the dataset has {samples} samples", id.0),
        hint: String::new(),
    }
}

fn push_plain(class: &RecordClass, shard: ShardId, start: u64, length: u64, out: &mut Located) {
    let extent = Extent { shard, offset: start, length: length + class.margin_bytes() };
    let guard = if class.guard { start / u64::from(class.align_bytes) } else { 0 };
    let unit = out.push_stored_unit(extent, guard);
    out.push_slice(Slice { unit, offset: u64::from(class.head_bytes), length });
}

fn push_number(number: u64, out: &mut Located) {
    let literal = out.push_literal(&number.to_le_bytes());
    let unit = out.push_unit(&[literal], CodecChain::STORED, NUMBER_BYTES, 0);
    out.push_slice(Slice { unit, offset: 0, length: NUMBER_BYTES });
}

fn push_exception(parts: &[Part], shard: ShardId, out: &mut Located) {
    for part in parts {
        let pieces = push_pieces(part, shard, out);
        let unit = out.push_unit(&pieces, CodecChain(part.codecs), part.decoded_bytes, part.guard);
        out.push_slice(Slice { unit, offset: part.offset, length: part.length });
    }
}

/// The pieces of a unit that is described in full.
fn push_pieces(part: &Part, shard: ShardId, out: &mut Located) -> Vec<Piece> {
    part.pieces
        .iter()
        .map(|piece| match piece {
            PartPiece::Extent { offset, length } => {
                Piece::Extent(Extent { shard, offset: *offset, length: *length })
            }
            PartPiece::Literal(bytes) => out.push_literal(bytes),
        })
        .collect()
}

impl SamplePlaces for Index {
    type Error = Error;

    fn samples(&self) -> u64 {
        self.samples()
    }

    fn shard_bytes(&self) -> Vec<u64> {
        if self.has_sample_files() {
            return Vec::new();
        }
        self.shards().iter().map(|shard| shard.bytes).collect()
    }

    fn locate(&self, ids: &[SampleId], out: &mut Located) -> Result<(), Error> {
        self.locate(ids, out)
    }
}
