//! Codecs: encoded bytes of a unit to decoded ones.
//!
//! A [`Codec`] reverses one filter; [`decode`] reverses a chain of them in order. Every codec is a
//! pure function of its input. It knows the length of its output, writes no more than that and
//! takes no other memory; other input is a [`CodecError`]. The sidecar holds the chain of each
//! unit.
//!
//! Intermediate results of a chain go through two buffers that each thread keeps. A chain of one
//! codec, and the last codec of every chain, writes straight to the destination.
//!
//! Formats: zlib (RFC 1950), zstd (RFC 8878), LZ4 blocks and frames, the pages of Parquet. The
//! framing around them, and the other codecs, are filters of HDF5 with these names, to the byte in
//! `docs/formats/hdf5.md`.

mod bits;
mod bitshuffle;
mod deflate;
mod fill;
mod fletcher32;
mod lz4;
mod lz4_frame;
mod lzf;
mod nul_terminated;
pub(crate) mod parquet;
mod shuffle;
mod zstandard;

use std::cell::RefCell;

pub use parquet::{ParquetColumn, ParquetNulls};
use serde::{Deserialize, Serialize};

/// Longest chain. HDF5 allows 32 filters; four are the most that were seen in use.
const MAX_CHAIN: usize = 8;

/// Largest element that is shuffled \[bytes\]; HDF5's compound types are far smaller.
const MAX_ITEM_BYTES: u32 = 1 << 16;

/// Largest block of elements that is bitshuffled \[bytes\].
const MAX_BLOCK_BYTES: u64 = 1 << 30;

/// Longest fill value \[bytes\].
const MAX_FILL_BYTES: usize = 1 << 16;

/// What one encoded byte can become at most: zstd makes 128 KiB of a block of four bytes.
const MAX_EXPANSION: u64 = 1 << 16;

/// The same of Parquet: four bytes repeat a value of a dictionary up to 2³¹ times.
const MAX_PARQUET_EXPANSION: u64 = 1 << 34;

/// How one filter is undone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Codec {
    /// A zlib stream.
    Deflate,
    /// A zstd frame.
    Zstd,
    /// A raw LZF stream.
    Lzf,
    /// LZ4 blocks after HDF5's header.
    Lz4,
    /// An LZ4 frame.
    Lz4Frame,
    /// Booleans, eight to a byte.
    Bits,
    /// The pages of a column chunk of Parquet.
    Parquet(ParquetColumn),
    /// Byte planes of elements.
    Shuffle {
        /// Length of an element \[bytes\].
        item_bytes: u32,
    },
    /// Bit planes of elements, block by block, each block compressed alone or all stored.
    Bitshuffle {
        /// Length of an element \[bytes\].
        item_bytes: u32,
        /// Elements per block, where the bytes do not hold it (stored blocks).
        block_items: u32,
        /// What each block is compressed with.
        blocks: BlockCodec,
    },
    /// A checksum after the bytes.
    Fletcher32,
    /// Elements with strings that end at their first NUL, and other bytes after it.
    NulTerminated {
        /// Length of an element \[bytes\].
        item_bytes: u32,
        /// Offset in the element and length of each string \[bytes\].
        strings: Vec<(u32, u32)>,
    },
    /// No bytes at all: a value that is repeated.
    Fill {
        /// The value.
        value: Vec<u8>,
    },
}

/// How the blocks of [`Codec::Bitshuffle`] are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockCodec {
    /// As they are.
    Stored,
    /// As LZ4 blocks.
    Lz4,
    /// As zstd frames.
    Zstd,
}

/// Bytes that a codec would not have written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{codec}: {what}: expected {expected}, found {found}")]
pub struct CodecError {
    /// Name of the codec.
    pub codec: &'static str,
    /// Which thing is wrong.
    pub what: String,
    /// What valid bytes have there.
    pub expected: String,
    /// What these have there.
    pub found: String,
}

impl CodecError {
    #[allow(clippy::needless_pass_by_value, reason = "callers pass numbers and strings alike")]
    pub(crate) fn new(
        codec: &'static str,
        what: &str,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self { codec, what: what.to_owned(), expected: expected.to_string(), found: found.to_string() }
    }

