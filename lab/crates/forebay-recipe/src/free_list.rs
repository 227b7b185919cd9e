//! Where LMDB takes pages from, and where it records free ones.
//!
//! A transaction never writes a page of the snapshot before it: it takes a new one and records the
//! old one as freed. At its end, transaction T writes the pages that it freed into a separate tree
//! under the key T, whose pages are taken in the same way. From transaction T + 2 on those pages
//! are reused, lowest first, before the file grows. The order in which pages are taken therefore
//! decides where everything lies; [`Allocator`] keeps that order.
//!
//! In a history that only inserts, in order, this tree stays within one page for ever: a
//! transaction frees a path from the root to a leaf and takes at least as much. A history for which
//! that does not hold is refused ([`Outgrown`]).
//!
//! Not modelled: readers that are alive while a writer commits. They keep pages from being reused;
//! no file records them.

use crate::pages::PageRules;

/// The list of free pages does not stay within one page: not the work of a history that only
/// inserts in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outgrown;

/// A record of the free list: pages that a transaction freed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FreeRecord {
    transaction: u64,
    /// Page numbers there is room for.
    room: u64,
    /// Ascending.
    pages: Vec<u64>,
}

/// The pages of the file as the writer sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allocator {
    rules: PageRules,
    /// The transaction that is being written.
    transaction: u64,
    /// The first page that was never used.
    next_page: u64,
    /// Pages of the last snapshot that this transaction replaced.
    freed: Vec<u64>,
    /// Pages taken over from the free list, ascending; `None` before the first record is fetched.
    reclaimed: Option<Vec<u64>>,
    /// Last record of the free list that was fetched.
    fetched: u64,
    /// Whether this transaction has seen that no further record may be fetched.
    exhausted: bool,
    records: Vec<FreeRecord>,
    /// Page of the free list's tree, and the transaction that wrote it.
    tree: Option<(u64, u64)>,
}

impl Allocator {
    /// An empty file, before its first transaction.
    pub(crate) fn new(rules: PageRules) -> Self {
        Self {
            rules,
            transaction: 1,
            // 0 and 1 are the meta pages.
            next_page: 2,
            freed: Vec::new(),
            reclaimed: None,
            fetched: 0,
            exhausted: false,
            records: Vec::new(),
            tree: None,
        }
    }

    /// The transaction that is being written.
    pub(crate) fn transaction(&self) -> u64 {
        self.transaction
    }

    /// The last page in use.
    pub(crate) fn last_page(&self) -> u64 {
        self.next_page - 1
    }

    /// Takes `count` pages that follow each other and returns the first.
    pub(crate) fn take(&mut self, count: u64) -> u64 {
        loop {
            if let Some(pages) = &mut self.reclaimed
                && pages.len() as u64 >= count
            {
                let behind = count as usize - 1;
                let first = (0..pages.len() - behind).find(|at| pages[at + behind] - pages[*at] == count - 1);
                if let Some(at) = first {
                    let page = pages[at];
                    pages.drain(at..=at + behind);
                    return page;
                }
            }
            if self.exhausted || !self.fetch() {
                self.exhausted = true;
                let page = self.next_page;
                self.next_page += count;
                return page;
            }
        }
    }

    /// Takes over the next record of the free list that no reader of the last snapshot can need.
    fn fetch(&mut self) -> bool {
        let (fetched, transaction) = (self.fetched, self.transaction);
        let next = self
            .records
            .iter()
            .find(|record| record.transaction > fetched && record.transaction + 1 < transaction);
        let Some(record) = next else { return false };
        let pages = self.reclaimed.get_or_insert_default();
        pages.extend(&record.pages);
        pages.sort_unstable();
        self.fetched = record.transaction;
        true
    }

    /// Makes the page at `page`, last written by transaction `written`, writable: another page,
    /// unless this transaction has written it already.
    pub(crate) fn touch(&mut self, page: &mut u64, written: &mut u64) {
        if *written != self.transaction {
            let taken = self.take(1);
            self.freed.push(*page);
            (*page, *written) = (taken, self.transaction);
        }
    }

    /// Writes the free list and ends the transaction.
    pub(crate) fn commit(&mut self) -> Result<(), Outgrown> {
        self.save()?;
        self.transaction += 1;
        self.freed.clear();
        self.reclaimed = None;
        self.fetched = 0;
        self.exhausted = false;
        Ok(())
    }

