//! Reads of what no reader staged: which samples are looked through together, and which requests
//! they take.
//!
//! - Small extents go to memory of the thread. Those that lie close together are one request.
//! - A large value of a raw field goes straight to its place in the batch, without a copy.
//!
//! The kernel is asked for the next requests while one is waited for.

use std::ops::Range;

use forebay_types::Extent;

/// Memory for the small extents of a group \[bytes\]; the first sample of a group may exceed it.
const GROUP_BYTES: u64 = 4 << 20;

/// How much the kernel is asked for ahead of the request that is waited for \[bytes\].
const AHEAD_BYTES: u64 = 16 << 20;

/// Largest request for small extents \[bytes\].
const REQUEST_BYTES: u64 = 1 << 20;

/// Whether a group whose small extents have `small_bytes` takes one sample more.
#[must_use]
pub fn group_takes_more(small_bytes: u64) -> bool {
    small_bytes <= GROUP_BYTES
}

/// How requests suit a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTraits {
    /// From this length on a raw value goes straight to its place \[bytes\].
    pub straight_bytes: u64,
    /// Gap that is read through between small extents \[bytes\]; `None`: each is a request.
    pub gap_bytes: Option<u64>,
}

impl RequestTraits {
    /// The files: below 64 KiB a copy costs less than a request, and the page cache fetches the
    /// page anyway.
    pub const FILES: Self = Self { straight_bytes: 64 << 10, gap_bytes: Some(4 << 10) };
    /// Shares of other nodes: small values cost no request of their own.
    pub const PEERS: Self = Self { straight_bytes: 0, gap_bytes: None };
}

/// Which requests the kernel is asked for, ahead of the one that is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskedAhead {
    asked: usize,
    bytes: u64,
}

impl AskedAhead {
    /// The requests to ask for before request `number` is made; each is called for once, in order.
    /// `extents` are all of them.
    pub fn before(&mut self, number: usize, extents: &[Extent]) -> Range<usize> {
        let begun = self.asked;
        while self.asked < extents.len() && (self.bytes < AHEAD_BYTES || self.asked <= number) {
            self.bytes += extents[self.asked].length;
            self.asked += 1;
        }
        self.bytes -= extents[number].length;
        begun.max(number + 1).min(self.asked)..self.asked
    }
}

/// Small extents that are one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPlaceRun {
    /// The bytes.
    pub extent: Extent,
    /// Where they go in the memory of the thread.
    pub start: usize,
    /// The extents, as a range of the sorted list.
    pub members: Range<usize>,
}

/// Joins sorted extents to requests, over gaps of up to `gap_bytes`; without, each is one.
#[must_use]
pub fn in_place_runs(small: &[Extent], gap_bytes: Option<u64>) -> Vec<InPlaceRun> {
    let mut runs: Vec<InPlaceRun> = Vec::new();
    let mut memory = 0;
    for (number, extent) in small.iter().enumerate() {
        if let (Some(gap_bytes), Some(run)) = (gap_bytes, runs.last_mut())
            && run.extent.shard == extent.shard
            && extent.offset <= run.extent.end() + gap_bytes
            && extent.end() - run.extent.offset <= REQUEST_BYTES
        {
            let grown = extent.end().max(run.extent.end()) - run.extent.offset;
            memory += (grown - run.extent.length) as usize;
            run.extent.length = grown;
            run.members.end = number + 1;
            continue;
        }
        runs.push(InPlaceRun { extent: *extent, start: memory, members: number..number + 1 });
        memory += extent.length as usize;
    }
    runs
}

#[cfg(test)]
mod tests {
    use forebay_types::ShardId;
    use proptest::prelude::*;

    use super::*;

    fn extent(shard: u32, offset: u64, length: u64) -> Extent {
        Extent { shard: ShardId(shard), offset, length }
    }

    #[test]
    fn a_group_ends_once_its_small_extents_exceed_its_memory() {
        assert!(group_takes_more(0) && group_takes_more(GROUP_BYTES) && !group_takes_more(GROUP_BYTES + 1));
    }

    #[test]
    fn the_kernel_is_asked_for_16_mib_ahead_and_once_for_each_request() {
        const MIB: u64 = 1 << 20;
        for (lengths, expected) in [
            (vec![MIB; 3], vec![1..3, 3..3, 3..3]),
            (vec![8 * MIB; 5], vec![1..2, 2..3, 3..4, 4..5, 5..5]),
            (vec![32 * MIB; 3], vec![1..1, 2..2, 3..3]),
            (vec![MIB, 32 * MIB, MIB], vec![1..2, 2..2, 3..3]),
        ] {
            let extents: Vec<Extent> = lengths.iter().map(|length| extent(0, 0, *length)).collect();
            let mut ahead = AskedAhead::default();
            let found: Vec<Range<usize>> =
                (0..extents.len()).map(|number| ahead.before(number, &extents)).collect();
            assert_eq!(found, expected, "{lengths:?}");
        }
    }

    #[test]
    fn close_extents_of_one_file_are_one_request() {
        let small = [extent(0, 0, 10), extent(0, 4_000, 10), extent(0, 9_000, 10), extent(1, 9_010, 10)];
        let found: Vec<_> = in_place_runs(&small, Some(4_000))
            .iter()
            .map(|run| (run.extent, run.start, run.members.clone()))
            .collect();
        assert_eq!(
            found,
            [
                (extent(0, 0, 4_010), 0, 0..2),
                (extent(0, 9_000, 10), 4_010, 2..3),
                (extent(1, 9_010, 10), 4_020, 3..4)
            ]
        );
        let alone = in_place_runs(&small, None);
        assert!(alone.iter().zip(&small).all(|(run, extent)| run.extent == *extent));
        assert_eq!(alone.iter().map(|run| run.start).collect::<Vec<_>>(), [0, 10, 20, 30]);
    }

    proptest! {
        #[test]
        fn requests_cover_every_extent_once(
            mut small in prop::collection::vec(
                (0_u32..3, 0_u64..1 << 22, 1_u64..200_000).prop_map(|(shard, offset, length)| extent(shard, offset, length)),
                0..60,
            ),
        ) {
            small.sort_unstable();
            small.dedup();
            let runs = in_place_runs(&small, Some(4 << 10));
            let members: Vec<usize> = runs.iter().flat_map(|run| run.members.clone()).collect();
            prop_assert_eq!(members, (0..small.len()).collect::<Vec<_>>());
            let mut memory = 0;
            for run in &runs {
                prop_assert_eq!(run.start, memory);
                memory += run.extent.length as usize;
                prop_assert!(run.members.len() == 1 || run.extent.length <= REQUEST_BYTES);
                for member in &small[run.members.clone()] {
                    prop_assert_eq!(member.shard, run.extent.shard);
                    prop_assert!(run.extent.offset <= member.offset && member.end() <= run.extent.end());
                }
            }
        }
    }
}
