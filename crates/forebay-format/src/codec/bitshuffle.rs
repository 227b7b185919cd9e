//! Bitshuffle: the lowest bit of the first byte of every element of a block, then the next bit of
//! all, and so on.
//!
//! A block is a multiple of eight elements. In a block of *n* elements, bit *j* of byte *b* of
//! element *i* is bit *i* mod 8 of byte (8 *b* + *j*) *n*/8 + *i*/8. The last block holds the rest,
//! down to a multiple of eight; the remaining up to seven elements follow unchanged. As with lz4,
//! compressed blocks follow a header, which holds the length of a block.

use std::cell::RefCell;

use super::lz4::{self, Blocks};
use super::{BlockCodec, CodecError, zstandard};

pub(super) const NAME: &str = "bitshuffle";

/// Blocks are a multiple of this many elements.
pub(super) const GROUP: usize = 8;

thread_local! {
    /// A block between decompression and the transposition of its bits.
    static BLOCK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Decodes exactly `into`.
pub(super) fn decode(
    encoded: &[u8],
    into: &mut [u8],
    item_bytes: usize,
    block_items: usize,
    blocks: BlockCodec,
) -> Result<(), CodecError> {
    if item_bytes == 0 || block_items == 0 || !block_items.is_multiple_of(GROUP) {
        return Err(CodecError::new(NAME, "block", "a multiple of eight elements", block_items));
    }
    if !into.len().is_multiple_of(item_bytes) {
        return Err(CodecError::new(NAME, "length", format!("elements of {item_bytes} bytes"), into.len()));
    }
    // Whole groups are shuffled, what is left is not.
    let shuffled_bytes = into.len() / (GROUP * item_bytes) * (GROUP * item_bytes);
    let (shuffled, plain) = into.split_at_mut(shuffled_bytes);
    let rest = if blocks == BlockCodec::Stored {
        if encoded.len() != shuffled_bytes + plain.len() {
            return Err(CodecError::length(NAME, shuffled_bytes + plain.len(), encoded.len()));
        }
        let (stored, rest) = encoded.split_at(shuffled_bytes);
        let block_bytes = block_items * item_bytes;
        for (block, stored) in shuffled.chunks_mut(block_bytes).zip(stored.chunks(block_bytes)) {
            transpose(stored, block, item_bytes);
        }
        rest
    } else {
        let mut stored = Blocks::new(NAME, encoded, shuffled_bytes + plain.len())?;
        let block_bytes = stored.block_bytes;
        if !block_bytes.is_multiple_of(GROUP * item_bytes) {
            let expected = format!("a multiple of {GROUP} elements of {item_bytes} bytes");
            return Err(CodecError::new(NAME, "block", expected, block_bytes));
        }
        BLOCK.with_borrow_mut(|bits| {
            for block in shuffled.chunks_mut(block_bytes) {
                let stored = stored.next()?;
                bits.resize(block.len().max(bits.len()), 0);
                let bits = &mut bits[..block.len()];
                match blocks {
                    BlockCodec::Zstd => zstandard::decode(stored, bits)?,
                    BlockCodec::Lz4 | BlockCodec::Stored => lz4::decode_block(NAME, stored, bits)?,
                }
                transpose(bits, block, item_bytes);
            }
            Ok(())
        })?;
        stored.rest()
    };
    let rest = rest.get(..plain.len()).ok_or_else(|| CodecError::ends(NAME, "the last elements"))?;
    plain.copy_from_slice(rest);
    Ok(())
}

/// Puts the bits of one block back; both are a multiple of eight elements long.
fn transpose(bits: &[u8], into: &mut [u8], item_bytes: usize) {
    let groups = into.len() / (GROUP * item_bytes);
    if groups == 0 {
        return;
    }
    for (byte, planes) in bits.chunks_exact(8 * groups).enumerate() {
        let planes: [&[u8]; 8] = std::array::from_fn(|bit| &planes[bit * groups..][..groups]);
        for (group, elements) in into.chunks_exact_mut(GROUP * item_bytes).enumerate() {
            let square = u64::from_le_bytes(std::array::from_fn(|bit| planes[bit][group]));
            let bytes = transpose_square(square).to_le_bytes();
            for (element, value) in bytes.iter().enumerate() {
                elements[element * item_bytes + byte] = *value;
            }
        }
    }
}

/// Mirrors a square of 8 by 8 bits, one row per byte (Warren, Hacker's Delight, section 7-3).
fn transpose_square(mut square: u64) -> u64 {
    for (shift, mask) in
        [(7, 0x00aa_00aa_00aa_00aa), (14, 0x0000_cccc_0000_cccc), (28, 0x0000_0000_f0f0_f0f0)]
    {
        let swapped = (square ^ (square >> shift)) & mask;
        square ^= swapped ^ (swapped << shift);
    }
    square
}
