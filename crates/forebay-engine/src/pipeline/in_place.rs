//! Bytes of a group of samples that were read in place.
//!
//! `fetch.rs` fills it, `sample.rs` takes bytes from it.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

use forebay_plan::InPlaceRun;
use forebay_types::Extent;

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
    pub(crate) fn memory_of(&mut self, run: &InPlaceRun) -> &mut [u8] {
        let end = run.start + run.extent.length as usize;
        self.memory.resize(self.memory.len().max(end), 0);
        &mut self.memory[run.start..end]
    }

    /// Takes over the extents of a run whose memory is filled; `small` are those of all runs.
    pub(crate) fn has(&mut self, run: &InPlaceRun, small: &[Extent]) {
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