    /// Writes the pages that this transaction freed, and those that it fetched and did not use.
    /// Writing takes and frees pages itself, so this repeats until nothing changes.
    fn save(&mut self) -> Result<(), Outgrown> {
        // The most page numbers a record may have before it takes pages of its own; longer lists
        // are refused.
        let most = self.rules.space_bytes() / self.rules.word_bytes - 1;
        if self.reclaimed.is_some() {
            self.touch_tree();
        }
        let (mut deleted, mut saved) = (0, 0);
        let (mut head, mut head_room, mut total_room) = (0, 0, 0);
        let mut spare = 1;
        loop {
            while deleted < self.fetched {
                if self.records.len() < 2 {
                    return Err(Outgrown);
                }
                deleted = self.records.remove(0).transaction;
                (head, head_room, total_room) = (deleted, 0, 0);
            }
            if saved < self.freed.len() {
                if saved == 0 {
                    self.touch_tree();
                }
                while saved < self.freed.len() {
                    saved = self.freed.len();
                    self.put(self.transaction, saved as u64)?;
                }
                continue;
            }
            let left = self.reclaimed.as_ref().map_or(0, Vec::len) as u64;
            if total_room == left {
                break;
            }
            if total_room > left {
                // LMDB accepts one reservation that is too large.
                if spare == 0 {
                    break;
                }
                spare -= 1;
            }
            total_room -= head_room;
            head_room = left.saturating_sub(total_room);
            if head_room > most || head == 0 {
                return Err(Outgrown);
            }
            self.put(head, head_room)?;
            total_room += head_room;
        }
        self.fill();
        Ok(())
    }

    /// Writes the page numbers into the room that was made for them.
    fn fill(&mut self) {
        let transaction = self.transaction;
        if let Some(record) = self.records.iter_mut().find(|record| record.transaction == transaction) {
            record.pages.clone_from(&self.freed);
            record.pages.sort_unstable();
        }
        let mut rest = self.reclaimed.take().unwrap_or_default();
        for record in &mut self.records {
            if rest.is_empty() {
                break;
            }
            record.room = record.room.min(rest.len() as u64);
            record.pages = rest.drain(..record.room as usize).collect();
        }
    }

    /// Makes the page of the free list's tree writable, if there is one.
    fn touch_tree(&mut self) {
        if let Some((mut page, mut written)) = self.tree {
            self.touch(&mut page, &mut written);
            self.tree = Some((page, written));
        }
    }

    /// Makes room for `room` page numbers under the key `transaction`.
    fn put(&mut self, transaction: u64, room: u64) -> Result<(), Outgrown> {
        if self.tree.is_none() {
            self.tree = Some((self.take(1), self.transaction));
        }
        self.touch_tree();
        let at = self.records.partition_point(|record| record.transaction < transaction);
        match self.records.get_mut(at) {
            Some(record) if record.transaction == transaction => record.room = room,
            _ => self.records.insert(at, FreeRecord { transaction, room, pages: Vec::new() }),
        }
        let mut space = self.rules.space_bytes();
        for record in &self.records {
            let word_bytes = self.rules.word_bytes;
            let node = self.rules.leaf_node(word_bytes, word_bytes * (record.room + 1));
            if node.overflow_pages > 0 || node.wanted_bytes > space {
                return Err(Outgrown);
            }
            space -= node.bytes + 2;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::SplitClass;
    use forebay_format::lmdb::{ByteOrder, Dialect, Version, Word};

    fn allocator() -> Allocator {
        let dialect = Dialect { version: Version::V0_9, word: Word::Bits64, byte_order: ByteOrder::Little };
        Allocator::new(PageRules::new(dialect, 4096, 0, SplitClass::Modern).expect("known sizes"))
    }

    #[test]
    fn pages_are_used_again_two_transactions_later() {
        let mut pages = allocator();
        let (mut page, mut written) = (pages.take(1), 1);
        pages.commit().expect("nothing freed");
        let mut numbers = vec![page];
        for _ in 0..4 {
            pages.touch(&mut page, &mut written);
            numbers.push(page);
            pages.commit().expect("one page");
        }
        // Transaction 2 puts its list on page 4, transaction 3 on page 6; 4 takes 2 and 5 takes 3.
        assert_eq!(numbers, [2, 3, 5, 2, 3]);
    }

    #[test]
    fn a_run_is_taken_where_enough_pages_follow_each_other() {
        let mut pages = allocator();
        pages.next_page = 100;
        pages.exhausted = true;
        pages.reclaimed = Some(vec![3, 7, 8, 20, 21, 22]);
        assert_eq!(pages.take(2), 7);
        assert_eq!(pages.take(4), 100);
        assert_eq!(pages.take(3), 20);
        assert_eq!((pages.take(1), pages.take(1)), (3, 104));
    }

    #[test]
    fn a_list_that_outgrows_its_page_is_refused() {
        let mut pages = allocator();
        pages.take(1);
        pages.commit().expect("nothing freed");
        pages.freed = (2..300).collect();
        assert_eq!(pages.commit(), Err(Outgrown));
    }
}
