//! Which level has bytes in memory: one chain of levels, asked in one order.
//!
//! 1. This node's share of an in-memory store, or its resident units.
//! 2. Storage tiers in memory.
//! 3. The mapped files, or the memory of retained values in their place.
//!
//! A level answers with the bytes where they are; nothing is read or copied for that. What no level
//! has is fetched (`fetch/`).

use std::sync::Arc;

use forebay_io::{FileIo, Mappings};
use forebay_plan::config::AccessChoice;
use forebay_tier::TieredFiles;
use forebay_types::Extent;

use crate::residents::ResidentMemory;
use crate::shm::counters::Level;
use crate::store::Store;

/// A level that may have bytes in memory.
pub(crate) trait NearLevel: Send + Sync {
    /// The bytes of an extent, if the level has all of them in one place, and the level that they
    /// are counted for.
    fn find(&self, extent: Extent) -> Option<(Level, &[u8])>;

    /// Like [`NearLevel::find`], of an extent in a range that the level was found to hold.
    fn find_held(&self, extent: Extent) -> Option<(Level, &[u8])> {
        self.find(extent)
    }

    /// The level that they are counted for, if it has all bytes of a range: in any number of
    /// places, for all ranks of the node.
    fn holds(&self, range: Extent) -> Option<Level> {
        self.find(range).map(|(level, _)| level)
    }
}

/// See the module header.
pub(crate) struct Near {
    levels: Vec<Arc<dyn NearLevel>>,
}

impl Near {
    /// Levels, the nearest first.
    pub(crate) fn new(levels: impl IntoIterator<Item = Arc<dyn NearLevel>>) -> Self {
        Self { levels: levels.into_iter().collect() }
    }

    /// The bytes of an extent from the first level that has them.
    pub(crate) fn find(&self, extent: Extent) -> Option<(Level, &[u8])> {
        self.levels.iter().find_map(|level| level.find(extent))
    }

    /// The same of an extent in a range that [`Near::holder`] found a level for.
    pub(crate) fn find_held(&self, extent: Extent) -> Option<(Level, &[u8])> {
        self.levels.iter().find_map(|level| level.find_held(extent))
    }

    /// The first level that has all bytes of all ranges.
    pub(crate) fn holder(&self, ranges: &(impl Iterator<Item = Extent> + Clone)) -> Option<Level> {
        self.levels.iter().find_map(|level| {
            let mut first = None;
            for range in ranges.clone() {
                let held = level.holds(range)?;
                first.get_or_insert(held);
            }
            first
        })
    }
}

impl NearLevel for Store {
    fn find(&self, extent: Extent) -> Option<(Level, &[u8])> {
        Some((Level::Share, self.own(extent)?))
    }
}

impl NearLevel for ResidentMemory {
    fn find(&self, extent: Extent) -> Option<(Level, &[u8])> {
        Some((Level::Share, self.own(extent)?))
    }
}

impl NearLevel for TieredFiles {
    fn find(&self, Extent { shard, offset, length }: Extent) -> Option<(Level, &[u8])> {
        let (place, bytes) = self.in_memory(shard, offset, length)?;
        Some((Level::Tier(place), bytes))
    }

    fn holds(&self, Extent { shard, offset, length }: Extent) -> Option<Level> {
        // Around the page cache a read may go on behind the end of the file.
        let length = length.min(self.files().bytes(shard).saturating_sub(offset));
        self.memory_level(shard, offset, length).map(Level::Tier)
    }
}

/// The mapped files as a level.
pub(crate) struct MappedFiles {
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) access: AccessChoice,
    /// Whether ranks copy from blocks whose pages are missing
    /// ([`Settings::leaves_faults_to_ranks`](forebay_plan::config::Settings::leaves_faults_to_ranks)).
    pub(crate) leaves_faults: bool,
}

impl NearLevel for MappedFiles {
    /// With [`AccessChoice::Mmap`] pages that are missing are also found: the thread that copies
    /// them waits for storage.
    fn find(&self, extent: Extent) -> Option<(Level, &[u8])> {
        let Extent { shard, offset, length } = extent;
        let may_copy = self.access == AccessChoice::Mmap || self.mappings.resident(shard, offset, length);
        may_copy.then(|| self.find_held(extent)).flatten()
    }

