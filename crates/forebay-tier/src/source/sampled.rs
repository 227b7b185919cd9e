//! A sample of the bytes of a file, which stands for all of them: a change that leaves size and
//! times of a file as they were, such as another image mounted at its place, is noticed by its
//! content.
//!
//! The sample is a block in each 8 MiB, at most 16, at places that the caller's seed chooses: jobs
//! choose others each time. A change of everything is always noticed, one of a share *s* of the
//! bytes with a probability of 1 − (1 − *s*)ⁿ by *n* blocks.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::read_all::read_all;

/// Length of a block of a sample \[bytes\].
pub const BLOCK_BYTES: u64 = 4096;

/// Bytes of a file that a block stands for \[bytes\].
pub(crate) const BYTES_PER_BLOCK: u64 = 8 << 20;

/// Blocks of one file, at most.
const MAX_BLOCKS: u64 = 16;

/// How many blocks stand for a number of bytes.
#[must_use]
pub(crate) fn sample_blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_BLOCK).min(MAX_BLOCKS)
}

/// A number below `below`, which must not be 0: another for each `number`, the same for the same
/// seed.
#[must_use]
pub(crate) fn pick(seed: u64, number: u64, below: u64) -> u64 {
    let mut words = [0; 16];
    words[..8].copy_from_slice(&seed.to_le_bytes());
    words[8..].copy_from_slice(&number.to_le_bytes());
    xxh3_64(&words) % below
}

/// The blocks of the sample of a file of this size.
#[must_use]
pub fn sampled_blocks(bytes: u64, seed: u64) -> Vec<Range<u64>> {
    let blocks = bytes.div_ceil(BLOCK_BYTES);
    let block = |number| {
        let start = pick(seed, number, blocks) * BLOCK_BYTES;
        start..(start + BLOCK_BYTES).min(bytes)
    };
    (0..sample_blocks(bytes)).map(block).collect()
}

/// A checksum of the sample of an open file of this size: the same for the same bytes and seed.
///
/// # Errors
/// Those of the system; a file that is shorter.
pub fn sampled_checksum(file: impl AsFd, bytes: u64, seed: u64) -> io::Result<u128> {
    let mut hash = Xxh3::new();
    let mut block = [0; BLOCK_BYTES as usize];
    for range in sampled_blocks(bytes, seed) {
        let into = &mut block[..(range.end - range.start) as usize];
        read_all(&file, range.start, into)?;
        hash.update(into);
    }
    Ok(hash.digest128())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_sample_is_a_block_in_each_8_mib_and_lies_in_the_file() {
        assert_eq!(sampled_blocks(0, 1), []);
        assert_eq!(sampled_blocks(5, 1), vec![0..5]);
        for bytes in [4096, 4097, 8 << 20, (8 << 20) + 1, 100 << 20, 1 << 40] {
            let blocks = sampled_blocks(bytes, 7);
            assert_eq!(blocks.len() as u64, sample_blocks(bytes));
            assert!(blocks.iter().all(|block| block.start < block.end && block.end <= bytes));
        }
        assert_ne!(sampled_blocks(1 << 40, 1), sampled_blocks(1 << 40, 2));
    }

    #[test]
    fn files_of_the_same_size_with_other_bytes_have_other_checksums() {
        let directory = tempfile::tempdir().unwrap();
        let made = |name: &str, byte: u8| {
            let path = directory.path().join(name);
            std::fs::write(&path, vec![byte; 100_000]).unwrap();
            File::options().read(true).write(true).open(path).unwrap()
        };
        let sum = |file: &File| sampled_checksum(file, 100_000, 5).unwrap();
        let (one, same, other) = (made("one", 1), made("same", 1), made("other", 2));
        assert_eq!(sum(&one), sum(&same));
        assert_ne!(sum(&one), sum(&other));
        one.set_len(0).unwrap();
        assert!(sampled_checksum(&one, 100_000, 5).is_err());
    }
}
