//! Fletcher32: four bytes after the data, a sum of its 16-bit words and a sum of these sums.
//!
//! Words are big-endian, and an odd byte is the high half of a last word. Both sums are folded to
//! 16 bits, and the checksum is little-endian. HDF5 before 1.6.3 swapped the bytes of both halves;
//! both forms are accepted, as by HDF5.

use super::CodecError;

pub(super) const NAME: &str = "fletcher32";

/// Length of the checksum \[bytes\].
pub(super) const CHECKSUM_BYTES: usize = 4;

/// Words that are summed before folding: the sum of their sums stays below 2³².
const WORDS_AT_ONCE: usize = 256;

/// Copies exactly `into` and compares the checksum after it.
pub(super) fn decode(encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    let Some((data, stored)) = encoded.split_last_chunk::<CHECKSUM_BYTES>() else {
        return Err(CodecError::ends(NAME, "a checksum"));
    };
    if data.len() != into.len() {
        return Err(CodecError::length(NAME, into.len(), data.len()));
    }
    let (found, stored) = (checksum(data), u32::from_le_bytes(*stored));
    let swapped = (found & 0x00ff_00ff) << 8 | (found >> 8) & 0x00ff_00ff;
    if stored != found && stored != swapped {
        let (expected, found) = (format!("{stored:#010x}"), format!("{found:#010x}"));
        return Err(CodecError::new(NAME, "checksum", expected, found));
    }
    into.copy_from_slice(data);
    Ok(())
}

/// The checksum of `data`.
fn checksum(data: &[u8]) -> u32 {
    let (mut sum, mut sum_of_sums) = (0_u64, 0_u64);
    let (words, odd) = data.as_chunks::<2>();
    for words in words.chunks(WORDS_AT_ONCE) {
        let count = words.len() as u32;
        // Sums within the block: each word is in its own partial sum and in those of all later
        // words.
        let (mut block_sum, mut block_sums) = (0_u32, 0_u32);
        for (index, word) in words.iter().enumerate() {
            let word = u32::from(u16::from_be_bytes(*word));
            block_sum += word;
            block_sums += word * (count - index as u32);
        }
        sum_of_sums = fold(sum_of_sums + sum * u64::from(count) + u64::from(block_sums));
        sum = fold(sum + u64::from(block_sum));
    }
    if let [byte] = odd {
        sum = fold(sum + (u64::from(*byte) << 8));
        sum_of_sums = fold(sum_of_sums + sum);
    }
    (sum_of_sums as u32) << 16 | sum as u32
}

/// The same number modulo 2¹⁶ − 1, in 16 bits; 0 for 0 only.
fn fold(mut sum: u64) -> u64 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}
