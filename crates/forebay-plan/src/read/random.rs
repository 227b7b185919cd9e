//! Plans the reads of samples that one process requests by id.
//!
//! No blocks and no staging: each read goes to memory of a thread, or to the place of a value.
//!
//! 1. The extents of all units are sorted by file and offset; what overlaps is read once.
//! 2. Neighbours become one read if the gap between them is at most [`gap_bytes`] and the read is
//!    at most [`MAX_READ_BYTES`] long. A longer extent is one read.
//!
//! The number of threads is decided here, too ([`read_threads`]).

use std::ops::Range;

use forebay_types::{Extent, Located};

use crate::read::plan::IoLimits;
use crate::read::runs::{coalesce, sorted_pieces};

/// Gap up to which two extents of a file on this node become one read \[bytes\]: the page cache
/// fetches whole pages anyway.
const LOCAL_GAP_BYTES: u64 = 4 << 10;

/// The same on storage of other nodes \[bytes\]: reading and dropping 64 KiB cost less than a
/// second request on every storage measured in docs/results.
const REMOTE_GAP_BYTES: u64 = 64 << 10;

/// Largest read of several extents \[bytes\]. Longer ones gain nothing, and leave threads without
/// work.
const MAX_READ_BYTES: u64 = 1 << 20;

/// Bytes of files on this node that are worth a further thread: their copy takes about 100 µs, the
/// start of a thread about 30 µs.
const BYTES_PER_THREAD: u64 = 1 << 20;

/// Threads that copy from the page cache: more do not copy faster.
const MAX_LOCAL_THREADS: usize = 4;

/// Threads that wait for storage of other nodes, where each read takes a round trip.
const MAX_REMOTE_THREADS: usize = 16;

/// One read, and the pieces that it fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RandomRead {
    /// What is read.
    pub extent: Extent,
    pieces: Range<usize>,
}

/// The reads for some located samples, in the order of files and offsets.
#[derive(Clone, Debug, Default)]
pub struct RandomReads {
    sorted: Vec<(Extent, u32)>,
    reads: Vec<RandomRead>,
}

impl RandomReads {
    /// Plans the reads of all units; `is_local`: the files are on file systems of this node.
    #[must_use]
    pub fn of(located: &Located, is_local: bool) -> Self {
        let limits = IoLimits {
            gap_bytes: gap_bytes(is_local),
            max_read_bytes: MAX_READ_BYTES,
            align_bytes: 1,
            boundary_bytes: None,
            in_place_bytes: None,
            block_bytes: 0,
            reads_per_block: 0,
        };
        let sorted = sorted_pieces(located);
        let read = |run: &crate::read::runs::ReadRun| {
            let first = run.first as usize;
            RandomRead { extent: run.extent, pieces: first..first + run.pieces as usize }
        };
        let reads = coalesce(&sorted, &[], &limits).iter().map(read).collect();
        Self { sorted, reads }
    }

    /// All reads.
    #[must_use]
    pub fn reads(&self) -> &[RandomRead] {
        &self.reads
    }

    /// The pieces that a read fetches: extent, and index in [`Located::pieces`].
    #[must_use]
    pub fn pieces(&self, read: &RandomRead) -> &[(Extent, u32)] {
        &self.sorted[read.pieces.clone()]
    }

    /// Bytes of all reads.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.reads.iter().map(|read| read.extent.length).sum()
    }
}

fn gap_bytes(is_local: bool) -> u64 {
    if is_local { LOCAL_GAP_BYTES } else { REMOTE_GAP_BYTES }
}

