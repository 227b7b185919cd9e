//! CRC-32C of bytes that are not in any cache: the next ones are requested from memory before the
//! present ones are read.
//!
//! Samples are far from each other, so the processor cannot guess which is next. Without these
//! requests, the checksum of cold samples of 3 KB runs at 5 GB/s, with them at 11 GB/s (34 GB/s if
//! the bytes are in the cache).

/// Bytes that are read at once \[bytes\]: a multiple of what the checksum computes in one step
/// (768).
pub(crate) const BLOCK_BYTES: usize = 3 << 10;
const CACHE_LINE_BYTES: usize = 64;

/// Continues a checksum with `bytes`, then requests the start of `next`.
pub(crate) fn append(mut checksum: u32, bytes: &[u8], next: &[u8]) -> u32 {
    let mut blocks = bytes.chunks(BLOCK_BYTES).peekable();
    while let Some(block) = blocks.next() {
        prefetch(blocks.peek().copied().unwrap_or(next));
        checksum = crc32c::crc32c_append(checksum, block);
    }
    checksum
}

/// Requests the first block of `bytes` from memory.
#[cfg(target_arch = "x86_64")]
fn prefetch(bytes: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in bytes[..bytes.len().min(BLOCK_BYTES)].chunks(CACHE_LINE_BYTES) {
        // SAFETY: a hint reads nothing, and the address is valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch(_bytes: &[u8]) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_in_blocks_is_that_of_all_bytes() {
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at * 7) as u8).collect();
        for length in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, bytes.len()] {
            let (first, next) = bytes.split_at(length);
            assert_eq!(append(0, first, next), crc32c::crc32c(first), "{length}");
        }
    }
}
