//! Memory of resident units: ranges of bytes of the files, and a table that finds them.
//!
//! | Bytes | Meaning |
//! |---|---|
//! | 8 | number of ranges |
//! | 32 each | shard, first byte in its file, length, first byte in this memory; ascending |
//! | the rest | the bytes of the ranges |
//!
//! All numbers are little-endian words of 64 bits. The leader writes the memory and seals it.

use forebay_host::Map;
use forebay_plan::RANGE_ENTRY_BYTES;
use forebay_types::{Extent, ShardId};

use crate::error::Error;

const WORD_BYTES: usize = 8;

const _: () = assert!(RANGE_ENTRY_BYTES == 4 * WORD_BYTES as u64);

/// A range and where it lies in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedRange {
    pub(super) extent: Extent,
    pub(super) place: u64,
}

/// Places ranges, which ascend, behind their table; returns also the size of the memory.
pub(super) fn place_all(ranges: &[Extent]) -> (Vec<PlacedRange>, u64) {
    let mut place = WORD_BYTES as u64 + ranges.len() as u64 * RANGE_ENTRY_BYTES;
    let placed = ranges.iter().map(|extent| {
        place += extent.length;
        PlacedRange { extent: *extent, place: place - extent.length }
    });
    (placed.collect(), place)
}

/// The table as it stands at the start of the memory.
pub(super) fn table(ranges: &[PlacedRange]) -> Vec<u8> {
    let words = ranges.iter().flat_map(|range| {
        let PlacedRange { extent, place } = range;
        [u64::from(extent.shard.0), extent.offset, extent.length, *place]
    });
    std::iter::once(ranges.len() as u64).chain(words).flat_map(u64::to_le_bytes).collect()
}

/// See the module header.
pub(crate) struct ResidentMemory {
    memory: Map,
    ranges: usize,
}

impl ResidentMemory {
    /// Uses the memory that the leader of the node has sealed.
    pub(crate) fn new(memory: Map) -> Result<Self, Error> {
        let found = Self { memory, ranges: 0 };
        let ranges = found.word(0).unwrap_or(u64::MAX);
        let table =
            ranges.checked_mul(RANGE_ENTRY_BYTES).and_then(|bytes| bytes.checked_add(WORD_BYTES as u64));
        if table.is_none_or(|bytes| bytes > found.memory.len() as u64) {
            let length = found.memory.len();
            return Err(Error::local(format!("{length} bytes cannot hold {ranges} resident ranges")));
        }
        Ok(Self { ranges: ranges as usize, ..found })
    }

    /// The bytes of an extent, if they are resident.
    pub(crate) fn own(&self, extent: Extent) -> Option<&[u8]> {
        let key = (extent.shard, extent.offset);
        let (mut low, mut high) = (0, self.ranges);
        // The last range that begins at or before the extent.
        while low < high {
            let middle = low + (high - low) / 2;
            let range = self.range(middle)?.extent;
            if (range.shard, range.offset) <= key { low = middle + 1 } else { high = middle }
        }
        let PlacedRange { extent: range, place } = self.range(low.checked_sub(1)?)?;
        if range.shard != extent.shard || extent.end() > range.end() {
            return None;
        }
        let start = usize::try_from(place + (extent.offset - range.offset)).ok()?;
        self.memory.bytes().get(start..start.checked_add(usize::try_from(extent.length).ok()?)?)
    }

    fn range(&self, number: usize) -> Option<PlacedRange> {
        let first = 1 + 4 * number;
        let extent = Extent {
            shard: ShardId(self.word(first)? as u32),
            offset: self.word(first + 1)?,
            length: self.word(first + 2)?,
        };
        Some(PlacedRange { extent, place: self.word(first + 3)? })
    }

    fn word(&self, number: usize) -> Option<u64> {
        let (word, _) = self.memory.bytes().get(number * WORD_BYTES..)?.split_first_chunk()?;
        Some(u64::from_le_bytes(*word))
    }
}

#[cfg(test)]
mod tests {
    use forebay_host::Draft;
    use proptest::prelude::*;

    use super::*;

    fn sealed(bytes: &[u8]) -> Map {
        let draft = Draft::new("forebay-test", bytes.len() as u64).unwrap();
        draft.write(0, bytes).unwrap();
        Map::read_only(draft.seal().unwrap()).unwrap()
    }

    fn byte(shard: ShardId, offset: u64) -> u8 {
        (offset.wrapping_mul(31) ^ u64::from(shard.0)) as u8
    }

    proptest! {
        #[test]
        fn what_lies_in_one_range_is_found(
            steps in prop::collection::vec((0_u32..2, 1_u64..50, 1_u64..100), 0..20),
            asked in prop::collection::vec((0_u32..9, 0_u64..900, 0_u64..120), 0..60),
        ) {
            let (mut shard, mut end) = (0, 0);
            let ranges: Vec<Extent> = steps.into_iter().map(|(next, gap, length)| {
                if next > 0 {
                    (shard, end) = (shard + next, 0);
                }
                let extent = Extent { shard: ShardId(shard), offset: end + gap, length };
                end = extent.end();
                extent
            }).collect();
            let (placed, bytes) = place_all(&ranges);
            let mut memory = table(&placed);
            for range in &ranges {
                memory.extend((range.offset..range.end()).map(|offset| byte(range.shard, offset)));
            }
            prop_assert_eq!(memory.len() as u64, bytes);
            let residents = ResidentMemory::new(sealed(&memory)).unwrap();
            for (shard, offset, length) in asked {
                let extent = Extent { shard: ShardId(shard), offset, length };
                let holds = |range: &&Extent| range.shard == extent.shard && range.offset <= offset && extent.end() <= range.end();
                let expected = ranges.iter().any(|range| holds(&range))
                    .then(|| (offset..extent.end()).map(|at| byte(extent.shard, at)).collect::<Vec<u8>>());
                prop_assert_eq!(residents.own(extent).map(<[u8]>::to_vec), expected);
            }
        }
    }

    #[test]
    fn a_table_that_does_not_fit_its_memory_is_refused() {
        assert!(ResidentMemory::new(sealed(&2_u64.to_le_bytes())).is_err());
        assert!(ResidentMemory::new(sealed(&u64::MAX.to_le_bytes())).is_err());
        assert!(ResidentMemory::new(sealed(&[0; 4])).is_err());
        assert_eq!(
            ResidentMemory::new(sealed(&[0; 8])).unwrap().own(Extent {
                shard: ShardId(0),
                offset: 0,
                length: 1
            }),
            None
        );
    }
}
