//! Which pages of which files one node keeps.
//!
//! Pages are remembered in aligned chunks of 64, one bit each; the chunk that was touched longest ago goes first, whole. So a node
//! that keeps 96 GiB costs some 50 MB to model, and eviction is exact to 256 KiB.
use lru::LruCache;

use crate::model::FileId;

const CHUNK_PAGES: u64 = 64;

/// Pages kept, least recently used last.
#[derive(Debug)]
pub(crate) struct PageCache {
    chunks: LruCache<(FileId, u64), u64>,
    pages: u64,
    most_pages: u64,
}

impl PageCache {
    pub(crate) fn new(most_pages: u64) -> PageCache {
        PageCache { chunks: LruCache::unbounded(), pages: 0, most_pages }
    }

    /// How many pages there are.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether a page is there; does not count as touching it.
    pub(crate) fn has(&self, file: FileId, page: u64) -> bool {
        self.chunks
            .peek(&(file, page / CHUNK_PAGES))
            .is_some_and(|bits| bits & (1 << (page % CHUNK_PAGES)) != 0)
    }

    /// Remembers that pages of `[first, end)` were used.
    pub(crate) fn touch(&mut self, file: FileId, first: u64, end: u64) {
        for chunk in first / CHUNK_PAGES..end.div_ceil(CHUNK_PAGES) {
            self.chunks.promote(&(file, chunk));
        }
    }

    /// Takes in a page; drops what was used longest ago where there is no room.
    pub(crate) fn insert(&mut self, file: FileId, page: u64) {
        let bit = 1 << (page % CHUNK_PAGES);
        let bits = self.chunks.get_or_insert_mut((file, page / CHUNK_PAGES), || 0);
        if *bits & bit != 0 {
            return;
        }
        *bits |= bit;
        self.pages += 1;
        // The chunk just used is the last to go: one chunk is kept whatever the limit.
        while self.pages > self.most_pages && self.chunks.len() > 1 {
            if let Some((_, bits)) = self.chunks.pop_lru() {
                self.pages -= u64::from(bits.count_ones());
            }
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.chunks.clear();
        self.pages = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes_first() {
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