/// How many threads make `reads` reads of `bytes` bytes: as `wanted`, else as the storage suits.
#[must_use]
pub fn read_threads(wanted: Option<usize>, reads: usize, bytes: u64, is_local: bool, cores: usize) -> usize {
    let suits = if is_local {
        (bytes / BYTES_PER_THREAD).min(cores.min(MAX_LOCAL_THREADS) as u64) as usize
    } else {
        MAX_REMOTE_THREADS
    };
    wanted.unwrap_or(suits).min(reads).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{CodecChain, Piece, ShardId, Slice};
    use proptest::prelude::*;

    fn located(units: &[Vec<(u32, u64, u64)>]) -> Located {
        let mut located = Located::default();
        located.clear(1);
        for extents in units {
            let pieces: Vec<Piece> = extents
                .iter()
                .map(|(shard, offset, length)| {
                    Piece::Extent(Extent { shard: ShardId(*shard), offset: *offset, length: *length })
                })
                .collect();
            let bytes = extents.iter().map(|(_, _, length)| length).sum();
            let unit = located.push_unit(&pieces, CodecChain::STORED, bytes, 0);
            located.push_slice(Slice { unit, offset: 0, length: bytes });
            located.end_column();
        }
        located
    }

    #[test]
    fn threads_follow_the_storage_the_bytes_and_the_request() {
        const MIB: u64 = 1 << 20;
        for (wanted, reads, bytes, is_local, cores, threads) in [
            (None, 256, 800 << 10, true, 8, 1),
            (None, 256, 3 * MIB, true, 8, 3),
            (None, 256, 28 * MIB, true, 8, 4),
            (None, 256, 28 * MIB, true, 2, 2),
            (None, 256, 800 << 10, false, 2, 16),
            (None, 3, 800 << 10, false, 2, 3),
            (Some(8), 256, 10, true, 2, 8),
            (Some(8), 1, 10, true, 2, 1),
            (None, 0, 0, false, 2, 1),
        ] {
            assert_eq!(read_threads(wanted, reads, bytes, is_local, cores), threads);
        }
    }

    #[test]
    fn neighbours_are_one_read_and_a_long_extent_is_read_at_once() {
        let near = LOCAL_GAP_BYTES;
        let extents = [(0, 100 + near, 100), (0, 0, 100), (0, 201 + 2 * near, 3 * MAX_READ_BYTES), (1, 0, 5)];
        let located = located(&extents.map(|extent| vec![extent]));
        let plan = RandomReads::of(&located, true);
        let found: Vec<_> = plan
            .reads()
            .iter()
            .map(|read| (read.extent.shard.0, read.extent.offset, read.extent.length))
            .collect();
        assert_eq!(found, [(0, 0, 200 + near), (0, 201 + 2 * near, 3 * MAX_READ_BYTES), (1, 0, 5)]);
        // The gap of storage of other nodes is larger; the limit of a read stays.
        assert_eq!(RandomReads::of(&located, false).reads().len(), 3);
    }

    proptest! {
        #[test]
        fn reads_cover_each_extent_once_and_nothing_but_gaps_besides(
            units in prop::collection::vec(
                prop::collection::vec((0_u32..3, 0_u64..1 << 22, 1_u64..200_000), 1..4), 0..60,
            ),
            is_local in any::<bool>(),
        ) {
            let located = located(&units);
            let plan = RandomReads::of(&located, is_local);
            // Each piece is in exactly one read, and inside of it.
            let mut seen = vec![0; located.pieces().len()];
            for read in plan.reads() {
                let pieces = plan.pieces(read);
                for (extent, piece) in pieces {
                    seen[*piece as usize] += 1;
                    prop_assert_eq!(located.pieces()[*piece as usize], Piece::Extent(*extent));
                    prop_assert_eq!(extent.shard, read.extent.shard);
                    prop_assert!(read.extent.offset <= extent.offset && extent.end() <= read.extent.end());
                }
                // It begins and ends with a piece, and has no larger gap. Only overlaps make it
                // longer than the limit.
                let start = read.extent.offset;
                prop_assert_eq!(start, pieces[0].0.offset);
                let mut end = pieces[0].0.end();
                for (extent, _) in &pieces[1..] {
                    if extent.offset >= end {
                        prop_assert!(extent.offset - end <= gap_bytes(is_local));
                        prop_assert!(extent.end() - start <= MAX_READ_BYTES);
                    }
                    end = end.max(extent.end());
                }
                prop_assert_eq!(read.extent.end(), end);
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
            // No byte is read twice.
            for pair in plan.reads().windows(2) {
                let (left, right) = (pair[0].extent, pair[1].extent);
                prop_assert!(left.shard < right.shard || left.end() <= right.offset);
            }
        }
    }
}
