//! LZ4 as HDF5's filter 32004 frames it: total length (u64), block length (u32), then for each
//! block its length (u32) and bytes, all big-endian. A block as long as its contents is stored.
//! Bytes after the last block are ignored.

use super::CodecError;

pub(super) const NAME: &str = "lz4";

/// Decodes exactly `into`.
pub(super) fn decode(encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    let mut blocks = Blocks::new(NAME, encoded, into.len())?;
    let block_bytes = blocks.block_bytes.min(into.len().max(1));
    for block in into.chunks_mut(block_bytes) {
        let stored = blocks.next()?;
        if stored.len() == block.len() {
            block.copy_from_slice(stored);
        } else {
            decode_block(NAME, stored, block)?;
        }
    }
    Ok(())
}

/// Decodes one raw LZ4 block to exactly `into`.
pub(super) fn decode_block(codec: &'static str, encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    let found = lz4_flex::block::decompress_into(encoded, into)
        .map_err(|error| CodecError::new(codec, "block", "LZ4", error))?;
    if found == into.len() { Ok(()) } else { Err(CodecError::length(codec, into.len(), found)) }
}

/// Blocks after a header, each with its length before it: the framing of HDF5's lz4 and bitshuffle
/// filters.
pub(super) struct Blocks<'a> {
    codec: &'static str,
    /// Length of a block after decoding, at least 1 \[bytes\].
    pub(super) block_bytes: usize,
    rest: &'a [u8],
}

impl<'a> Blocks<'a> {
    /// Reads the header of what has to become `decoded_bytes`.
    pub(super) fn new(
        codec: &'static str,
        encoded: &'a [u8],
        decoded_bytes: usize,
    ) -> Result<Self, CodecError> {
        let (total, rest) =
            encoded.split_first_chunk().ok_or_else(|| CodecError::ends(codec, "a header of 12 bytes"))?;
        let (block, rest) =
            rest.split_first_chunk().ok_or_else(|| CodecError::ends(codec, "a header of 12 bytes"))?;
        let (total, block_bytes) = (u64::from_be_bytes(*total), u32::from_be_bytes(*block));
        if total != decoded_bytes as u64 {
            return Err(CodecError::length(codec, decoded_bytes, total));
        }
        if block_bytes == 0 {
            return Err(CodecError::new(codec, "block length", "1 or more", 0));
        }
        Ok(Self { codec, block_bytes: block_bytes as usize, rest })
    }

    /// The next block, as it is stored.
    pub(super) fn next(&mut self) -> Result<&'a [u8], CodecError> {
        let (length, rest) =
            self.rest.split_first_chunk().ok_or_else(|| CodecError::ends(self.codec, "a block length"))?;
        let length = u32::from_be_bytes(*length) as usize;
        let (block, rest) = rest
            .split_at_checked(length)
            .ok_or_else(|| CodecError::ends(self.codec, format!("a block of {length} bytes")))?;
        self.rest = rest;
        Ok(block)
    }

    /// The bytes after the blocks.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}
