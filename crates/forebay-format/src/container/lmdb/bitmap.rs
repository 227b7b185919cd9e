//! A set of page numbers, as bits.
//!
//! It costs one bit per page of the file where pages are used, in chunks of 512 bytes that are
//! allocated at first use. A sparse file of many exabytes that claims to be a database cannot make
//! it large.

use std::collections::HashMap;

/// Pages that one chunk covers.
const CHUNK_PAGES: u64 = 4096;

/// Page numbers seen so far.
#[derive(Debug, Default)]
pub(super) struct PageSet {
    chunks: Vec<[u64; (CHUNK_PAGES / 64) as usize]>,
    /// Chunk number to index in `chunks`.
    index: HashMap<u64, usize>,
    /// The last entry of `index` that was used: calls come for neighbours in order.
    last: Option<(u64, usize)>,
}

impl PageSet {
    /// Adds the pages from `first` on. Returns the first of them that was there already, if any.
    ///
    /// The caller has checked that the pages lie in the file, so `first + pages` does not overflow.
    pub(super) fn insert(&mut self, first: u64, pages: u64) -> Option<u64> {
        let end = first + pages;
        let mut page = first;
        while page < end {
            let (word, bit) = ((page % CHUNK_PAGES / 64) as usize, page % 64);
            let count = (64 - bit).min(end - page);
            let mask = (u64::MAX >> (64 - count)) << bit;
            let bits = &mut self.chunk(page / CHUNK_PAGES)[word];
            let twice = *bits & mask;
            if twice != 0 {
                return Some(page - bit + u64::from(twice.trailing_zeros()));
            }
            *bits |= mask;
            page += count;
        }
        None
    }

    fn chunk(&mut self, number: u64) -> &mut [u64; (CHUNK_PAGES / 64) as usize] {
        let index = match self.last {
            Some((last, index)) if last == number => index,
            _ => {
                let next = self.chunks.len();
                let index = *self.index.entry(number).or_insert(next);
                if index == next {
                    self.chunks.push([0; (CHUNK_PAGES / 64) as usize]);
                }
                self.last = Some((number, index));
                index
            }
        };
        &mut self.chunks[index]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_set_agrees_with_a_plain_one() {
        let mut state = 1_u64;
        let mut next = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        for _ in 0..200 {
            let (mut set, mut plain) = (PageSet::default(), HashSet::new());
            for _ in 0..50 {
                let most = if next(4) == 0 { 9000 } else { 90 };
                let (first, pages) = (next(20_000), 1 + next(most));
                let twice = (first..first + pages).find(|page| plain.contains(page));
                assert_eq!(set.insert(first, pages), twice);
                if twice.is_some() {
                    break;
                }
                plain.extend(first..first + pages);
            }
        }
    }

    #[test]
    fn far_pages_cost_one_chunk_each() {
        let mut set = PageSet::default();
        for far in 0..100 {
            assert_eq!(set.insert(far << 40, 1), None);
        }
        assert_eq!(set.chunks.len(), 100);
    }
}