    /// Asks for no pages again: they were resident within the last second.
    fn find_held(&self, Extent { shard, offset, length }: Extent) -> Option<(Level, &[u8])> {
        Some((Level::PageCache, self.mappings.bytes(shard, offset, length)?))
    }

    fn holds(&self, Extent { shard, offset, length }: Extent) -> Option<Level> {
        let may_copy = match self.access {
            AccessChoice::Mmap => self.leaves_faults,
            _ => self.mappings.resident(shard, offset, length),
        };
        may_copy.then_some(Level::PageCache)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use forebay_io::ShardFiles;
    use forebay_types::ShardId;

    use super::*;

    /// A level that has the first bytes of file 0.
    struct First {
        level: Level,
        bytes: Vec<u8>,
        asked: AtomicUsize,
    }

    impl First {
        fn new(level: Level, bytes: &[u8]) -> Arc<Self> {
            Arc::new(Self { level, bytes: bytes.to_vec(), asked: AtomicUsize::new(0) })
        }
    }

    impl NearLevel for First {
        fn find(&self, extent: Extent) -> Option<(Level, &[u8])> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let range = extent.offset as usize..extent.end() as usize;
            Some((self.level, self.bytes.get(range).filter(|_| extent.shard == ShardId(0))?))
        }
    }

    fn extent(shard: u32, offset: u64, length: u64) -> Extent {
        Extent { shard: ShardId(shard), offset, length }
    }

    #[test]
    fn the_first_level_that_has_an_extent_answers_and_each_is_asked_once() {
        let (share, tier) = (First::new(Level::Share, b"abc"), First::new(Level::Tier(1), b"ABCDEF"));
        let near = Near::new([Arc::clone(&share) as Arc<dyn NearLevel>, Arc::clone(&tier) as _]);
        let asked = || [&share, &tier].map(|level| level.asked.swap(0, Ordering::Relaxed));
        assert_eq!(near.find(extent(0, 1, 2)), Some((Level::Share, &b"bc"[..])));
        assert_eq!(asked(), [1, 0]);
        assert_eq!(near.find(extent(0, 2, 2)), Some((Level::Tier(1), &b"CD"[..])));
        assert_eq!(asked(), [1, 1]);
        assert_eq!(near.find(extent(0, 5, 2)), None);
        assert_eq!(near.find(extent(1, 0, 1)), None);
        assert_eq!(asked(), [2, 2]);
        assert_eq!(Near::new([]).find(extent(0, 0, 1)), None);
    }

    #[test]
    fn a_block_is_held_by_one_level_that_has_all_its_ranges() {
        let near = Near::new([
            First::new(Level::Share, b"abc") as Arc<dyn NearLevel>,
            First::new(Level::Tier(1), b"ABCDEF") as _,
        ]);
        let holder = |ranges: &[Extent]| near.holder(&ranges.iter().copied());
        assert_eq!(holder(&[extent(0, 0, 1), extent(0, 2, 1)]), Some(Level::Share));
        assert_eq!(holder(&[extent(0, 0, 1), extent(0, 3, 1)]), Some(Level::Tier(1)));
        assert_eq!(holder(&[extent(0, 0, 1), extent(0, 9, 1)]), None);
        assert_eq!(holder(&[]), None);
    }

    #[test]
    fn mapped_files_are_a_level_by_the_way_they_are_accessed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, [7; 10_000]).unwrap();
        let files = Arc::new(ShardFiles::open(&[(file.path().to_owned(), 10_000)], false).unwrap());
        let mappings = Arc::new(Mappings::open(&files).unwrap());
        let level =
            |access, leaves_faults| MappedFiles { mappings: Arc::clone(&mappings), access, leaves_faults };
        let (inside, beyond) = (extent(0, 9_000, 1_000), extent(0, 9_001, 1_000));
        let found = Some((Level::PageCache, &[7; 1_000][..]));
        for leaves_faults in [false, true] {
            let mapped = level(AccessChoice::Mmap, leaves_faults);
            assert_eq!((mapped.find(inside), mapped.find(beyond)), (found, None));
            assert_eq!(mapped.holds(inside), leaves_faults.then_some(Level::PageCache));
            let resident = level(AccessChoice::Auto, false);
            // Whether the pages are resident, only the system can tell.
            assert_eq!(resident.find(inside).is_some(), resident.holds(inside).is_some());
            assert_eq!((resident.find_held(inside), resident.find(beyond)), (found, None));
            assert_eq!(resident.holds(beyond), None);
        }
    }
}
