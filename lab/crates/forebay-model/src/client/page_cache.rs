//! The page cache of one node: which pages of which files it holds.
//!
//! Pages are stored as one bit each in aligned chunks of 64. Eviction drops the least recently used
//! chunk whole, so it is exact to 256 KiB. A chunk takes about 80 bytes: a cache of 96 GiB costs
//! about 30 MB to model.
use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::ids::FileId;

const CHUNK_PAGES: u64 = 64;
/// In place of a chunk.
const NONE: u32 = u32::MAX;

/// The cached pages, in chunks ordered by their last use.
#[derive(Debug)]
pub(crate) struct PageCache {
    places: HashMap<Key, u32, BuildHasherDefault<KeyHasher>>,
    chunks: Vec<Chunk>,
    /// Places in `chunks` that are not in use.
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    /// The chunk that was found last: programs of a node often touch the same ones.
    recent: Cell<Option<(Key, u32)>>,
    pages: u64,
    max_pages: u64,
}

/// A file, and the number of a chunk in it.
type Key = (FileId, u64);

/// A chunk, and its neighbours in the order of last use.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    key: Key,
    bits: u64,
    newer: u32,
    older: u32,
}

/// Numbers of files and chunks are small and dense: a multiplication spreads them.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

impl PageCache {
    pub(crate) fn new(max_pages: u64) -> PageCache {
        PageCache {
            places: HashMap::default(),
            chunks: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            recent: Cell::new(None),
            pages: 0,
            max_pages,
        }
    }

    /// Number of cached pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether a page is cached. Does not count as a use.
    pub(crate) fn has(&self, file: FileId, page: u64) -> bool {
        let place = self.find((file, page / CHUNK_PAGES));
        place.is_some_and(|place| self.chunks[place as usize].bits & (1 << (page % CHUNK_PAGES)) != 0)
    }

    /// Whether the pages `[first, end)` are cached. Does not count as a use.
    pub(crate) fn has_all(&self, file: FileId, first: u64, end: u64) -> bool {
        first >= end
            || (first / CHUNK_PAGES..end.div_ceil(CHUNK_PAGES)).all(|chunk| {
                let wanted = bits_of(chunk, first, end);
                self.find((file, chunk))
                    .is_some_and(|place| self.chunks[place as usize].bits & wanted == wanted)
            })
    }

    /// Marks the pages `[first, end)` as used.
    pub(crate) fn touch(&mut self, file: FileId, first: u64, end: u64) {
        for chunk in first / CHUNK_PAGES..end.div_ceil(CHUNK_PAGES) {
            if let Some(place) = self.find((file, chunk)) {
                self.promote(place);
            }
        }
    }

    /// Adds a page and evicts the least recently used chunks beyond the limit.
    pub(crate) fn insert(&mut self, file: FileId, page: u64) {
        let key = (file, page / CHUNK_PAGES);
        let place = self.find(key).unwrap_or_else(|| self.add(key));
        self.promote(place);
        let (bits, bit) = (&mut self.chunks[place as usize].bits, 1 << (page % CHUNK_PAGES));
        if *bits & bit != 0 {
            return;
        }
        *bits |= bit;
        self.pages += 1;
        // The chunk just used stays, whatever the limit.
        while self.pages > self.max_pages && self.oldest != self.newest {
            self.pages -= u64::from(self.chunks[self.oldest as usize].bits.count_ones());
            self.drop_chunk(self.oldest);
        }
    }

    /// Drops the pages `[first, end)`.
    pub(crate) fn remove(&mut self, file: FileId, first: u64, end: u64) {
        if first >= end {
            return;
        }
        for chunk in first / CHUNK_PAGES..end.div_ceil(CHUNK_PAGES) {
            let Some(place) = self.find((file, chunk)) else { continue };
            let bits = &mut self.chunks[place as usize].bits;
            let dropped = *bits & bits_of(chunk, first, end);
            *bits &= !dropped;
            let is_empty = *bits == 0;
            self.pages -= u64::from(dropped.count_ones());
            if is_empty {
                self.drop_chunk(place);
            }
        }
    }

    /// Drops all pages.
    pub(crate) fn clear(&mut self) {
        *self = PageCache::new(self.max_pages);
    }

    fn find(&self, key: Key) -> Option<u32> {
        if let Some((_, place)) = self.recent.get().filter(|(recent, _)| *recent == key) {
            return Some(place);
        }
        let place = self.places.get(&key).copied();
        self.recent.set(place.map(|place| (key, place)).or(self.recent.get()));
        place
    }

