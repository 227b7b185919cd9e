//! Which blocks a reader asks the kernel to prefetch before it reads its next one.

/// Minimum read-ahead \[bytes\]: more than any storage delivers within its latency.
const AHEAD_BYTES: u64 = 8 << 20;
/// Maximum number of blocks of that read-ahead.
const AHEAD_BLOCKS: u64 = 16;

/// The blocks that a reader announces before it reads its next one: earlier blocks, whose readers
/// come later, and at least as many later blocks as there are readers, more if they are small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnnounceWindow {
    first: u64,
    last: u64,
}

impl AnnounceWindow {
    /// Of one of `readers`, before it reads block `sequence`, of `block_bytes`. `token_start` is
    /// the first block that the node's read token allows, if there is one.
    #[must_use]
    pub fn new(sequence: u64, block_bytes: u64, readers: u64, token_start: Option<u64>) -> Self {
        let ahead = readers.max((AHEAD_BYTES / block_bytes.max(1)).min(AHEAD_BLOCKS));
        let earliest = sequence.saturating_sub(readers.saturating_sub(1));
        Self { first: earliest.max(token_start.unwrap_or(0)), last: sequence + ahead }
    }

    /// The block to announce next, where all before `announced` are; `None` at the window's end.
    #[must_use]
    pub fn next(&self, announced: u64) -> Option<u64> {
        Some(self.first.max(announced)).filter(|sequence| *sequence <= self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_reader_announces_the_blocks_of_the_others_and_what_keeps_the_storage_busy() {
        for (sequence, length, readers, token_start, first, last) in [
            // A reader that comes first announces the blocks of the others before its own.
            (0, 16 * MIB, 4, None, 0, 4),
            (3, 16 * MIB, 4, None, 0, 7),
            (4, 16 * MIB, 4, None, 1, 8),
            (9, 16 * MIB, 4, None, 6, 13),
            (7, 16 * MIB, 1, None, 7, 8),
            (7, 16 * MIB, 0, None, 7, 7),
            // Small blocks: 8 MiB, at most 16 blocks.
            (9, MIB, 4, None, 6, 17),
            (9, 4096, 4, None, 6, 25),
            (9, 0, 32, None, 0, 41),
            // Nothing before what the token allows.
            (9, MIB, 4, Some(8), 8, 17),
            (9, MIB, 4, Some(2), 6, 17),
        ] {
            let window = AnnounceWindow::new(sequence, length, readers, token_start);
            assert_eq!(window, AnnounceWindow { first, last }, "block {sequence} of {length} bytes");
        }
    }

    #[test]
    fn what_is_announced_already_is_not_announced_again() {
        let window = AnnounceWindow { first: 3, last: 5 };
        for (announced, next) in [(0, Some(3)), (3, Some(3)), (4, Some(4)), (5, Some(5)), (6, None)] {
            assert_eq!(window.next(announced), next);
        }
    }
}
