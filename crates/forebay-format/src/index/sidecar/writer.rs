//! Writes a sidecar: takes places in sample order, keeps only coded blocks.

use super::block::IndexEntry;
use super::encode::encode;
use super::header::{HEADER_BYTES, SidecarHeader};
use super::names::{Directory, encode_directories, encode_files};
use super::pack::{MAX_BODY_BYTES, STORED, ZSTD, pack};
use super::{BLOCK_RECORDS, Meta, RecordClass, ShardInfo, SharedUnit, SharedUnits, StoredIn, Tiles};
use crate::Format;
use crate::Summary;
use crate::codec::Codec;
use crate::schema::Schema;
use crate::varint::put;

/// Compression level of blocks and of the meta part.
///
/// Level 19 saves at most 6 % on the kinds of files measured (`cargo bench -p forebay-format`) and
/// takes at least twice the time; the rest is the entropy of sizes.
const LEVEL: i32 = 9;

/// Builds a sidecar in memory.
///
/// Call [`Writer::push`] for every sample and column, samples in order, and [`Writer::end_shard`]
/// after the last sample of each shard. Where columns are [tiled](Writer::tile), `push` takes the
/// entries of the others only, and [`Writer::push_chunk`] those of chunks.
pub struct Writer {
    columns: Vec<Column>,
    codec_chains: Vec<Vec<Codec>>,
    samples: u64,
    shards: Vec<ShardInfo>,
    shard_samples: u64,
    summary: Summary,
    /// Names of the files of each shard, where samples have files of their own.
    names: Vec<NameTable>,
}

struct Column {
    classes: Vec<RecordClass>,
    /// What is added to the classes of the shard's entries.
    first_class: u8,
    tiles: Option<Tiles>,
    units: Option<SharedUnits>,
    /// Units of the shard that is being written, and the size of what they decode to \[bytes\].
    shard_units: Vec<SharedUnit>,
    shard_unit_bytes: u64,
    pending: Vec<IndexEntry>,
    blocks: Blocks,
    last_start: u64,
}

/// Packed blocks back to back, and the length of each \[bytes\].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Blocks {
    bytes: Vec<u8>,
    lengths: Vec<u32>,
}

/// Names of the files of a folder, coded and packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NameTable {
    files: Blocks,
    directories: Blocks,
    directory_count: u64,
}

/// Packs the names of a folder during the scan.
#[derive(Debug, Default)]
pub(crate) struct NameTableWriter {
    pending_files: Vec<(u32, Vec<u8>)>,
    pending_directories: Vec<Directory>,
    files: Blocks,
    directories: Blocks,
    directory_count: u64,
}

impl NameTableWriter {
    /// Adds a directory and returns its number; the folder itself comes first.
    pub(crate) fn directory(&mut self, directory: Directory) -> u32 {
        let number = self.directory_count as u32;
        self.directory_count += 1;
        self.pending_directories.push(directory);
        if self.pending_directories.len() == BLOCK_RECORDS as usize {
            self.flush_directories();
        }
        number
    }

    /// Adds the file of the next sample.
    pub(crate) fn file(&mut self, directory: u32, name: Vec<u8>) {
        self.pending_files.push((directory, name));
        if self.pending_files.len() == BLOCK_RECORDS as usize {
            self.flush_files();
        }
    }

    /// What is kept.
    pub(crate) fn finish(mut self) -> NameTable {
        self.flush_files();
        self.flush_directories();
        let Self { files, directories, directory_count, .. } = self;
        NameTable { files, directories, directory_count }
    }

    fn flush_files(&mut self) {
        if !self.pending_files.is_empty() {
            self.files.push(&encode_files(&self.pending_files));
            self.pending_files.clear();
        }
    }

    fn flush_directories(&mut self) {
        if !self.pending_directories.is_empty() {
            self.directories.push(&encode_directories(&self.pending_directories));
            self.pending_directories.clear();
        }
    }
}

impl Writer {
    /// A writer for columns with these classes of records.
    pub fn new(columns: Vec<Vec<RecordClass>>) -> Self {
        let summary = Summary {
            shortest_record_bytes: u64::MAX,
            class_records: columns.iter().map(|classes| vec![0; classes.len()]).collect(),
            ..Summary::default()
        };
        let columns = columns
            .into_iter()
            .map(|classes| Column {
                units: classes
                    .iter()
                    .any(|class| class.stored_in == StoredIn::Unit)
                    .then(SharedUnits::default),
                shard_units: Vec::new(),
                shard_unit_bytes: 0,
                classes,
                first_class: 0,
                tiles: None,
                pending: Vec::new(),
                blocks: Blocks::default(),
                last_start: 0,
            })
            .collect();
        Self {
            columns,
            codec_chains: vec![Vec::new()],
            samples: 0,
            shards: Vec::new(),
            shard_samples: 0,
            summary,
            names: Vec::new(),
        }
    }

