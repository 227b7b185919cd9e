//! The sidecar: an index as a file, one container for every format.
//!
//! A header of fixed size, what the dataset is as compressed JSON ([`Meta`]), a directory of blocks, and the blocks.
//! A block holds the places of up to [`BLOCK_RECORDS`] samples of one shard and one column, coded against the layout
//! that the format would give them ([`class`]) and compressed; it decodes alone and has its own checksum. A regular
//! LMDB file costs well under a tenth of a byte per record, one with random sizes the entropy of the sizes.
//!
//! All integers are little-endian. The layout to the byte is `docs/formats/sidecar.md`.
//!
//! Nothing in a sidecar is believed: every length is bounded before memory is taken for it, every checksum is
//! compared, and every place is held against the size of the shard.

pub(crate) mod block;
mod class;
mod encode;
pub(crate) mod names;
pub(crate) mod tiles;
pub(crate) mod varint;
mod writer;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use zstd::bulk::Decompressor;

pub use block::{Entry, Part, Stretch};
pub(crate) use class::NUMBER_BYTES;
pub use class::{Class, Home};
pub use tiles::Tiles;
pub use writer::Writer;
pub(crate) use writer::{NamesWriter, PackedNames};

use crate::codec::{self, Codec};
use crate::container::Format;
use crate::lmdb::Identity;
use crate::schema::Schema;
use block::{BlockFault, OFFSET_LIMIT};
use tiles::Grid;
use varint::Bytes;
use writer::{STORED, ZSTD};

/// First bytes of every sidecar. Not text, so that no tool takes it for some.
pub(crate) const MAGIC: [u8; 8] = *b"\x8fFOREBAY";

/// The version that is written, and the only one that is read.
pub(crate) const VERSION: u32 = 1;

/// Records per block.
///
/// A block of a regular file is about 60 bytes, of which 18 are overhead, and takes 20 µs to expand; 4,096 random
/// accesses to a data set of any size expand at most as many blocks.
pub const BLOCK_RECORDS: u32 = 4096;

/// Length of the header \[bytes\].
pub(crate) const HEADER_BYTES: usize = 80;

/// Length of a directory entry \[bytes\].
pub(crate) const DIRECTORY_ENTRY_BYTES: usize = 8;

/// Most records per block that a reader accepts: bounds the memory of one expanded block to 1 MiB, and the index of a
/// record in its block to 16 bits.
const MOST_BLOCK_RECORDS: u32 = 1 << 16;

/// Largest meta part after decompression \[bytes\]: 100,000 shards take 50 MiB.
const LARGEST_META_BYTES: u32 = 1 << 26;

/// Largest block body after decompression \[bytes\]: 65,536 records of 18 bytes, or thousands of exceptions.
pub(crate) const LARGEST_BODY_BYTES: usize = 1 << 22;

/// Most columns, and most classes per column.
const MOST_COLUMNS: u32 = 1024;
const MOST_CLASSES: usize = 16;

/// Most codec chains: chunks of one dataset that skip different filters, for some thousand datasets and files.
const MOST_CHAINS: usize = 1 << 14;

/// What is wrong with a sidecar as a whole.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SidecarFault {
    /// It does not begin like one.
    #[error("it is no sidecar: expected the magic number {MAGIC:02x?}, found {found:02x?}")]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// Another version of Forebay wrote it.
    #[error("it has version {found}; this Forebay reads version {VERSION}")]
    Version {
        /// The version it names.
        found: u32,
    },
    /// It describes another dataset, or an earlier state of this one.
    #[error("it is stale: expected fingerprint {expected:032x}, found {found:032x}")]
    Stale {
        /// The dataset's.
        expected: u128,
        /// The sidecar's.
        found: u128,
    },
    /// Something changed that the fingerprint does not tell.
    #[error("it is stale: {what}: expected {expected}, found {found}")]
    Outdated {
        /// What changed.
        what: String,
        /// As it was.
        expected: String,
        /// As it is.
        found: String,
    },
    /// Its bytes contradict each other.
    #[error("it is damaged: {what} at offset {offset}: expected {expected}, found {found}")]
    Damaged {
        /// Where in the sidecar \[bytes\].
        offset: u64,
        /// Which thing is wrong.
        what: String,
        /// What a sound one has there.
        expected: String,
        /// What this one has there.
        found: String,
    },
}

