//! The page cache of one node: which pages of which files it holds.
//!
//! Pages are stored as one bit each in aligned chunks of 64. Eviction drops the least recently used
//! chunk whole, so it is exact to 256 KiB, and a cache of 96 GiB costs about 50 MB to model.
use lru::LruCache;

use crate::ids::FileId;

const CHUNK_PAGES: u64 = 64;

/// The cached pages, in chunks ordered by their last use.
#[derive(Debug)]
pub(crate) struct PageCache {
    chunks: LruCache<(FileId, u64), u64>,
    pages: u64,
    max_pages: u64,
}

impl PageCache {
    pub(crate) fn new(max_pages: u64) -> PageCache {
        PageCache { chunks: LruCache::unbounded(), pages: 0, max_pages }
    }

    /// Number of cached pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether a page is cached. Does not count as a use.
    pub(crate) fn has(&self, file: FileId, page: u64) -> bool {
        self.chunks
            .peek(&(file, page / CHUNK_PAGES))
            .is_some_and(|bits| bits & (1 << (page % CHUNK_PAGES)) != 0)
    }

    /// Marks the pages `[first, end)` as used.
    pub(crate) fn touch(&mut self, file: FileId, first: u64, end: u64) {
        for chunk in first / CHUNK_PAGES..end.div_ceil(CHUNK_PAGES) {
            self.chunks.promote(&(file, chunk));
        }
    }

    /// Adds a page and evicts the least recently used chunks beyond the limit.
    pub(crate) fn insert(&mut self, file: FileId, page: u64) {
        let bit = 1 << (page % CHUNK_PAGES);
        let bits = self.chunks.get_or_insert_mut((file, page / CHUNK_PAGES), || 0);
        if *bits & bit != 0 {
            return;
        }
        *bits |= bit;
        self.pages += 1;
        // The chunk just used stays, whatever the limit.
        while self.pages > self.max_pages && self.chunks.len() > 1 {
            if let Some((_, bits)) = self.chunks.pop_lru() {
                self.pages -= u64::from(bits.count_ones());
            }
        }
    }

    /// Drops the pages `[first, end)`.
    pub(crate) fn remove(&mut self, file: FileId, first: u64, end: u64) {
        if first >= end {
            return;
        }
        for chunk in first / CHUNK_PAGES..end.div_ceil(CHUNK_PAGES) {
            let Some(bits) = self.chunks.peek_mut(&(file, chunk)) else { continue };
            let begin = first.saturating_sub(chunk * CHUNK_PAGES);
            let count = (end - chunk * CHUNK_PAGES).min(CHUNK_PAGES) - begin;
            let dropped = *bits & ((u64::MAX >> (CHUNK_PAGES - count)) << begin);
            *bits &= !dropped;
            self.pages -= u64::from(dropped.count_ones());
            if *bits == 0 {
                self.chunks.pop(&(file, chunk));
            }
        }
    }

    /// Drops all pages.
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.pages = 0;
    }
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
    fn pages_of_a_range_are_dropped() {
        let file = FileId(1);
        for (first, end) in [(0, 200), (60, 70), (64, 128), (65, 66), (3, 3), (190, 1000)] {
            let mut cache = PageCache::new(u64::MAX);
            for page in 0..200 {
                cache.insert(file, page);
            }
            cache.remove(file, first, end);
            let kept: Vec<u64> = (0..200).filter(|page| cache.has(file, *page)).collect();
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
