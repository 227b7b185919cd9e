//! Writes a sidecar: takes places in sample order, keeps only coded blocks.

use super::block::Entry;
use super::encode::encode;
use super::varint::put;
use super::{
    BLOCK_RECORDS, Class, HEADER_BYTES, Header, LARGEST_BODY_BYTES, Meta, ShardInfo, Summary, Tiles, pack,
};
use crate::codec::Codec;
use crate::container::Format;
use crate::schema::Schema;

/// Compression level of blocks and of the meta part.
///
/// Level 19 leaves at most 6 % less on the kinds of files measured (`cargo bench -p forebay-format`) and takes twice
/// the time or more; what is left is the entropy of sizes.
const LEVEL: i32 = 9;

/// Block packing: the body as it is.
pub(crate) const STORED: u8 = 0;
/// Block packing: the body as one zstd frame.
pub(crate) const ZSTD: u8 = 1;

/// Builds a sidecar in memory.
///
/// Call [`Writer::push`] for every sample and column, samples in order, and [`Writer::end_shard`] behind the last
/// sample of each shard. Where columns are [tiled](Writer::tile), `push` takes the entries of the others only, and
/// [`Writer::push_chunk`] those of chunks.
pub struct Writer {
    columns: Vec<Column>,
    codec_chains: Vec<Vec<Codec>>,
    samples: u64,
    shards: Vec<ShardInfo>,
    shard_samples: u64,
    summary: Summary,
}

struct Column {
    classes: Vec<Class>,
    tiles: Option<Tiles>,
    pending: Vec<Entry>,
    /// Packed blocks one behind the other, and the length of each \[bytes\].
    blocks: Vec<u8>,
    lengths: Vec<u32>,
    last_start: u64,
}

impl Writer {
    /// A writer for columns with these classes of records.
    pub fn new(columns: Vec<Vec<Class>>) -> Self {
        let summary = Summary {
            shortest_record_bytes: u64::MAX,
            class_records: columns.iter().map(|classes| vec![0; classes.len()]).collect(),
            ..Summary::default()
        };
        let columns = columns
            .into_iter()
            .map(|classes| Column {
                classes,
                tiles: None,
                pending: Vec::new(),
                blocks: Vec::new(),
                lengths: Vec::new(),
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

    /// Says that the records of a column are chunks of these shapes, before any is added; `tiles.shards` has an element
    /// for each shard.
    pub fn tile(&mut self, column: usize, tiles: Tiles) {
        self.columns[column].tiles = Some(tiles);
    }

    /// Whether a column is tiled.
    pub fn is_tiled(&self, column: usize) -> bool {
        self.columns[column].tiles.is_some()
    }

    /// The class of a tiled column for chunks with this codec chain; `None` where all classes have other ones.
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
    pub fn push_chunk(&mut self, column: usize, entry: Entry) {
        if let Entry::Plain { class, .. } = &entry {
            self.summary.class_records[column][usize::from(*class)] += 1;
        }
        self.columns[column].push(entry);
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
    pub fn push(&mut self, entries: impl IntoIterator<Item = Entry>) {
        let mut entries = entries.into_iter();
        let Self { columns, summary, .. } = self;
        for (number, column) in columns.iter_mut().enumerate().filter(|(_, column)| column.tiles.is_none()) {
            let entry = entries.next().expect("an entry for each column");
            let length = match &entry {
                Entry::Plain { class, start, length } => {
                    summary.class_records[number][usize::from(*class)] += 1;
                    summary.backward_records += u64::from(*start < column.last_start);
                    column.last_start = *start;
                    *length
                }
                Entry::Exception(parts) => parts.iter().map(|part| part.length).sum(),
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
        }
        self.shards.push(ShardInfo { samples: self.shard_samples, ..shard });
        self.shard_samples = 0;
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
            codec_chains: self.codec_chains.clone(),
            summary,
        };
        let json = serde_json::to_vec(&meta).expect("numbers and text are JSON");
        let stored_meta = pack(&json, LEVEL);
        let mut directory = Vec::new();
        for column in &self.columns {
            let mut rest = column.blocks.as_slice();
            for length in &column.lengths {
                let (block, behind) = rest.split_at(*length as usize);
                directory.extend(length.to_le_bytes());
                directory.extend(crc32c::crc32c(block).to_le_bytes());
                rest = behind;
            }
        }
        let blocks: usize = self.columns.iter().map(|column| column.blocks.len()).sum();
        let header = Header {
            fingerprint,
            samples: self.samples,
            columns: self.columns.len() as u32,
            block_records: BLOCK_RECORDS,
            blocks: self.columns.iter().map(|column| column.lengths.len()).sum::<usize>() as u32,
            meta_stored_bytes: stored_meta.len() as u32,
            meta_bytes: json.len() as u32,
            meta_checksum: crc32c::crc32c(&stored_meta),
            directory_checksum: crc32c::crc32c(&directory),
            file_bytes: (HEADER_BYTES + stored_meta.len() + directory.len() + blocks) as u64,
        };
        let mut out = Vec::with_capacity(header.file_bytes as usize);
        out.extend(header.encode());
        out.extend(stored_meta);
        out.extend(directory);
        for column in &self.columns {
            out.extend(&column.blocks);
        }
        out
    }
}

/// Counts records of one length.
fn count(summary: &mut Summary, length: u64, records: u64) {
    summary.record_bytes += length * records;
    summary.shortest_record_bytes = summary.shortest_record_bytes.min(length);
    summary.longest_record_bytes = summary.longest_record_bytes.max(length);
}

impl Column {
    /// The tiles with a chain for each class; those that were not needed are stored ones.
    fn described(&self) -> Option<Tiles> {
        let mut tiles = self.tiles.clone()?;
        tiles.chains.resize(self.classes.len(), 0);
        Some(tiles)
    }

    fn push(&mut self, entry: Entry) {
        self.pending.push(entry);
        if self.pending.len() == BLOCK_RECORDS as usize {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let body = encode(&self.pending, &self.classes);
        self.pending.clear();
        assert!(
            body.len() <= LARGEST_BODY_BYTES,
            "a block of {} bytes is larger than readers accept",
            body.len()
        );
        let packed = pack(&body, LEVEL);
        let before = self.blocks.len();
        if packed.len() + 3 < body.len() {
            self.blocks.push(ZSTD);
            put(&mut self.blocks, body.len() as u64);
            self.blocks.extend(packed);
        } else {
            self.blocks.push(STORED);
            self.blocks.extend(body);
        }
        self.lengths.push((self.blocks.len() - before) as u32);
    }
}