    /// The bytes end too early.
    fn ends(codec: &'static str, expected: impl ToString) -> Self {
        Self::new(codec, "encoded bytes", expected, "their end")
    }

    /// The output is longer or shorter than expected.
    fn length(codec: &'static str, expected: usize, found: impl ToString) -> Self {
        Self::new(codec, "length", format!("{expected} bytes"), found)
    }
}

impl Codec {
    /// The name, as in messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Deflate => deflate::NAME,
            Self::Zstd => zstandard::NAME,
            Self::Lzf => lzf::NAME,
            Self::Lz4 => lz4::NAME,
            Self::Lz4Frame => lz4_frame::NAME,
            Self::Bits => bits::NAME,
            Self::Parquet(_) => parquet::NAME,
            Self::Shuffle { .. } => shuffle::NAME,
            Self::Bitshuffle { .. } => bitshuffle::NAME,
            Self::Fletcher32 => fletcher32::NAME,
            Self::NulTerminated { .. } => nul_terminated::NAME,
            Self::Fill { .. } => fill::NAME,
        }
    }

    /// Checks a codec that a file claims.
    pub(crate) fn check(&self) -> Result<(), String> {
        let sound = match self {
            Self::Shuffle { item_bytes } => (1..=MAX_ITEM_BYTES).contains(item_bytes),
            Self::Bitshuffle { item_bytes, block_items, blocks: _ } => {
                (1..=MAX_ITEM_BYTES).contains(item_bytes)
                    && *block_items > 0
                    && block_items.is_multiple_of(bitshuffle::GROUP as u32)
                    && u64::from(*block_items) * u64::from(*item_bytes) <= MAX_BLOCK_BYTES
            }
            Self::Fill { value } => (1..=MAX_FILL_BYTES).contains(&value.len()),
            Self::Parquet(column) => column.check(),
            Self::NulTerminated { item_bytes, strings } => nul_terminated::is_sound(*item_bytes, strings),
            Self::Deflate
            | Self::Zstd
            | Self::Lzf
            | Self::Lz4
            | Self::Lz4Frame
            | Self::Bits
            | Self::Fletcher32 => true,
        };
        if sound { Ok(()) } else { Err(format!("codec {self:?}")) }
    }

    /// How many bytes go in where `decoded_bytes` come out, if that is fixed.
    fn encoded_bytes(&self, decoded_bytes: u64) -> Option<u64> {
        match self {
            Self::Shuffle { .. }
            | Self::NulTerminated { .. }
            | Self::Bitshuffle { blocks: BlockCodec::Stored, .. } => Some(decoded_bytes),
            Self::Fletcher32 => Some(decoded_bytes.saturating_add(fletcher32::CHECKSUM_BYTES as u64)),
            Self::Bits => Some(decoded_bytes.div_ceil(bits::PER_BYTE)),
            Self::Deflate
            | Self::Zstd
            | Self::Lzf
            | Self::Lz4
            | Self::Lz4Frame
            | Self::Parquet(_)
            | Self::Bitshuffle { .. }
            | Self::Fill { .. } => None,
        }
    }

    /// How many bytes come out where `encoded_bytes` go in, if that is fixed.
    fn decoded_bytes(&self, encoded_bytes: u64) -> Option<u64> {
        match self {
            Self::Fletcher32 => encoded_bytes.checked_sub(fletcher32::CHECKSUM_BYTES as u64),
            Self::Bits => encoded_bytes.checked_mul(bits::PER_BYTE),
            _ => self.encoded_bytes(encoded_bytes),
        }
    }

    /// Undoes the filter; exactly `into` has to come out.
    fn decode(&self, encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
        match self {
            Self::Deflate => deflate::decode(encoded, into),
            Self::Zstd => zstandard::decode(encoded, into),
            Self::Lzf => lzf::decode(encoded, into),
            Self::Lz4 => lz4::decode(encoded, into),
            Self::Lz4Frame => lz4_frame::decode(encoded, into),
            Self::Bits => bits::decode(encoded, into),
            Self::Parquet(column) => parquet::decode(column, encoded, into),
            Self::Shuffle { item_bytes } => shuffle::decode(encoded, into, *item_bytes as usize),
            Self::Bitshuffle { item_bytes, block_items, blocks } => {
                bitshuffle::decode(encoded, into, *item_bytes as usize, *block_items as usize, *blocks)
            }
            Self::Fletcher32 => fletcher32::decode(encoded, into),
            Self::NulTerminated { item_bytes, strings } => {
                nul_terminated::decode(encoded, into, *item_bytes as usize, strings)
            }
            Self::Fill { value } => fill::decode(encoded, into, value),
        }
    }
}

