//! Copies in memory: slabs of a level in memory are mapped, and their bytes are used where they
//! are.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use forebay_io::GuardedMap;

use crate::level::storage::LevelStorage;

/// Mappings of the slabs of one level.
#[derive(Default)]
pub(crate) struct SlabMaps {
    /// Of each slab, as it grew; none goes before `self` does.
    slabs: RwLock<HashMap<u32, Vec<Arc<GuardedMap>>>>,
}

impl SlabMaps {
    /// Bytes of a slab; `None` if they cannot be mapped.
    pub(crate) fn bytes(&self, storage: &dyn LevelStorage, slab: u32, range: Range<usize>) -> Option<&[u8]> {
        let held = |maps: &HashMap<u32, Vec<Arc<GuardedMap>>>| {
            maps.get(&slab)?.last().filter(|map| range.end <= map.len()).map(Arc::as_ptr)
        };
        let found = held(&self.slabs.read().unwrap_or_else(PoisonError::into_inner));
        let map = found.or_else(|| {
            let mut slabs = self.slabs.write().unwrap_or_else(PoisonError::into_inner);
            held(&slabs).or_else(|| {
                let file = storage.open(slab, false).ok()?;
                let bytes = rustix::fs::fstat(&file).ok()?.st_size as usize;
                let map = Arc::new(GuardedMap::new(&file, bytes).ok().filter(|_| range.end <= bytes)?);
                let pointer = Arc::as_ptr(&map);
                slabs.entry(slab).or_default().push(map);
                Some(pointer)
            })
        })?;
        // SAFETY: `self` holds the map until it is dropped itself, and only lends it shared.
        unsafe { &*map }.bytes(range)
    }

    /// Whether a page of a mapping was lost.
    pub(crate) fn is_any_lost(&self) -> bool {
        let slabs = self.slabs.read().unwrap_or_else(PoisonError::into_inner);
        slabs.values().flatten().any(|map| map.is_lost())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::level::slab_files::SlabFiles;

    fn slabs(directory: &std::path::Path) -> io::Result<SlabFiles> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened: OwnedFd = rustix::fs::open(directory, flags, Mode::empty())?;
        SlabFiles::new(opened)
    }

    #[test]
    fn a_slab_that_grows_is_mapped_again_and_what_was_mapped_stays() {
        let directory = tempfile::tempdir().unwrap();
        let storage = Arc::new(slabs(directory.path()).unwrap());
        storage.create(3).unwrap();
        storage.allocate(3, 1 << 20).unwrap();
        storage.write(3, 5, b"first").unwrap();
        let maps = SlabMaps::default();
        let first = maps.bytes(&*storage, 3, 5..10).unwrap();
        assert!(maps.bytes(&*storage, 3, (1 << 20)..(1 << 20) + 1).is_none());
        storage.allocate(3, 2 << 20).unwrap();
        storage.write(3, 1 << 20, b"second").unwrap();
        assert_eq!(maps.bytes(&*storage, 3, (1 << 20)..(1 << 20) + 6), Some(&b"second"[..]));
        assert_eq!(first, b"first");
        assert!(!maps.is_any_lost() && maps.bytes(&*storage, 4, 0..1).is_none());
    }
}
