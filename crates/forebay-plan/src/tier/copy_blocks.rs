//! The blocks in which the daemon of `forebay run` copies a file, and which of them are written.

/// Size of a block \[bytes\].
pub const BLOCK_BYTES: u64 = 1 << 20;

/// Blocks that one look at a file tries.
const BLOCKS_AT_ONCE: usize = 64;

/// Offset and length of a block of a file that is `bytes` bytes long \[bytes\].
#[must_use]
pub fn block_extent(block: u32, bytes: u64) -> (u64, usize) {
    let offset = u64::from(block) * BLOCK_BYTES;
    (offset, BLOCK_BYTES.min(bytes - offset) as usize)
}

/// Which blocks of a copy are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyBlocks {
    bytes: u64,
    is_written: Vec<bool>,
    /// Length of the blocks that are not written \[bytes\].
    missing_bytes: u64,
    /// All blocks before this one are written.
    first_missing: usize,
}

impl CopyBlocks {
    /// Those of a file that is `bytes` bytes long, none of which is written.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let blocks = bytes.div_ceil(BLOCK_BYTES) as usize;
        Self { bytes, is_written: vec![false; blocks], missing_bytes: bytes, first_missing: 0 }
    }

    /// Length of the file \[bytes\].
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether all are written.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing_bytes == 0
    }

    /// The blocks that are not written.
    pub fn missing(&self) -> impl Iterator<Item = u32> {
        let from = self.is_written.get(self.first_missing..).unwrap_or_default();
        (self.first_missing as u32..)
            .zip(from)
            .filter(|(_, is_written)| !**is_written)
            .map(|(block, _)| block)
    }

    /// Length of the blocks that are not written \[bytes\].
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        self.missing_bytes
    }

    /// The blocks that a look at the file tries, as programs may have read them.
    pub fn to_follow(&self) -> impl Iterator<Item = u32> {
        self.missing().take(BLOCKS_AT_ONCE)
    }

    /// Records that a block was written.
    pub fn written(&mut self, block: u32) {
        let Some(is_written) = self.is_written.get_mut(block as usize).filter(|written| !**written) else {
            return;
        };
        *is_written = true;
        self.missing_bytes -= block_extent(block, self.bytes).1 as u64;
        while self.is_written.get(self.first_missing) == Some(&true) {
            self.first_missing += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_ends_with_the_file() {
        for (block, bytes, expected) in [
            (0, 1, (0, 1)),
            (0, BLOCK_BYTES, (0, 1 << 20)),
            (1, BLOCK_BYTES + 7, (1 << 20, 7)),
            (5000, 5001 * BLOCK_BYTES, (5000 << 20, 1 << 20)),
        ] {
            assert_eq!(block_extent(block, bytes), expected, "{block} of {bytes}");
        }
    }

    #[test]
    fn a_copy_is_whole_once_each_block_is_written() {
        for order in [vec![0, 1, 2, 3], vec![3, 2, 1, 0], vec![1, 1, 9, 0, 3, 0, 2]] {
            let mut blocks = CopyBlocks::new(3 * BLOCK_BYTES + 7);
            let mut left = vec![0, 1, 2, 3];
            assert_eq!(blocks.missing_bytes(), blocks.bytes());
            for block in order {
                assert!(!blocks.is_whole());
                blocks.written(block);
                left.retain(|other| *other != block);
                assert_eq!(blocks.missing().collect::<Vec<_>>(), left);
                let bytes: u64 = left.iter().map(|block| if *block == 3 { 7 } else { BLOCK_BYTES }).sum();
                assert_eq!(blocks.missing_bytes(), bytes);
            }
            assert!(blocks.is_whole());
        }
        assert!(CopyBlocks::new(0).is_whole());
    }

    #[test]
    fn a_look_tries_the_first_64_blocks_that_are_missing() {
        let mut blocks = CopyBlocks::new(100 * BLOCK_BYTES);
        blocks.written(0);
        blocks.written(5);
        let tried: Vec<u32> = blocks.to_follow().collect();
        assert_eq!(tried, (1..66).filter(|block| *block != 5).collect::<Vec<_>>());
    }
}