    /// Sets which of each column's classes is number 0 in the entries of the next shard.
    pub(crate) fn first_classes(&mut self, first_classes: &[u8]) {
        for (column, first_class) in self.columns.iter_mut().zip(first_classes) {
            column.first_class = *first_class;
        }
    }

    /// Number of samples so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The number of a codec chain, which is added if it is new.
    ///
    /// Panics with more chains than 16 bits can number.
    pub fn chain(&mut self, chain: &[Codec]) -> u16 {
        let known = self.codec_chains.iter().position(|known| known == chain);
        let number = known.unwrap_or_else(|| {
            self.codec_chains.push(chain.to_vec());
            self.codec_chains.len() - 1
        });
        u16::try_from(number).expect("few codec chains")
    }

    /// Declares that the records of a column are chunks of these shapes, before any is added;
    /// `tiles.shards` has an element for each shard.
    pub fn tile(&mut self, column: usize, tiles: Tiles) {
        self.columns[column].tiles = Some(tiles);
    }

    /// Whether a column is tiled.
    pub fn is_tiled(&self, column: usize) -> bool {
        self.columns[column].tiles.is_some()
    }

    /// The class of a tiled column for chunks with this codec chain; `None` where all classes have
    /// other ones.
    pub fn chunk_class(&mut self, column: usize, chain: &[Codec]) -> Option<u8> {
        let number = self.chain(chain);
        let Column { classes, tiles, .. } = &mut self.columns[column];
        let chains = &mut tiles.as_mut().expect("a tiled column").chains;
        if let Some(known) = chains.iter().position(|known| *known == number) {
            return Some(known as u8);
        }
        if chains.len() == classes.len() {
            return None;
        }
        chains.push(number);
        Some(chains.len() as u8 - 1)
    }

    /// Adds the next chunk of a tiled column.
    pub fn push_chunk(&mut self, column: usize, entry: IndexEntry) {
        if let IndexEntry::Plain { class, .. } = &entry {
            self.summary.class_records[column][usize::from(*class)] += 1;
        }
        self.columns[column].push(entry);
    }

    /// Adds a unit to the shard that is being written, whose decoded bytes records of `column` are
    /// ranges of. Returns the start of these bytes, for the records of class [`StoredIn::Unit`].
    /// `samples` is the number of samples that the unit holds records of.
    pub fn push_unit(
        &mut self,
        column: usize,
        (offset, length): (u64, u64),
        chain: &[Codec],
        decoded_bytes: u64,
        samples: u64,
    ) -> u64 {
        let codecs = self.chain(chain);
        let column = &mut self.columns[column];
        let units = column.units.as_mut().expect("a column with a class of shared units");
        units.samples = units.samples.max(samples);
        column.shard_units.push(SharedUnit { offset, length, codecs, decoded_bytes });
        let start = column.shard_unit_bytes;
        column.shard_unit_bytes += decoded_bytes;
        start
    }

    /// Adds samples of a dataset whose columns are all tiled.
    pub fn push_samples(&mut self, samples: u64) {
        self.samples += samples;
        self.shard_samples += samples;
        for tiles in self.columns.iter().filter_map(|column| column.tiles.as_ref()) {
            if samples > 0 {
                let bytes = tiles.sample_bytes().expect("shapes that were checked");
                count(&mut self.summary, bytes, samples);
            }
        }
    }

    /// Counts a record that is no sample.
    pub fn exclude(&mut self, name: &str) {
        *self.summary.excluded.entry(name.to_owned()).or_default() += 1;
    }

    /// Adds the entries of the next sample, one for each column that is not tiled.
    pub fn push(&mut self, entries: impl IntoIterator<Item = IndexEntry>) {
        let mut entries = entries.into_iter();
        let Self { columns, summary, .. } = self;
        for (number, column) in columns.iter_mut().enumerate().filter(|(_, column)| column.tiles.is_none()) {
            let mut entry = entries.next().expect("an entry for each column");
            let length = match &mut entry {
                IndexEntry::Plain { class, start, length } => {
                    *class += column.first_class;
                    summary.class_records[number][usize::from(*class)] += 1;
                    summary.backward_records += u64::from(*start < column.last_start);
                    column.last_start = *start;
                    *length
                }
                IndexEntry::Exception(parts) => parts.iter().map(|part| part.length).sum(),
            };
            count(summary, length, 1);
            column.push(entry);
        }
        self.push_samples(1);
    }

    /// Ends the shard that is being written. `shard.samples` is filled in.
    pub fn end_shard(&mut self, shard: ShardInfo) {
        for column in &mut self.columns {
            column.last_start = 0;
            if !column.pending.is_empty() {
                column.flush();
            }
            column.shard_unit_bytes = 0;
            if let Some(units) = &mut column.units {
                units.shards.push(std::mem::take(&mut column.shard_units));
            }
        }
        self.shards.push(ShardInfo { samples: self.shard_samples, ..shard });
        self.shard_samples = 0;
    }