    /// Adds an empty chunk as the newest.
    fn add(&mut self, key: Key) -> u32 {
        let chunk = Chunk { key, bits: 0, newer: NONE, older: NONE };
        let place = if let Some(place) = self.free.pop() {
            self.chunks[place as usize] = chunk;
            place
        } else {
            self.chunks.push(chunk);
            self.chunks.len() as u32 - 1
        };
        self.places.insert(key, place);
        self.link(place);
        place
    }

    fn drop_chunk(&mut self, place: u32) {
        self.unlink(place);
        self.places.remove(&self.chunks[place as usize].key);
        self.recent.set(None);
        self.free.push(place);
    }

    fn promote(&mut self, place: u32) {
        if place != self.newest {
            self.unlink(place);
            self.link(place);
        }
    }

    /// Makes a chunk that is in no order the newest.
    fn link(&mut self, place: u32) {
        let chunk = &mut self.chunks[place as usize];
        (chunk.newer, chunk.older) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = place,
            newest => self.chunks[newest as usize].newer = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: u32) {
        let Chunk { newer, older, .. } = self.chunks[place as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.chunks[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.chunks[older as usize].newer = newer,
        }
    }
}

/// The bits of the pages `[first, end)` in a chunk, which holds some of them.
fn bits_of(chunk: u64, first: u64, end: u64) -> u64 {
    let begin = first.saturating_sub(chunk * CHUNK_PAGES);
    let count = (end - chunk * CHUNK_PAGES).min(CHUNK_PAGES) - begin;
    (u64::MAX >> (CHUNK_PAGES - count)) << begin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_chunk_is_evicted_first() {
        let file = FileId(1);
        let mut cache = PageCache::new(130);
        for page in 0..128 {
            cache.insert(file, page);
        }
        cache.touch(file, 0, 1);
        for page in 640..643 {
            cache.insert(file, page);
        }
        assert!(cache.has(file, 0) && cache.has(file, 642));
        assert!(!cache.has(file, 64) && !cache.has(file, 127));
        assert_eq!(cache.pages(), 64 + 3);
        cache.clear();
        assert_eq!((cache.pages(), cache.has(file, 0)), (0, false));
    }

    #[test]
    fn chunks_are_used_again_and_keep_their_order() {
        let file = FileId(0);
        let mut cache = PageCache::new(3);
        // One page of each chunk; any of them may be the oldest, in the middle, or the newest.
        for round in 0..10_u64 {
            for chunk in 0..4 {
                cache.insert(file, (4 * round + chunk) * CHUNK_PAGES);
            }
            cache.touch(file, (4 * round + 1) * CHUNK_PAGES, (4 * round + 1) * CHUNK_PAGES + 1);
            cache.remove(file, (4 * round + 2) * CHUNK_PAGES, (4 * round + 3) * CHUNK_PAGES);
            let kept: Vec<u64> = (0..44).filter(|chunk| cache.has(file, chunk * CHUNK_PAGES)).collect();
            assert_eq!((kept, cache.pages()), (vec![4 * round + 1, 4 * round + 3], 2));
            cache.insert(file, 43 * CHUNK_PAGES);
            cache.insert(file, 42 * CHUNK_PAGES);
            assert!(cache.has(file, (4 * round + 1) * CHUNK_PAGES), "it was used last");
            assert!(!cache.has(file, (4 * round + 3) * CHUNK_PAGES));
        }
        assert!(cache.chunks.len() <= 5);
    }

    #[test]
    fn pages_of_a_range_are_dropped() {
        let file = FileId(1);
        for (first, end) in [(0, 200), (60, 70), (64, 128), (65, 66), (3, 3), (190, 1000)] {
            let mut cache = PageCache::new(u64::MAX);
            for page in 0..200 {
                cache.insert(file, page);
            }
            cache.remove(file, first, end);
            let kept: Vec<u64> = (0..200).filter(|page| cache.has(file, *page)).collect();
            for edges in [first, end, 0, 64, 200].windows(2) {
                let (from, to) = (edges[0].min(edges[1]), edges[0].max(edges[1]));
                assert_eq!(
                    cache.has_all(file, from, to),
                    (from..to).all(|page| cache.has(file, page)),
                    "{from} to {to} without {first} to {end}"
                );
            }
            let expected: Vec<u64> = (0..200).filter(|page| *page < first || *page >= end).collect();
            assert_eq!((kept, cache.pages()), (expected.clone(), expected.len() as u64), "{first} to {end}");
        }
    }

    #[test]
    fn a_page_counts_once_and_files_do_not_mix() {
        let mut cache = PageCache::new(u64::MAX);
        cache.insert(FileId(1), 7);
        cache.insert(FileId(1), 7);
        assert_eq!(cache.pages(), 1);
        assert!(!cache.has(FileId(2), 7));
    }
}