impl SidecarFault {
    #[allow(clippy::needless_pass_by_value, reason = "callers pass numbers and texts alike")]
    pub(crate) fn damaged(
        offset: usize,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self::Damaged {
            offset: offset as u64,
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

/// The first [`HEADER_BYTES`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) fingerprint: u128,
    pub(crate) samples: u64,
    pub(crate) columns: u32,
    pub(crate) block_records: u32,
    /// Number of blocks of all columns.
    pub(crate) blocks: u32,
    pub(crate) meta_stored_bytes: u32,
    pub(crate) meta_bytes: u32,
    pub(crate) meta_checksum: u32,
    pub(crate) directory_checksum: u32,
    pub(crate) file_bytes: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend(self.columns.to_le_bytes());
        out.extend(self.fingerprint.to_le_bytes());
        out.extend(self.samples.to_le_bytes());
        out.extend(self.file_bytes.to_le_bytes());
        for number in [
            self.block_records,
            self.blocks,
            self.meta_stored_bytes,
            self.meta_bytes,
            self.meta_checksum,
            self.directory_checksum,
            0,
        ] {
            out.extend(number.to_le_bytes());
        }
        let checksum = crc32c::crc32c(&out);
        out.extend(checksum.to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&out);
        header
    }

    /// Decodes and checks the header of a file of `file_bytes` bytes.
    pub(crate) fn decode(head: &[u8], file_bytes: u64) -> Result<Self, SidecarFault> {
        let magic = &head[..head.len().min(MAGIC.len())];
        if magic != MAGIC {
            return Err(SidecarFault::Magic { found: magic.to_vec() });
        }
        let u32_at = |at: usize| {
            head.get(at..at + 4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        // The version comes first: all that follows may differ in another one.
        if let Some(found) = u32_at(8).filter(|version| *version != VERSION) {
            return Err(SidecarFault::Version { found });
        }
        let Some(head) = head.get(..HEADER_BYTES) else {
            return Err(SidecarFault::damaged(
                0,
                "length",
                format!("{HEADER_BYTES} bytes or more"),
                head.len(),
            ));
        };
        let u32_of = |at: usize| u32_at(at).unwrap_or_default();
        let u64_of = |at: usize| u64::from(u32_of(at)) | u64::from(u32_of(at + 4)) << 32;
        let (expected, found) = (crc32c::crc32c(&head[..76]), u32_of(76));
        if expected != found {
            let (expected, found) = (format!("{expected:#010x}"), format!("{found:#010x}"));
            return Err(SidecarFault::damaged(76, "header checksum", expected, found));
        }
        let header = Self {
            columns: u32_of(12),
            fingerprint: u128::from(u64_of(16)) | u128::from(u64_of(24)) << 64,
            samples: u64_of(32),
            file_bytes: u64_of(40),
            block_records: u32_of(48),
            blocks: u32_of(52),
            meta_stored_bytes: u32_of(56),
            meta_bytes: u32_of(60),
            meta_checksum: u32_of(64),
            directory_checksum: u32_of(68),
        };
        if header.file_bytes != file_bytes {
            return Err(SidecarFault::damaged(40, "length of the file", header.file_bytes, file_bytes));
        }
        for (at, what, most, found) in [
            (12, "columns", MOST_COLUMNS, header.columns),
            (48, "records per block", MOST_BLOCK_RECORDS, header.block_records),
            (60, "meta bytes", LARGEST_META_BYTES, header.meta_bytes),
        ] {
            if found == 0 || found > most {
                return Err(SidecarFault::damaged(at, what, format!("1 to {most}"), found));
            }
        }
        Ok(header)
    }

    /// Where the meta part lies \[bytes\].
    pub(crate) fn meta_range(&self) -> Range<usize> {
        HEADER_BYTES..HEADER_BYTES + self.meta_stored_bytes as usize
    }

    /// Where the directory lies \[bytes\].
    pub(crate) fn directory_range(&self) -> Range<usize> {
        let start = self.meta_range().end;
        start..start + self.blocks as usize * DIRECTORY_ENTRY_BYTES
    }
}

/// What the dataset is, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Container format.
    pub format: Format,
    /// How records become fields.
    pub schema: Schema,
    /// The files.
    pub shards: Vec<ShardInfo>,
    /// For each column its classes of records.
    pub columns: Vec<Vec<Class>>,
    /// For each column how its chunks lie, if its records are chunks of many samples; empty if that is so for no column.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiles: Vec<Option<Tiles>>,
    /// Chains of codecs, each in the order in which they are undone; a unit names one by its number. Number 0 is the empty
    /// chain: stored.
    pub codec_chains: Vec<Vec<Codec>>,
    /// Sizes and counts.
    pub summary: Summary,
    /// Where samples have files of their own: for each shard, which is a folder, the number of its directories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<u64>,
}

/// One file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardInfo {
    /// Name, for messages; what is read is the dataset's file of the same number.
    pub name: String,
    /// Size of the file \[bytes\].
    pub bytes: u64,
    /// Last change of the file [ns since 1970].
    pub modified_ns: i64,
    /// Number of samples.
    pub samples: u64,
    /// What tells this state of the file from another.
    pub state: ShardState,
}

/// What a format says about the state of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardState {
    /// The snapshot that was indexed.
    Lmdb(Identity),
    /// The headers of a file of any other format.
    File {
        /// Their hash.
        digest: String,
    },
}