    /// Adds the names of the files of the next shard, which is a folder.
    pub(crate) fn names(&mut self, names: NameTable) {
        self.names.push(names);
    }

    /// Sizes and counts so far.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The bytes of the sidecar.
    pub fn finish(&self, format: Format, schema: Schema, fingerprint: u128) -> Vec<u8> {
        let mut summary = self.summary.clone();
        if self.samples == 0 {
            summary.shortest_record_bytes = 0;
        }
        let meta = Meta {
            format,
            schema,
            shards: self.shards.clone(),
            columns: self.columns.iter().map(|column| column.classes.clone()).collect(),
            tiles: if self.columns.iter().all(|column| column.tiles.is_none()) {
                Vec::new()
            } else {
                self.columns.iter().map(Column::described).collect()
            },
            units: if self.columns.iter().all(|column| column.units.is_none()) {
                Vec::new()
            } else {
                self.columns.iter().map(|column| column.units.clone()).collect()
            },
            codec_chains: self.codec_chains.clone(),
            summary,
            directories: self.names.iter().map(|names| names.directory_count).collect(),
        };
        let columns = self.columns.iter().map(|column| &column.blocks);
        let names = self.names.iter().map(|names| &names.files);
        let directories = self.names.iter().map(|names| &names.directories);
        let blocks: Vec<&Blocks> = columns.chain(names).chain(directories).collect();
        let mut rest = Vec::new();
        for blocks in &blocks {
            let mut left = blocks.bytes.as_slice();
            for length in &blocks.lengths {
                let (block, behind) = left.split_at(*length as usize);
                rest.extend(length.to_le_bytes());
                rest.extend(crc32c::crc32c(block).to_le_bytes());
                left = behind;
            }
        }
        let directory_checksum = crc32c::crc32c(&rest);
        for blocks in &blocks {
            rest.extend(&blocks.bytes);
        }
        let header = SidecarHeader {
            fingerprint,
            samples: self.samples,
            columns: self.columns.len() as u32,
            block_records: BLOCK_RECORDS,
            blocks: blocks.iter().map(|blocks| blocks.lengths.len()).sum::<usize>() as u32,
            meta_stored_bytes: 0,
            meta_bytes: 0,
            meta_checksum: 0,
            directory_checksum,
            file_bytes: 0,
        };
        assemble(&header, &meta, &rest)
    }
}

/// A sidecar with this meta part before `rest`, its directory and blocks. Fills in what the header
/// says of the meta part.
pub(crate) fn assemble(header: &SidecarHeader, meta: &Meta, rest: &[u8]) -> Vec<u8> {
    let json = serde_json::to_vec(meta).expect("numbers and text are JSON");
    let stored_meta = pack(&json, LEVEL);
    let header = SidecarHeader {
        meta_stored_bytes: stored_meta.len() as u32,
        meta_bytes: json.len() as u32,
        meta_checksum: crc32c::crc32c(&stored_meta),
        file_bytes: (HEADER_BYTES + stored_meta.len() + rest.len()) as u64,
        ..header.clone()
    };
    [&header.encode()[..], &stored_meta, rest].concat()
}

/// Counts records of one length.
fn count(summary: &mut Summary, length: u64, records: u64) {
    summary.record_bytes += length * records;
    summary.shortest_record_bytes = summary.shortest_record_bytes.min(length);
    summary.longest_record_bytes = summary.longest_record_bytes.max(length);
}

impl Column {
    /// The tiles with a chain for each class; unused ones are stored.
    fn described(&self) -> Option<Tiles> {
        let mut tiles = self.tiles.clone()?;
        tiles.chains.resize(self.classes.len(), 0);
        Some(tiles)
    }

    fn push(&mut self, entry: IndexEntry) {
        self.pending.push(entry);
        if self.pending.len() == BLOCK_RECORDS as usize {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let body = encode(&self.pending, &self.classes);
        self.pending.clear();
        self.blocks.push(&body);
    }
}

impl Blocks {
    /// Packs a body.
    fn push(&mut self, body: &[u8]) {
        assert!(
            body.len() <= MAX_BODY_BYTES,
            "a block of {} bytes is larger than readers accept",
            body.len()
        );
        let packed = pack(body, LEVEL);
        let before = self.bytes.len();
        if packed.len() + 3 < body.len() {
            self.bytes.push(ZSTD);
            put(&mut self.bytes, body.len() as u64);
            self.bytes.extend(packed);
        } else {
            self.bytes.push(STORED);
            self.bytes.extend(body);
        }
        self.lengths.push((self.bytes.len() - before) as u32);
    }
}
