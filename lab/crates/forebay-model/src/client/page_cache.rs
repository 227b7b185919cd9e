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
    fn a_page_counts_once_and_files_do_not_mix() {
        let mut cache = PageCache::new(u64::MAX);
        cache.insert(FileId(1), 7);
        cache.insert(FileId(1), 7);
        assert_eq!(cache.pages(), 1);
        assert!(!cache.has(FileId(2), 7));
    }
}