impl ShardInfo {
    /// Where records may lie \[bytes\].
    pub(crate) fn data_range(&self) -> Range<u64> {
        let ShardState::Lmdb(identity) = &self.state else { return 0..self.bytes };
        let page_bytes = u64::from(identity.page_bytes);
        let end = identity.last_page.saturating_add(1).saturating_mul(page_bytes);
        2 * page_bytes..end.min(self.bytes)
    }
}

/// Sizes and counts of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Sum of the lengths of all records \[bytes\].
    pub record_bytes: u64,
    /// Length of the shortest record \[bytes\].
    pub shortest_record_bytes: u64,
    /// Length of the longest record \[bytes\].
    pub longest_record_bytes: u64,
    /// Records that are not samples, by name.
    pub excluded: BTreeMap<String, u64>,
    /// For each column, the number of records of each class.
    pub class_records: Vec<Vec<u64>>,
    /// Records that lie in front of the one before: 0 for a file in order.
    pub backward_records: u64,
}

impl Meta {
    /// Checks what the meta part claims against the header.
    fn check(&self, header: &Header) -> Result<(), String> {
        if self.columns.len() as u64 != u64::from(header.columns) {
            return Err(format!("{} columns", self.columns.len()));
        }
        for classes in &self.columns {
            if classes.len() > MOST_CLASSES {
                return Err(format!("{} classes", classes.len()));
            }
            classes.iter().try_for_each(Class::check)?;
        }
        let folders = if self.column_of_files().is_some() { self.shards.len() } else { 0 };
        if self.directories.len() != folders || self.directories.contains(&0) {
            return Err(format!("directories {:?} of {folders} folders", self.directories));
        }
        if folders > 0 && self.format != Format::Folder {
            return Err(format!("samples with files of their own in {}", self.format.name()));
        }
        if folders > 0 && header.samples > u64::from(u32::MAX) {
            return Err(format!("{} samples with files of their own", header.samples));
        }
        if self.codec_chains.first().is_none_or(|chain| !chain.is_empty()) {
            return Err("no codec chain 0 that is empty".to_owned());
        }
        if self.codec_chains.len() > MOST_CHAINS {
            return Err(format!("{} codec chains", self.codec_chains.len()));
        }
        self.codec_chains.iter().try_for_each(|chain| codec::check_chain(chain))?;
        self.check_tiles()?;
        let samples = self.shards.iter().try_fold(0_u64, |sum, shard| sum.checked_add(shard.samples));
        if samples != Some(header.samples) {
            return Err(format!("shards of {samples:?} samples"));
        }
        let largest = self.shards.iter().map(|shard| shard.bytes).max().unwrap_or(0);
        if largest > OFFSET_LIMIT {
            return Err(format!("a shard of {largest} bytes"));
        }
        // LMDB keeps lengths in 32 bits.
        let longest = if self.format == Format::Lmdb { largest.min(u64::from(u32::MAX)) } else { largest };
        let Summary { record_bytes, shortest_record_bytes, longest_record_bytes, .. } = self.summary;
        let records = u128::from(header.samples) * u128::from(header.columns);
        let least = records * u128::from(shortest_record_bytes);
        let most = records * u128::from(longest_record_bytes);
        // Decoded, a record may be longer than its file.
        let is_stored = self.codec_chains.len() == 1;
        if !(least..=most).contains(&u128::from(record_bytes)) || is_stored && longest_record_bytes > longest
        {
            return Err(format!(
                "{record_bytes} bytes in records of {shortest_record_bytes} to {longest_record_bytes}"
            ));
        }
        self.schema.check(&self.summary, header.columns as usize)
    }

    /// Checks what the meta part claims about tiles, except their shapes.
    fn check_tiles(&self) -> Result<(), String> {
        if !self.tiles.is_empty() && self.tiles.len() != self.columns.len() {
            return Err(format!("tiles of {} columns", self.tiles.len()));
        }
        for (tiles, classes) in self.tiles.iter().zip(&self.columns) {
            let Some(Tiles { chains, shapes, shards, .. }) = tiles else { continue };
            let known = chains.iter().all(|chain| usize::from(*chain) < self.codec_chains.len())
                && shards.iter().all(|shape| (*shape as usize) < shapes.len());
            let margins = classes.iter().any(|class| class.margin_bytes() > 0 || class.guard);
            if !known || margins || chains.len() != classes.len() || shards.len() != self.shards.len() {
                return Err(format!("tiles of {} classes and {} shards", chains.len(), shards.len()));
            }
        }
        Ok(())
    }

