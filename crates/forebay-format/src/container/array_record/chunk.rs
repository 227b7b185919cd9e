//! Chunks of Riegeli files: a header of 40 bytes, and data that hold records, often compressed.

use highway::{HighwayHash, HighwayHasher, Key};

use super::blocks;
use crate::Error;
use crate::codec::{self, Codec};
use crate::file::{HeaderScan, Input};
use crate::varint::Bytes;

/// Length of a header \[bytes\].
pub(super) const HEADER_BYTES: u64 = 40;

/// Most records of a chunk: bounds the memory for their sizes.
const MAX_RECORDS: u64 = 1 << 24;

/// Longest number of variable length \[bytes\].
const MAX_VARINT_BYTES: u64 = 10;

/// Bytes that are hashed at once \[bytes\].
const HASHED_BYTES: u64 = 1 << 20;

/// The key of all hashes: `Riegeli/records\n`, twice.
const HASH_KEY: [u64; 4] =
    [0x2f69_6c65_6765_6952, 0x0a73_6472_6f63_6572, 0x2f69_6c65_6765_6952, 0x0a73_6472_6f63_6572];

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkKind {
    /// Records, their sizes before them.
    Simple,
    /// Nothing that is a record: a signature, metadata or padding.
    Other,
}

/// The header of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Where it begins [bytes from the start of the file].
    pub(super) begin: u64,
    /// Where its data begin [bytes from the start of the file].
    pub(super) data: u64,
    /// Length of its data \[bytes\].
    pub(super) data_bytes: u64,
    data_hash: u64,
    pub(super) kind: ChunkKind,
    pub(super) records: u64,
    /// Sum of the lengths of its records \[bytes\].
    decoded_bytes: u64,
    /// Where the next chunk begins [bytes from the start of the file].
    pub(super) end: u64,
}

/// The records of a chunk.
#[derive(Debug)]
pub(super) struct Records {
    /// How they are compressed; `None`: not at all.
    pub(super) codec: Option<Codec>,
    /// Where they begin [bytes from the start of the file].
    pub(super) start: u64,
    /// Their length in the file \[bytes\].
    pub(super) stored_bytes: u64,
    /// Their length when decompressed \[bytes\].
    pub(super) decoded_bytes: u64,
    /// The length of each \[bytes\].
    pub(super) lengths: Vec<u64>,
}

impl Chunk {
    /// Reads the header of the chunk that begins at `begin` and ends up to `limit`.
    pub(super) fn read(scan: &mut HeaderScan<'_>, begin: u64, limit: u64) -> Result<Self, Error> {
        let input = scan.input();
        let header = blocks::read(scan, begin, HEADER_BYTES, "ArrayRecord: header of a chunk")?;
        let number = |at: usize| u64::from_le_bytes(*header[at..].first_chunk().expect("8 bytes"));
        let (stored, computed) = (number(0), hash(&header[8..]));
        if stored != computed {
            let what = "ArrayRecord: hash of the header of a chunk";
            return Err(input.corrupt(begin, what, format!("{computed:#018x}"), format!("{stored:#018x}")));
        }
        let kind = match header[24] {
            b'r' => ChunkKind::Simple,
            b's' | b'm' | b'p' => ChunkKind::Other,
            b't' => {
                let found = format!("type t at offset {begin}");
                let hint = "write the records without the option transpose";
                return Err(input.unsupported("a transposed chunk", found, hint));
            }
            other => {
                let expected = "r, t, s, m or p".to_owned();
                let found = format!("{other:#04x}");
                return Err(input.corrupt(begin + 24, "ArrayRecord: type of a chunk", expected, found));
            }
        };
        let (data_bytes, data_hash, decoded_bytes) = (number(8), number(16), number(32));
        let records = number(24) >> 8;
        let data = blocks::end(begin, HEADER_BYTES);
        let end = data.and_then(|data| blocks::end(data, data_bytes)).and_then(|end| {
            let numbered = blocks::chunk_boundary(begin.checked_add(records)?);
            Some(blocks::chunk_boundary(end).max(numbered))
        });
        match (data, end) {
            (Some(data), Some(end)) if end <= limit => {
                Ok(Self { begin, data, data_bytes, data_hash, kind, records, decoded_bytes, end })
            }
            _ => {
                let expected = format!("an end up to {limit}");
                let found = format!("{data_bytes} bytes of data, {records} records");
                Err(input.corrupt(begin, "ArrayRecord: length of a chunk", expected, found))
            }
        }
    }

