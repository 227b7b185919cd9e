//! Bytes of a group of samples that were read in place, and how small reads are joined.
//!
//! `fetch.rs` fills it, `sample.rs` takes bytes from it.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

use forebay_types::Extent;

/// Gap that is read through between small extents \[bytes\]: the page cache fetches the page
/// anyway.
const GAP_BYTES: u64 = 4 << 10;

/// Largest request for small extents \[bytes\].
const REQUEST_BYTES: u64 = 1 << 20;

/// What was read for a group of samples.
#[derive(Default)]
pub(crate) struct InPlace {
    memory: Vec<u8>,
    /// Where an extent is in `memory`.
    extents: HashMap<Extent, Range<usize>>,
    /// Memory of extents that came from a store, and where they are in it.
    fetched: Vec<u8>,
    fetched_extents: HashMap<Extent, Range<usize>>,
    /// Columns that are in the batch: slot times columns plus column.
    placed: Vec<usize>,
    /// Whether the samples at hand were looked through for what is missing.
    asked: bool,
    /// Whether a sample found bytes that are neither mapped nor here.
    missed: Cell<bool>,
}

impl InPlace {
    /// The bytes of a small extent.
    pub(crate) fn get(&self, extent: Extent) -> Option<&[u8]> {
        let read = || self.extents.get(&extent).map(|range| &self.memory[range.clone()]);
        let fetched = || self.fetched_extents.get(&extent).map(|range| &self.fetched[range.clone()]);
        if self.extents.is_empty() && self.fetched_extents.is_empty() {
            return None;
        }
        read().or_else(fetched)
    }

    /// Whether a column is in the batch: slot times columns plus column.
    pub(crate) fn is_placed(&self, cell: usize) -> bool {
        self.placed.contains(&cell)
    }

    /// Takes the memory of a run, to be filled.
    pub(crate) fn memory_of(&mut self, run: &Run) -> &mut [u8] {
        let end = run.start + run.extent.length as usize;
        self.memory.resize(self.memory.len().max(end), 0);
        &mut self.memory[run.start..end]
    }

    /// Takes over the extents of a run whose memory is filled; `small` are those of all runs.
    pub(crate) fn has(&mut self, run: &Run, small: &[Extent]) {
        for member in &small[run.members.clone()] {
            let start = run.start + (member.offset - run.extent.offset) as usize;
            self.extents.insert(*member, start..start + member.length as usize);
        }
    }

    /// Memory for extents that come from a store, one after the other.
    pub(crate) fn fetched_memory(&mut self, bytes: usize) -> &mut [u8] {
        self.fetched.resize(self.fetched.len().max(bytes), 0);
        &mut self.fetched[..bytes]
    }

    /// Takes over these extents, whose memory is filled.
    pub(crate) fn has_fetched(&mut self, extents: impl Iterator<Item = Extent>) {
        let mut start = 0;
        for extent in extents {
            let end = start + extent.length as usize;
            self.fetched_extents.insert(extent, start..end);
            start = end;
        }
    }

    /// Notes that a column is in the batch.
    pub(crate) fn place(&mut self, cell: usize) {
        self.placed.push(cell);
    }

    /// Begins with another group of samples, which are looked through for what is missing.
    pub(crate) fn begin(&mut self) {
        self.clear();
        self.asked = true;
    }

    /// Notes that bytes are neither mapped nor here.
    pub(crate) fn miss(&self) {
        self.missed.set(true);
    }

    /// Whether the next samples should be looked through for what is missing.
    pub(crate) fn wants_more(&self) -> bool {
        self.missed.get() && !self.asked
    }

    /// Forgets what was read for other samples.
    pub(crate) fn clear(&mut self) {
        self.extents.clear();
        self.fetched_extents.clear();
        self.placed.clear();
        self.asked = false;
        self.missed.set(false);
    }
}

/// Small extents that are one request.
pub(crate) struct Run {
    pub(crate) extent: Extent,
    /// Where they go in the memory of [`InPlace`].
    pub(crate) start: usize,
    /// The extents, as a range of the sorted list.
    pub(crate) members: Range<usize>,
}

/// Joins sorted extents to requests.
pub(crate) fn runs(small: &[Extent]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut memory = 0;
    for (number, extent) in small.iter().enumerate() {
        if let Some(run) = runs.last_mut()
            && run.extent.shard == extent.shard
            && extent.offset <= run.extent.end() + GAP_BYTES
            && extent.end() - run.extent.offset <= REQUEST_BYTES
        {
            let grown = extent.end().max(run.extent.end()) - run.extent.offset;
            memory += (grown - run.extent.length) as usize;
            run.extent.length = grown;
            run.members.end = number + 1;
            continue;
        }
        runs.push(Run { extent: *extent, start: memory, members: number..number + 1 });
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
    fn close_extents_of_one_file_are_one_request() {
        let small = [extent(0, 0, 10), extent(0, 4_000, 10), extent(0, 9_000, 10), extent(1, 9_010, 10)];
        let found: Vec<_> =
            runs(&small).iter().map(|run| (run.extent, run.start, run.members.clone())).collect();
        assert_eq!(
            found,
            [
                (extent(0, 0, 4_010), 0, 0..2),
                (extent(0, 9_000, 10), 4_010, 2..3),
                (extent(1, 9_010, 10), 4_020, 3..4)
            ]
        );
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
            let runs = runs(&small);
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