    /// For each column the grids of its tiles; none where its records are samples.
    fn grids(&self) -> Result<Vec<Vec<Grid>>, String> {
        (0..self.columns.len())
            .map(|column| self.tiles(column).map_or(Ok(Vec::new()), Tiles::grids))
            .collect()
    }

    /// Number of records of a shard in a column with these grids.
    pub(crate) fn column_records(&self, column: usize, shard: usize, grids: &[Grid]) -> u64 {
        let samples = self.shards[shard].samples;
        self.tiles(column).map_or(samples, |tiles| {
            // More than 2⁶⁴ are never there: the number of blocks will not be right.
            grids[tiles.shards[shard] as usize].chunks(samples).unwrap_or(u64::MAX)
        })
    }

    /// How the chunks of a column lie, if its records are chunks.
    pub fn tiles(&self, column: usize) -> Option<&Tiles> {
        self.tiles.get(column)?.as_ref()
    }
}

/// Header, meta part and directory of a sidecar, checked; the blocks are not read.
pub(crate) struct Contents {
    pub(crate) header: Header,
    pub(crate) meta: Meta,
    /// For each column the grids of its tiles; none where its records are samples.
    pub(crate) grids: Vec<Vec<Grid>>,
    /// For each column the number of its first block.
    pub(crate) first_blocks: Vec<u64>,
    /// Number of the first block of names: the blocks of all columns.
    first_name_block: u64,
    /// Number of blocks of names.
    pub(crate) name_blocks: u64,
    /// Start of each block, and the end of the last one \[bytes\].
    pub(crate) block_starts: Vec<u64>,
    pub(crate) block_checksums: Vec<u32>,
}