    /// Reads the lengths of the records of a simple chunk.
    pub(super) fn records(&self, scan: &mut HeaderScan<'_>) -> Result<Records, Error> {
        let input = scan.input();
        if self.records > MAX_RECORDS {
            let found = format!("{} records at offset {}", self.records, self.begin);
            let hint = "write groups of fewer records: group_size:1";
            return Err(input.unsupported(
                format!("a group of more than {MAX_RECORDS} records"),
                found,
                hint,
            ));
        }
        let wrong = |what: &str, expected: String, found: u64| {
            input.corrupt(self.data, format!("ArrayRecord: {what}"), expected, found)
        };
        let head_bytes = self.data_bytes.min(1 + MAX_VARINT_BYTES);
        let head = blocks::read(scan, self.data, head_bytes, "ArrayRecord: begin of a chunk")?;
        let compression = *head.first().ok_or_else(|| wrong("data of a chunk", "1 byte".to_owned(), 0))?;
        let codec = self.codec(input, compression)?;
        let mut bytes = Bytes::new(&head[1..]);
        let sizes_bytes = bytes.varint().unwrap_or(u64::MAX);
        let before = head_bytes - bytes.left() as u64;
        let Some(stored_bytes) = (self.data_bytes - before).checked_sub(sizes_bytes) else {
            let expected = format!("at most {}", self.data_bytes - before);
            return Err(wrong("length of the sizes of records", expected, sizes_bytes));
        };
        let at = blocks::end(self.data, before).expect("within the chunk");
        let sizes = blocks::read(scan, at, sizes_bytes, "ArrayRecord: sizes of records")?;
        let lengths = self.lengths(input, codec.as_ref(), &sizes)?;
        let at = blocks::end(at, sizes_bytes).expect("within the chunk");
        let Some(codec) = codec else {
            if stored_bytes != self.decoded_bytes {
                return Err(wrong("length of the records", self.decoded_bytes.to_string(), stored_bytes));
            }
            let decoded_bytes = self.decoded_bytes;
            return Ok(Records { codec: None, start: at, stored_bytes, decoded_bytes, lengths });
        };
        let head =
            blocks::read(scan, at, stored_bytes.min(MAX_VARINT_BYTES), "ArrayRecord: begin of records")?;
        let mut bytes = Bytes::new(&head);
        let decoded_bytes = bytes.varint().unwrap_or(u64::MAX);
        if decoded_bytes != self.decoded_bytes {
            let expected = self.decoded_bytes.to_string();
            return Err(wrong("length of the records when decompressed", expected, decoded_bytes));
        }
        let before = (head.len() - bytes.left()) as u64;
        let start = blocks::end(at, before).expect("within the chunk");
        Ok(Records { codec: Some(codec), start, stored_bytes: stored_bytes - before, decoded_bytes, lengths })
    }

    fn codec(&self, input: &Input, compression: u8) -> Result<Option<Codec>, Error> {
        let name = match compression {
            0 => return Ok(None),
            b'z' => return Ok(Some(Codec::Zstd)),
            b'b' => "brotli",
            b's' => "snappy",
            other => {
                let expected = "0, b, z or s";
                let found = format!("{other:#04x}");
                return Err(input.corrupt(self.data, "ArrayRecord: compression of a chunk", expected, found));
            }
        };
        let hint = "write the records with the option zstd or uncompressed";
        Err(input.unsupported(
            format!("a chunk compressed by {name}"),
            format!("at offset {}", self.data),
            hint,
        ))
    }

    /// The lengths, of the bytes that hold them.
    fn lengths(&self, input: &Input, codec: Option<&Codec>, stored: &[u8]) -> Result<Vec<u64>, Error> {
        let wrong = |expected: String, found: String| {
            input.corrupt(self.data, "ArrayRecord: sizes of records", expected, found)
        };
        let mut decoded = Vec::new();
        let sizes = match codec {
            None => stored,
            Some(codec) => {
                let mut bytes = Bytes::new(stored);
                let length = bytes.varint().unwrap_or(u64::MAX);
                let most = self.records * MAX_VARINT_BYTES;
                if length > most {
                    return Err(wrong(format!("at most {most} bytes"), length.to_string()));
                }
                decoded.resize(length as usize, 0);
                let encoded = &stored[stored.len() - bytes.left()..];
                codec::decode(std::slice::from_ref(codec), encoded, &mut decoded)
                    .map_err(|error| wrong("sizes that can be decompressed".to_owned(), error.to_string()))?;
                &decoded
            }
        };
        let mut bytes = Bytes::new(sizes);
        let lengths: Option<Vec<u64>> = (0..self.records).map(|_| bytes.varint()).collect();
        let sum =
            lengths.as_ref().and_then(|all| all.iter().try_fold(0_u64, |sum, one| sum.checked_add(*one)));
        match lengths {
            Some(lengths) if sum == Some(self.decoded_bytes) && bytes.left() == 0 => Ok(lengths),
            _ => {
                let expected = format!("{} sizes of {} bytes in all", self.records, self.decoded_bytes);
                Err(wrong(expected, format!("{} bytes, sum {sum:?}", sizes.len())))
            }
        }
    }

    /// Compares the hash of the data with the data.
    pub(super) fn check_data(&self, scan: &mut HeaderScan<'_>) -> Result<(), Error> {
        let mut hasher = HighwayHasher::new(Key(HASH_KEY));
        let (mut at, mut left) = (self.data, self.data_bytes);
        while left > 0 {
            let count = left.min(HASHED_BYTES);
            hasher.append(&blocks::read(scan, at, count, "ArrayRecord: data of a chunk")?);
            at = blocks::end(at, count).expect("within the chunk");
            left -= count;
        }
        let found = hasher.finalize64();
        if found == self.data_hash {
            return Ok(());
        }
        let (expected, found) = (format!("{:#018x}", self.data_hash), format!("{found:#018x}"));
        Err(scan.input().corrupt(self.begin, "ArrayRecord: hash of the data of a chunk", expected, found))
    }
}

/// The hash of bytes: of a header without its hash, or of data.
pub fn hash(bytes: &[u8]) -> u64 {
    HighwayHasher::new(Key(HASH_KEY)).hash64(bytes)
}
