//! Made-up tables of places, and sidecars of them.

use std::ops::Range;

use forebay_format::lmdb::{Dialect, Identity, TreeRecord};
use forebay_format::sidecar::{IndexEntry, RecordClass, StoredIn, Writer};
use forebay_format::{Schema, ShardInfo, ShardState};
use forebay_types::{Located, Piece};

use super::lmdb_writer::Random;

pub const FINGERPRINT: u128 = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;

/// Where records may lie in the shard of these tables.
pub const DATA: Range<u64> = 8192..(1 << 33);

/// Records on pages, and records with a header on pages of their own.
pub fn classes() -> Vec<RecordClass> {
    let class = |name: &str, head_bytes, align_bytes, step_bytes, page_bytes, guard| RecordClass {
        name: name.to_owned(),
        head_bytes,
        tail_bytes: 0,
        align_bytes,
        step_bytes,
        page_bytes,
        page_tail_bytes: 0,
        guard,
        stored_in: StoredIn::default(),
    };
    vec![class("inline", 0, 1, 2, 4096, false), class("big", 16, 4096, 4096, 0, true)]
}

pub fn shard(name: &str) -> ShardInfo {
    let tree = TreeRecord {
        flags: 0,
        depth: 2,
        branch_pages: 1,
        leaf_pages: 10,
        overflow_pages: 100,
        entries: 1000,
        root: 7,
    };
    let identity = Identity {
        dialect: Dialect::ALL[0],
        page_bytes: 4096,
        checksum_bytes: 0,
        transactions: [2, 1],
        last_page: DATA.end / 4096 - 1,
        main: tree,
        database: None,
        tree,
    };
    let state = ShardState::Lmdb(identity);
    ShardInfo {
        name: name.to_owned(),
        bytes: DATA.end,
        modified_ns: 1_700_000_000_000_000_000,
        samples: 0,
        state,
    }
}

/// A sidecar of one shard and one column.
pub fn sidecar(entries: &[IndexEntry]) -> Vec<u8> {
    let mut writer = Writer::new(vec![classes()]);
    for entry in entries {
        writer.push([entry.clone()]);
    }
    writer.end_shard(shard("train.lmdb/data.mdb"));
    writer.finish(forebay_format::Format::Lmdb, Schema::Raw, FINGERPRINT)
}

/// A damaged copy whose checksums fit again, so that the damage is not noticed by them.
pub fn damaged(sound: &[u8], random: &mut Random) -> Vec<u8> {
    let mut parts = Parts::of(sound).expect("a sound sidecar");
    for _ in 0..=random.below(3) {
        match random.below(8) {
            0 => change(&mut parts.header[12..72], random),
            1 => {
                // What an earlier round damaged stays as it is.
                let Some(mut json) = parts.description() else { continue };
                change_text(&mut json, random);
                parts.set_description(&json);
            }
            2 => change(&mut parts.meta, random),
            3 | 4 => {
                let block = random.below(parts.blocks.len() as u64) as usize;
                change(&mut parts.blocks[block], random);
            }
            _ => {
                let block = random.below(parts.blocks.len() as u64) as usize;
                change_body(&mut parts.blocks[block], random);
            }
        }
    }
    let mut bytes = parts.join();
    if random.below(20) == 0 {
        let length = random.below(bytes.len() as u64) as usize;
        bytes.truncate(length);
        if length >= 80 {
            bytes[40..48].copy_from_slice(&(length as u64).to_le_bytes());
            let checksum = crc32c::crc32c(&bytes[..76]);
            bytes[76..80].copy_from_slice(&checksum.to_le_bytes());
        }
    }
    bytes
}

/// A sidecar taken apart.
pub struct Parts {
    pub header: Vec<u8>,
    pub meta: Vec<u8>,
    pub blocks: Vec<Vec<u8>>,
}