impl Contents {
    pub(crate) fn read(bytes: &[u8], fingerprint: u128) -> Result<Self, SidecarFault> {
        let header = Header::decode(bytes, bytes.len() as u64)?;
        if header.fingerprint != fingerprint {
            return Err(SidecarFault::Stale { expected: fingerprint, found: header.fingerprint });
        }
        let part = |range: Range<usize>, what: &str, checksum: u32| {
            let part = bytes.get(range.clone()).ok_or_else(|| {
                SidecarFault::damaged(
                    range.start,
                    what,
                    format!("{} bytes", range.len()),
                    "the end of the file",
                )
            })?;
            let found = crc32c::crc32c(part);
            if found == checksum {
                Ok(part)
            } else {
                let (expected, found) = (format!("{checksum:#010x}"), format!("{found:#010x}"));
                Err(SidecarFault::damaged(range.start, format!("checksum of the {what}"), expected, found))
            }
        };
        let stored = part(header.meta_range(), "meta part", header.meta_checksum)?;
        let directory = part(header.directory_range(), "directory", header.directory_checksum)?;
        let bad_meta =
            |found: String| SidecarFault::damaged(HEADER_BYTES, "meta part", "a sound description", found);
        let json = unpack(stored, header.meta_bytes as usize).map_err(bad_meta)?;
        let meta: Meta = serde_json::from_slice(&json).map_err(|error| bad_meta(error.to_string()))?;
        meta.check(&header).map_err(bad_meta)?;

        let grids = meta.grids().map_err(bad_meta)?;
        let block_records = u64::from(header.block_records);
        let mut blocks = 0_u64;
        let mut first_blocks = Vec::with_capacity(grids.len());
        for (column, grids) in grids.iter().enumerate() {
            first_blocks.push(blocks);
            let of_shards = (0..meta.shards.len())
                .map(|shard| meta.column_records(column, shard, grids).div_ceil(block_records));
            blocks = of_shards.fold(blocks, u64::saturating_add);
        }
        let first_name_block = blocks;
        // Names of samples' files are like another column; behind them come the directories.
        let count = |records: &mut dyn Iterator<Item = u64>| {
            records.map(|records| records.div_ceil(block_records)).fold(0, u64::saturating_add)
        };
        let named = !meta.directories.is_empty();
        let name_blocks = if named { count(&mut meta.shards.iter().map(|shard| shard.samples)) } else { 0 };
        let directory_blocks = count(&mut meta.directories.iter().copied());
        let blocks = blocks.saturating_add(name_blocks).saturating_add(directory_blocks);
        if blocks != u64::from(header.blocks) {
            let expected = format!(
                "{blocks} blocks of {} columns, {name_blocks} of them of names, {directory_blocks} of directories",
                header.columns
            );
            return Err(SidecarFault::damaged(52, "number of blocks", expected, header.blocks));
        }
        let mut start = header.directory_range().end as u64;
        let mut block_starts = Vec::with_capacity(header.blocks as usize + 1);
        let mut block_checksums = Vec::with_capacity(header.blocks as usize);
        block_starts.push(start);
        for entry in directory.chunks_exact(DIRECTORY_ENTRY_BYTES) {
            start += u64::from(u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]));
            block_starts.push(start);
            block_checksums.push(u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]));
        }
        if start != header.file_bytes {
            let offset = header.directory_range().start;
            return Err(SidecarFault::damaged(offset, "end of the last block", header.file_bytes, start));
        }
        Ok(Self {
            header,
            meta,
            grids,
            first_blocks,
            first_name_block,
            name_blocks,
            block_starts,
            block_checksums,
        })
    }

    /// Number of the first block of names.
    pub(crate) fn first_name_block(&self) -> usize {
        self.first_name_block as usize
    }

    /// Number of the first block of directories.
    pub(crate) fn first_directory_block(&self) -> usize {
        (self.first_name_block + self.name_blocks) as usize
    }

    /// The bytes of a block in those of the sidecar, after a look at its checksum.
    pub(crate) fn stored_block<'a>(&self, bytes: &'a [u8], number: usize) -> Result<&'a [u8], SidecarFault> {
        let (start, end) = (self.block_starts[number] as usize, self.block_starts[number + 1] as usize);
        // What holds the bytes is not under our control: look again, although the length was checked.
        let stored = bytes.get(start..end).ok_or_else(|| {
            SidecarFault::damaged(
                start,
                format!("block {number}"),
                format!("{} bytes", end - start),
                "its end",
            )
        })?;
        let (expected, found) = (self.block_checksums[number], crc32c::crc32c(stored));
        if expected == found {
            Ok(stored)
        } else {
            let (expected, found) = (format!("{expected:#010x}"), format!("{found:#010x}"));
            Err(SidecarFault::damaged(start, format!("block {number}: checksum"), expected, found))
        }
    }

    /// What is wrong with a block, as a fault of the sidecar.
    pub(crate) fn block_fault(&self, number: usize, fault: BlockFault) -> SidecarFault {
        let BlockFault { what, expected, found } = fault;
        let offset = self.block_starts[number] as usize;
        SidecarFault::damaged(offset, format!("block {number}: {what}"), expected, found)
    }
}

/// Compresses, for [`unpack`].
pub(crate) fn pack(bytes: &[u8], level: i32) -> Vec<u8> {
    zstd::bulk::compress(bytes, level).expect("compressing from memory into memory cannot fail")
}

thread_local! {
    /// Making a decompressor costs as much as expanding a small block.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Decompresses exactly `length` bytes, or says what was found instead.
pub(crate) fn unpack(stored: &[u8], length: usize) -> Result<Vec<u8>, String> {
    let bytes = DECOMPRESSOR.with_borrow_mut(|held| {
        let decompressor = match held {
            Some(decompressor) => decompressor,
            None => held.insert(Decompressor::new().map_err(|error| error.to_string())?),
        };
        decompressor.decompress(stored, length).map_err(|error| error.to_string())
    })?;
    if bytes.len() == length { Ok(bytes) } else { Err(format!("{} bytes instead of {length}", bytes.len())) }
}

/// The body of a stored block.
pub(crate) fn unpack_block(stored: &[u8]) -> Result<Cow<'_, [u8]>, BlockFault> {
    let mut bytes = Bytes::new(stored);
    let too_short = || BlockFault::new("packing", "a packing and a body", format!("{} bytes", stored.len()));
    match bytes.byte() {
        Some(STORED) => Ok(Cow::Borrowed(&stored[1..])),
        Some(ZSTD) => {
            let length = bytes.varint().ok_or_else(too_short)?;
            if length > LARGEST_BODY_BYTES as u64 {
                return Err(BlockFault::new("body", format!("at most {LARGEST_BODY_BYTES} bytes"), length));
            }
            let packed = bytes.take(bytes.left()).unwrap_or_default();
            let body = unpack(packed, length as usize);
            body.map(Cow::Owned).map_err(|found| BlockFault::new("body", "a zstd frame", found))
        }
        Some(other) => Err(BlockFault::new("packing", format!("{STORED} or {ZSTD}"), other)),
        None => Err(too_short()),
    }
}
