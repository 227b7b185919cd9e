//! What is missing of a group of samples: neither staged nor in memory.

use std::ops::Range;

use forebay_plan::SharePart;
use forebay_types::Extent;

/// Which level has an extent that none has in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    /// The number of the level.
    pub(super) level: usize,
    /// Where, in terms of the level.
    pub(super) parts: Vec<SharePart>,
}

/// A value on its way to its place in the batch.
pub(super) struct Value<'m> {
    pub(super) slot: usize,
    pub(super) column: usize,
    pub(super) extent: Extent,
    /// Bytes in front of the value in its unit.
    pub(super) head: usize,
    pub(super) unit: u32,
    /// Which level has it, and where.
    pub(super) at: Holder,
    pub(super) into: &'m mut [u8],
}

impl Value<'_> {
    /// Bytes behind the value in its unit.
    pub(super) fn tail_bytes(&self) -> usize {
        self.extent.length as usize - self.head - self.into.len()
    }
}

/// All that is missing.
#[derive(Default)]
pub(super) struct Missing<'m> {
    /// Values that go to the batch.
    pub(super) values: Vec<Value<'m>>,
    /// Extents for memory of the thread, and which levels have them, and where.
    pub(super) small: Vec<(Extent, Holder)>,
}

impl<'m> Missing<'m> {
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.small.is_empty()
    }

    /// Gives each value its place in the batch; `places` has those of all cells: slot times columns
    /// plus column.
    pub(super) fn give_places(&mut self, batch: &'m mut [u8], places: &[Range<usize>], columns: usize) {
        let place = |value: &Value<'_>| &places[value.slot * columns + value.column];
        // Values stand in the batch in another order than in the files.
        self.values.sort_unstable_by_key(|value| place(value).start);
        let (mut rest, mut at) = (batch, 0);
        for value in &mut self.values {
            let place = place(value);
            let (into, behind) = std::mem::take(&mut rest)[place.start - at..].split_at_mut(place.len());
            (value.into, rest, at) = (into, behind, place.end);
        }
    }

    /// Takes out what a level has, each in the order of the files, small extents once.
    pub(super) fn take(&mut self, level: usize) -> Self {
        let mut values: Vec<_> = self.values.extract_if(.., |value| value.at.level == level).collect();
        let mut small: Vec<_> = self.small.extract_if(.., |(_, at)| at.level == level).collect();
        values.sort_unstable_by_key(|value| value.extent);
        small.sort_unstable_by_key(|(extent, _)| *extent);
        small.dedup_by_key(|(extent, _)| *extent);
        Missing { values, small }
    }
}