impl Parts {
    /// Takes a sidecar apart; `None` if its lengths do not even allow that.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
        let directory = 80 + number(56)?;
        let count = number(52)?;
        let mut start = directory + 8 * count;
        let mut blocks = Vec::new();
        for block in 0..count {
            let length = number(directory + 8 * block)?;
            blocks.push(bytes.get(start..start + length)?.to_vec());
            start += length;
        }
        Some(Self { header: bytes.get(..80)?.to_vec(), meta: bytes.get(80..directory)?.to_vec(), blocks })
    }

    /// The description, if it can be decompressed.
    pub fn description(&self) -> Option<Vec<u8>> {
        zstd::bulk::decompress(&self.meta, 1 << 20).ok()
    }

    pub fn set_description(&mut self, json: &[u8]) {
        self.header[60..64].copy_from_slice(&(json.len() as u32).to_le_bytes());
        self.meta = zstd::bulk::compress(json, 1).expect("in memory");
    }

    /// Puts the parts together, with checksums and lengths that fit.
    pub fn join(mut self) -> Vec<u8> {
        let mut directory = Vec::new();
        for block in &self.blocks {
            directory.extend((block.len() as u32).to_le_bytes());
            directory.extend(crc32c::crc32c(block).to_le_bytes());
        }
        let blocks = self.blocks.concat();
        let file_bytes = (80 + self.meta.len() + directory.len() + blocks.len()) as u64;
        self.header[40..48].copy_from_slice(&file_bytes.to_le_bytes());
        self.header[56..60].copy_from_slice(&(self.meta.len() as u32).to_le_bytes());
        self.header[64..68].copy_from_slice(&crc32c::crc32c(&self.meta).to_le_bytes());
        self.header[68..72].copy_from_slice(&crc32c::crc32c(&directory).to_le_bytes());
        let checksum = crc32c::crc32c(&self.header[..76]);
        self.header[76..80].copy_from_slice(&checksum.to_le_bytes());
        [self.header, self.meta, directory, blocks].concat()
    }
}

fn change(bytes: &mut [u8], random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len() as u64) as usize;
    bytes[at] = match random.below(4) {
        0 => bytes[at] ^ (1 << random.below(8)),
        1 => 0xff,
        2 => 0,
        _ => random.next() as u8,
    };
}

/// Exchanges a number or a letter of a text.
fn change_text(text: &mut Vec<u8>, random: &mut Random) {
    let digits: Vec<usize> = (0..text.len()).filter(|at| text[*at].is_ascii_digit()).collect();
    if digits.is_empty() || random.below(10) == 0 {
        change(text, random);
        return;
    }
    let at = digits[random.below(digits.len() as u64) as usize];
    match random.below(3) {
        0 => text[at] = b'0' + random.below(10) as u8,
        1 => drop(text.splice(at..=at, u64::MAX.to_string().into_bytes())),
        _ => drop(text.splice(at..=at, (1_u64 << random.below(64)).to_string().into_bytes())),
    }
}

/// The body of a block, if it can be unpacked.
pub fn body(block: &[u8]) -> Option<Vec<u8>> {
    if *block.first()? == 0 {
        return Some(block[1..].to_vec());
    }
    let frame = block.windows(4).position(|bytes| bytes == [0x28, 0xb5, 0x2f, 0xfd])?;
    zstd::bulk::decompress(&block[frame..], 1 << 22).ok()
}

/// Changes what a block holds, not how that is packed.
fn change_body(block: &mut Vec<u8>, random: &mut Random) {
    let Some(mut body) = body(block) else { return };
    for _ in 0..=random.below(3) {
        match random.below(6) {
            0 if !body.is_empty() => body.truncate(random.below(body.len() as u64) as usize),
            1 => body.push(random.next() as u8),
            // Most of what steers the decoder stands at the beginning.
            2 | 3 => {
                let first = body.len().min(24);
                change(&mut body[..first], random);
            }
            _ => change(&mut body, random),
        }
    }
    *block = [vec![0], body].concat();
}

/// Whether every extent lies in its shard, and every slice in its unit.
pub fn inside(located: &Located, shards: &[ShardInfo]) -> bool {
    let extents = located.pieces().iter().all(|piece| match piece {
        Piece::Extent(extent) => extent
            .offset
            .checked_add(extent.length)
            .is_some_and(|end| end <= shards[extent.shard.0 as usize].bytes),
        Piece::Literal { .. } => true,
    });
    let slices = (0..located.samples()).all(|position| {
        located.slices(position, 0).iter().all(|slice| {
            let unit = located.units()[slice.unit as usize];
            slice.offset.checked_add(slice.length).is_some_and(|end| end <= unit.decoded_bytes)
        })
    });
    extents && slices
}