/// Checks a chain that a file claims.
///
/// The output length of every codec in a chain must be known. All but the compressors keep the
/// length, or nearly so. With one compressor, the lengths at both ends of the chain determine all
/// lengths in between.
pub(crate) fn check_chain(chain: &[Codec]) -> Result<(), String> {
    if chain.len() > MAX_CHAIN {
        return Err(format!("a chain of {} codecs", chain.len()));
    }
    chain.iter().try_for_each(Codec::check)?;
    if chain.iter().filter(|codec| codec.encoded_bytes(0).is_none()).count() > 1 {
        return Err(format!("a chain of several compressors: {chain:?}"));
    }
    if chain.len() > 1 && chain.iter().any(|codec| matches!(codec, Codec::Fill { .. })) {
        return Err(format!("a fill value in a chain: {chain:?}"));
    }
    Ok(())
}

/// Whether this many encoded bytes can decode to this many bytes; bounds the decoded size by that
/// of the file.
pub(crate) fn is_plausible(chain: &[Codec], encoded_bytes: u64, decoded_bytes: u64) -> bool {
    if let [Codec::Fill { .. }] = chain {
        return encoded_bytes == 0;
    }
    let is_compressed = chain.iter().any(|codec| codec.encoded_bytes(0).is_none());
    if is_compressed {
        let expansion = match chain {
            [Codec::Parquet(_)] => MAX_PARQUET_EXPANSION,
            [.., Codec::Bits] => MAX_EXPANSION * bits::PER_BYTE,
            _ => MAX_EXPANSION,
        };
        decoded_bytes <= encoded_bytes.saturating_mul(expansion)
    } else {
        chain.iter().try_fold(encoded_bytes, |bytes, codec| codec.decoded_bytes(bytes)) == Some(decoded_bytes)
    }
}

/// Length of the output of the first `done` codecs of a chain \[bytes\].
fn bytes_between(chain: &[Codec], done: usize, encoded_bytes: u64, decoded_bytes: u64) -> Option<u64> {
    let (before, after) = chain.split_at(done);
    let forward = || before.iter().try_fold(encoded_bytes, |bytes, codec| codec.decoded_bytes(bytes));
    after.iter().rev().try_fold(decoded_bytes, |bytes, codec| codec.encoded_bytes(bytes)).or_else(forward)
}

thread_local! {
    /// What lies between two codecs; it grows to the largest unit that the thread has seen.
    static BETWEEN: RefCell<[Vec<u8>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// Undoes a chain of codecs; exactly `into` has to come out.
pub fn decode(chain: &[Codec], encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    let Some((last, before)) = chain.split_last() else {
        if encoded.len() != into.len() {
            return Err(CodecError::length("stored", into.len(), encoded.len()));
        }
        into.copy_from_slice(encoded);
        return Ok(());
    };
    let (encoded_bytes, decoded_bytes) = (encoded.len() as u64, into.len() as u64);
    if !is_plausible(chain, encoded_bytes, decoded_bytes) {
        return Err(CodecError::new(last.name(), "encoded bytes", "a plausible number", encoded_bytes));
    }
    if before.is_empty() {
        return last.decode(encoded, into);
    }
    BETWEEN.with_borrow_mut(|[input, output]| {
        let mut held = 0;
        for (place, codec) in before.iter().enumerate() {
            let bytes = bytes_between(chain, place + 1, encoded_bytes, decoded_bytes)
                .ok_or_else(|| CodecError::new(codec.name(), "chain", "one compressor", "several"))?
                as usize;
            // Buffers only grow; bytes after the current contents are never read.
            output.resize(output.len().max(bytes), 0);
            let source = if place == 0 { encoded } else { &input[..held] };
            codec.decode(source, &mut output[..bytes])?;
            std::mem::swap(input, output);
            held = bytes;
        }
        last.decode(&input[..held], into)
    })
}

#[cfg(test)]
mod tests;
