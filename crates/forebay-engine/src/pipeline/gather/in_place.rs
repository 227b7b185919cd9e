//! Bytes of a group of samples that are staged in no block.
//!
//! `fetch/` fills it, `sample.rs` takes bytes from it.

use std::cell;
use std::collections::HashMap;
use std::ops::Range;

use forebay_plan::InPlaceRun;
use forebay_types::Extent;

/// Where the bytes of a column are that is one extent.
#[derive(Clone, Copy, Default)]
enum Cell<'a> {
    /// Where those of its extent are.
    #[default]
    Extent,
    /// In memory of a level.
    Level(&'a [u8]),
    /// In the batch.
    Batch,
}

/// Where the bytes of an extent are.
enum Place<'a> {
    /// In memory of a level.
    Level(&'a [u8]),
    /// In `memory`.
    Fetched(Range<usize>),
}

/// What was found in memory or fetched for a group of samples.
#[derive(Default)]
pub(crate) struct InPlace<'a> {
    memory: Vec<u8>,
    /// Bytes of `memory` that are in use.
    used: usize,
    extents: HashMap<Extent, Place<'a>>,
    /// The columns: slot times columns plus column.
    cells: Vec<Cell<'a>>,
    /// Whether the samples at hand were looked through for what is missing.
    asked: bool,
    /// Whether a sample found bytes that are neither in memory nor here.
    missed: cell::Cell<bool>,
}

impl<'a> InPlace<'a> {
    /// Uses the memory of an earlier one.
    pub(crate) fn with_memory(memory: Vec<u8>) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Its memory, for a later one.
    pub(crate) fn into_memory(self) -> Vec<u8> {
        self.memory
    }

    /// The bytes of an extent.
    pub(crate) fn get(&self, extent: Extent) -> Option<&[u8]> {
        if self.extents.is_empty() {
            return None;
        }
        Some(match self.extents.get(&extent)? {
            Place::Level(bytes) => bytes,
            Place::Fetched(range) => &self.memory[range.clone()],
        })
    }

    /// Whether a column is in the batch: slot times columns plus column.
    pub(crate) fn is_placed(&self, cell: usize) -> bool {
        matches!(self.cells.get(cell), Some(Cell::Batch))
    }

    /// The bytes of a column that is one extent in memory of a level.
    pub(crate) fn of_cell(&self, cell: usize) -> Option<&'a [u8]> {
        match self.cells.get(cell)? {
            Cell::Level(bytes) => Some(bytes),
            Cell::Extent | Cell::Batch => None,
        }
    }

    /// Takes over a column that is one extent in memory of a level.
    pub(crate) fn found_cell(&mut self, cell: usize, bytes: &'a [u8]) {
        self.set(cell, Cell::Level(bytes));
    }

    /// Takes over an extent that is in memory of a level.
    pub(crate) fn found(&mut self, extent: Extent, bytes: &'a [u8]) {
        self.extents.insert(extent, Place::Level(bytes));
    }

    /// More memory, to be filled, and where it begins.
    pub(crate) fn more_memory(&mut self, bytes: usize) -> (usize, &mut [u8]) {
        let (start, end) = (self.used, self.used + bytes);
        self.memory.resize(self.memory.len().max(end), 0);
        self.used = end;
        (start, &mut self.memory[start..end])
    }

    /// Takes over the extents of a run whose memory is filled: of runs whose memory begins at
    /// `start`, and of `small` extents.
    pub(crate) fn has(&mut self, start: usize, run: &InPlaceRun, small: &[Extent]) {
        for member in &small[run.members.clone()] {
            let start = start + run.start + (member.offset - run.extent.offset) as usize;
            self.extents.insert(*member, Place::Fetched(start..start + member.length as usize));
        }
    }

    /// Notes that a column is in the batch.
    pub(crate) fn place(&mut self, cell: usize) {
        self.set(cell, Cell::Batch);
    }

    fn set(&mut self, cell: usize, place: Cell<'a>) {
        self.cells.resize(self.cells.len().max(cell + 1), Cell::Extent);
        self.cells[cell] = place;
    }

    /// Begins with another group of samples, which are looked through for what is missing.
    pub(crate) fn begin(&mut self) {
        self.used = 0;
        self.extents.clear();
        self.cells.clear();
        self.asked = true;
        self.missed.set(false);
    }

    /// Whether the samples at hand were looked through for what is missing.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked
    }

    /// Notes that bytes are neither in memory nor here.
    pub(crate) fn miss(&self) {
        self.missed.set(true);
    }

    /// Whether the next samples should be looked through for what is missing.
    pub(crate) fn has_misses(&self) -> bool {
        self.missed.get() && !self.asked
    }
}

#[cfg(test)]
mod tests {
    use forebay_plan::in_place_runs;
    use forebay_types::ShardId;

    use super::*;

    fn extent(shard: u32, offset: u64, length: u64) -> Extent {
        Extent { shard: ShardId(shard), offset, length }
    }

    #[test]
    fn bytes_come_from_a_level_or_from_memory_until_the_next_group() {
        let level = vec![1; 10];
        let mut in_place = InPlace::with_memory(vec![9; 3]);
        in_place.begin();
        in_place.found(extent(0, 5, 10), &level);
        for (fill, small) in
            [(2, [extent(0, 100, 4), extent(0, 110, 2)]), (3, [extent(1, 0, 1), extent(1, 1, 6)])]
        {
            let runs = in_place_runs(&small, Some(10));
            let (start, memory) = in_place.more_memory(runs[0].extent.length as usize);
            memory.fill(fill);
            in_place.has(start, &runs[0], &small);
        }
        assert_eq!(in_place.get(extent(0, 5, 10)), Some(&[1; 10][..]));
        assert_eq!(in_place.get(extent(0, 110, 2)), Some(&[2; 2][..]));
        assert_eq!(in_place.get(extent(1, 1, 6)), Some(&[3; 6][..]));
        assert_eq!(in_place.get(extent(0, 104, 6)), None);
        in_place.place(4);
        in_place.found_cell(2, &level);
        assert_eq!([2, 3, 4, 5].map(|cell| in_place.is_placed(cell)), [false, false, true, false]);
        assert_eq!([2, 3, 4, 5].map(|cell| in_place.of_cell(cell).is_some()), [true, false, false, false]);
        in_place.begin();
        assert!(
            in_place.get(extent(0, 5, 10)).is_none()
                && !in_place.is_placed(4)
                && in_place.of_cell(2).is_none()
        );
        assert_eq!(in_place.into_memory().len(), 19);
    }

    #[test]
    fn a_group_has_misses_until_samples_are_looked_through() {
        let mut in_place = InPlace::default();
        assert!(!in_place.has_misses());
        in_place.miss();
        assert!(in_place.has_misses());
        in_place.begin();
        in_place.miss();
        assert!(!in_place.has_misses());
    }
}
