//! Blocks of Riegeli files: every 64 KiB begin with a header of 24 bytes, which interrupts whatever
//! stands there.

use crate::Error;
use crate::file::HeaderScan;
use crate::index::sidecar::PartPiece;

/// Length of a block \[bytes\].
pub(super) const BLOCK_BYTES: u64 = 1 << 16;

/// Length of the header at its start \[bytes\].
const HEADER_BYTES: u64 = 24;

/// The stretches of a file that hold `length` bytes from `at` on, without headers of blocks: start
/// and length \[bytes\].
///
/// The caller has checked that the file holds them.
fn stretches(mut at: u64, mut length: u64) -> impl Iterator<Item = (u64, u64)> {
    std::iter::from_fn(move || {
        if length == 0 {
            return None;
        }
        at += skipped(at);
        let count = length.min(BLOCK_BYTES - at % BLOCK_BYTES);
        let stretch = (at, count);
        at += count;
        length -= count;
        Some(stretch)
    })
}

/// Length of the rest of the block header at `at`; 0 where none is there \[bytes\].
fn skipped(at: u64) -> u64 {
    HEADER_BYTES.saturating_sub(at % BLOCK_BYTES)
}

/// The stretches as pieces of a unit.
pub(super) fn pieces(at: u64, length: u64) -> Vec<PartPiece> {
    stretches(at, length).map(|(offset, length)| PartPiece::Extent { offset, length }).collect()
}

/// Where `length` bytes from `at` on end; `None` on overflow.
pub(super) fn end(at: u64, length: u64) -> Option<u64> {
    let usable = BLOCK_BYTES - HEADER_BYTES;
    // Counted from the first byte of the block that is not of its header.
    let begin = at + skipped(at) - HEADER_BYTES;
    let within = (begin % BLOCK_BYTES).checked_add(length)?;
    if length == 0 {
        return Some(at);
    }
    let headers = within.div_ceil(usable).checked_mul(HEADER_BYTES)?;
    (begin - begin % BLOCK_BYTES).checked_add(within)?.checked_add(headers)
}

/// The first place from `at` on where a chunk may begin: not within a header of a block, and not
/// right after one.
pub(super) fn chunk_boundary(at: u64) -> u64 {
    let within = at % BLOCK_BYTES;
    if (1..=HEADER_BYTES).contains(&within) { at - within + HEADER_BYTES + 1 } else { at }
}

/// Reads `length` bytes from `at` on.
pub(super) fn read(scan: &mut HeaderScan<'_>, at: u64, length: u64, what: &str) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::with_capacity(length as usize);
    for (at, count) in stretches(at, length) {
        bytes.extend_from_slice(scan.bytes(at, count as usize, what)?);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_that_of_the_last_stretch() {
        for at in [0, 1, 23, 24, 25, 64, 65_000, 65_535, 65_536, 65_540, 131_071] {
            for length in [1, 2, 24, 40, 500, 65_511, 65_512, 65_513, 131_024, 200_000] {
                let all: Vec<_> = stretches(at, length).collect();
                let (start, count) = all[all.len() - 1];
                assert_eq!(end(at, length), Some(start + count), "{length} bytes from {at} on");
                assert_eq!(all.iter().map(|(_, count)| count).sum::<u64>(), length);
                assert!(all.iter().all(|(start, _)| start % BLOCK_BYTES >= HEADER_BYTES));
            }
        }
        assert_eq!(end(100, 0), Some(100));
        assert_eq!(end(64, u64::MAX), None);
    }

    #[test]
    fn chunks_begin_neither_in_a_header_nor_right_after_one() {
        for (at, expected) in [(0, 0), (1, 25), (24, 25), (25, 25), (65_536, 65_536), (65_560, 65_561)] {
            assert_eq!(chunk_boundary(at), expected);
        }
    }
}
