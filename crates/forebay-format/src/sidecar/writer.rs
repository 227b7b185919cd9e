//! Writes a sidecar: takes places in sample order, keeps only coded blocks.

use super::block::Entry;
use super::encode::encode;
use super::varint::put;
use super::{BLOCK_RECORDS, Class, HEADER_BYTES, Header, LARGEST_BODY_BYTES, Meta, ShardInfo, Summary, pack};
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
/// sample of each shard.
pub struct Writer {
    columns: Vec<Column>,
    samples: u64,
    shards: Vec<ShardInfo>,
    shard_samples: u64,
    summary: Summary,
}

struct Column {
    classes: Vec<Class>,
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
                pending: Vec::new(),
                blocks: Vec::new(),
                lengths: Vec::new(),
                last_start: 0,
            })
            .collect();
        Self { columns, samples: 0, shards: Vec::new(), shard_samples: 0, summary }
    }

    /// Number of samples so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Counts a record that is no sample.
    pub fn exclude(&mut self, name: &str) {
        *self.summary.excluded.entry(name.to_owned()).or_default() += 1;
    }

    /// Adds the entries of the next sample, one per column.
    pub fn push(&mut self, entries: impl IntoIterator<Item = Entry>) {
        let mut entries = entries.into_iter();
        let Self { columns, summary, .. } = self;
        for (column, counts) in columns.iter_mut().zip(&mut summary.class_records) {
            let entry = entries.next().expect("an entry for each column");
            let length = match &entry {
                Entry::Plain { class, start, length } => {
                    counts[usize::from(*class)] += 1;
                    summary.backward_records += u64::from(*start < column.last_start);
                    column.last_start = *start;
                    *length
                }
                Entry::Exception(parts) => parts.iter().map(|part| part.length).sum(),
            };
            summary.record_bytes += length;
            summary.shortest_record_bytes = summary.shortest_record_bytes.min(length);
            summary.longest_record_bytes = summary.longest_record_bytes.max(length);
            column.pending.push(entry);
            if column.pending.len() == BLOCK_RECORDS as usize {
                column.flush();
            }
        }
        self.samples += 1;
        self.shard_samples += 1;
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
            codec_chains: vec![Vec::new()],
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

impl Column {
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
