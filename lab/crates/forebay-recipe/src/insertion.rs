//! LMDB's insertion of records in key order: the right edge of its tree, and the leaves that it
//! finishes.
//!
//! A record is put at the end of the last leaf. First the pages from the root to that leaf are made
//! writable. If the leaf is full, it is split: a page is taken for the new leaf, one for a new root
//! if the tree grows, and a separator goes into the branch above, which may split in the same way.
//! Without the append flag LMDB moves the last record to the new leaf, so that such trees pack
//! well; with it the new leaf starts with the new record. Branches always split the first way.
//! Last, a value too large for a leaf gets a run of pages.
//!
//! Only the right edge changes: one leaf with its records, and one page per level above it. A leaf
//! with a successor is final.

use crate::free_list::{Allocator, Outgrown};
use crate::pages::PageRules;

/// Length of the first node of a branch with its pointer: its key is implied \[bytes\].
const FIRST_BRANCH_NODE_BYTES: u64 = 10;

/// A record and where it was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Length of the key \[bytes\].
    pub(crate) key_bytes: u16,
    /// Length of the value \[bytes\].
    pub(crate) value_bytes: u32,
    /// Whether the value has pages of its own.
    pub(crate) big: bool,
    /// The first of these pages, or where the value starts on the leaf \[bytes\].
    pub(crate) at: u64,
}

/// A leaf and its records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeafPage {
    /// Page number.
    pub(crate) page: u64,
    /// The transaction that wrote it last.
    pub(crate) transaction: u64,
    /// The transaction that began it.
    pub(crate) begun: u64,
    /// Its records, in key order.
    pub(crate) records: Vec<Placed>,
    /// Where the last node starts \[bytes\].
    floor: u64,
}

/// The last branch of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Branch {
    page: u64,
    transaction: u64,
    room_bytes: u64,
    last_key_bytes: u64,
}

/// The tree of a file's free pages and of one database, as a writer leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InsertionResult {
    /// The last transaction.
    pub(crate) transaction: u64,
    /// The last page in use.
    pub(crate) last_page: u64,
    /// Root of the database's tree.
    pub(crate) root: u64,
    /// Root of the main tree, where the database has a name.
    pub(crate) main_root: Option<u64>,
    /// Levels of the tree.
    pub(crate) depth: u64,
    /// Branch pages.
    pub(crate) branch_pages: u64,
    /// Leaf pages.
    pub(crate) leaf_pages: u64,
    /// Pages of values.
    pub(crate) overflow_pages: u64,
    /// Records.
    pub(crate) entries: u64,
}

/// A writer at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Insertion {
    rules: PageRules,
    append: bool,
    pages: Allocator,
    leaf: LeafPage,
    /// The leaf that was finished last.
    finished: LeafPage,
    /// From the level above the leaves to the root.
    branches: Vec<Branch>,
    /// The page of the main tree that names the database, and the transaction that wrote it.
    main: Option<(u64, u64)>,
    /// Whether the database was written to in this transaction.
    written: bool,
    /// Whether anything was.
    anything: bool,
    outcome: InsertionResult,
}

impl Insertion {
    /// An empty file.
    pub(crate) fn new(rules: PageRules, append: bool) -> Self {
        Self {
            rules,
            append,
            pages: Allocator::new(rules),
            leaf: LeafPage::default(),
            finished: LeafPage::default(),
            branches: Vec::new(),
            main: None,
            written: false,
            anything: false,
            outcome: InsertionResult {
                transaction: 0,
                last_page: 1,
                root: 0,
                main_root: None,
                depth: 0,
                branch_pages: 0,
                leaf_pages: 0,
                overflow_pages: 0,
                entries: 0,
            },
        }
    }

    /// Makes a database with a name in the main tree, which holds nothing else.
    pub(crate) fn make_database(&mut self) {
        let page = self.pages.take(1);
        self.main = Some((page, self.pages.transaction()));
        self.written = true;
        self.anything = true;
    }

    /// Records so far.
    pub(crate) fn entries(&self) -> u64 {
        self.outcome.entries
    }

    /// Last page in use so far.
    pub(crate) fn last_page(&self) -> u64 {
        self.pages.last_page()
    }

    /// The transaction that is being written.
    pub(crate) fn transaction(&self) -> u64 {
        self.pages.transaction()
    }

    /// The leaf that records go to.
    pub(crate) fn leaf(&self) -> &LeafPage {
        &self.leaf
    }

    /// The leaf that the last [`Self::put`] finished, if it returned true.
    pub(crate) fn finished(&self) -> &LeafPage {
        &self.finished
    }

    /// Puts a record after all others. Returns whether that finished a leaf.
    pub(crate) fn put(&mut self, key_bytes: u16, value_bytes: u32) -> bool {
        let node = self.rules.leaf_node(u64::from(key_bytes), u64::from(value_bytes));
        let mut finished = false;
        if self.outcome.depth == 0 {
            self.leaf = self.new_leaf();
            self.outcome.depth = 1;
        } else {
            self.touch();
            let room_bytes = self.rules.room_bytes(self.leaf.floor, self.leaf.records.len());
            if node.wanted_bytes > room_bytes {
                self.split(key_bytes);
                finished = true;
            }
        }
        self.written = true;
        self.anything = true;
        self.outcome.entries += 1;
        let big = node.overflow_pages > 0;
        let at = self.leaf.floor - node.bytes;
        self.leaf.floor = at;
        let at = if big {
            self.outcome.overflow_pages += node.overflow_pages;
            self.pages.take(node.overflow_pages)
        } else {
            at + node.value_at
        };
        self.leaf.records.push(Placed { key_bytes, value_bytes, big, at });
        finished
    }

    /// Ends the transaction; one in which nothing was written leaves no trace.
    pub(crate) fn commit(&mut self) -> Result<(), Outgrown> {
        if !self.anything {
            return Ok(());
        }
        // The root of the database's tree is written into the main tree.
        if self.written
            && let Some((page, transaction)) = &mut self.main
        {
            self.pages.touch(page, transaction);
        }
        self.pages.commit()?;
        (self.written, self.anything) = (false, false);
        Ok(())
    }

    /// Ends the last transaction. The leaf that records went to is final now.
    pub(crate) fn finish(&mut self) -> Result<InsertionResult, Outgrown> {
        self.commit()?;
        let root = self.branches.last().map_or(self.leaf.page, |branch| branch.page);
        Ok(InsertionResult {
            transaction: self.pages.transaction() - 1,
            last_page: self.pages.last_page(),
            root,
            main_root: self.main.map(|(page, _)| page),
            branch_pages: self.outcome.branch_pages + self.branches.len() as u64,
            leaf_pages: self.outcome.leaf_pages + u64::from(self.outcome.depth > 0),
            ..self.outcome
        })
    }

    fn new_leaf(&mut self) -> LeafPage {
        let (page, transaction) = (self.pages.take(1), self.pages.transaction());
        let mut records = std::mem::take(&mut self.finished.records);
        records.clear();
        LeafPage { page, transaction, begun: transaction, records, floor: self.rules.end }
    }

    /// Makes the pages from the root to the last leaf writable.
    fn touch(&mut self) {
        let transaction = self.pages.transaction();
        if self.leaf.transaction == transaction {
            return;
        }
        if !self.written
            && let Some((page, written)) = &mut self.main
        {
            self.pages.touch(page, written);
        }
        for branch in self.branches.iter_mut().rev() {
            self.pages.touch(&mut branch.page, &mut branch.transaction);
        }
        self.pages.touch(&mut self.leaf.page, &mut self.leaf.transaction);
    }

    /// Begins a leaf after the last one.
    fn split(&mut self, key_bytes: u16) {
        let mut right = self.new_leaf();
        if self.branches.is_empty() {
            self.grow();
        }
        let moved = if self.append { None } else { self.leaf.records.pop() };
        let separator_bytes = moved.map_or(key_bytes, |record| record.key_bytes);
        self.insert_child(0, u64::from(separator_bytes));
        if let Some(mut record) = moved {
            let node = self.rules.leaf_node(u64::from(record.key_bytes), u64::from(record.value_bytes));
            right.floor -= node.bytes;
            self.leaf.floor += node.bytes;
            if !record.big {
                record.at = right.floor + node.value_at;
            }
            right.records.push(record);
        }
        self.outcome.leaf_pages += 1;
        self.finished = std::mem::replace(&mut self.leaf, right);
    }

    /// Puts a new root above the tree.
    fn grow(&mut self) {
        let branch = self.new_branch(&[FIRST_BRANCH_NODE_BYTES], 0);
        self.branches.push(branch);
        self.outcome.depth += 1;
    }

    fn new_branch(&mut self, nodes_bytes: &[u64], last_key_bytes: u64) -> Branch {
        let room_bytes = self.rules.space_bytes() - nodes_bytes.iter().sum::<u64>();
        Branch { page: self.pages.take(1), transaction: self.pages.transaction(), room_bytes, last_key_bytes }
    }

    /// Adds a child after the last one of a level of branches.
    fn insert_child(&mut self, level: usize, key_bytes: u64) {
        let node_bytes = self.rules.branch_node_bytes(key_bytes);
        let branch = &mut self.branches[level];
        if node_bytes <= branch.room_bytes {
            branch.room_bytes -= node_bytes;
            branch.last_key_bytes = key_bytes;
            return;
        }
        let separator_bytes = branch.last_key_bytes;
        // The last child moves to the new branch, where its key is implied.
        let right = self.new_branch(&[FIRST_BRANCH_NODE_BYTES, node_bytes], key_bytes);
        if level + 1 == self.branches.len() {
            self.grow();
        }
        self.insert_child(level + 1, separator_bytes);
        self.outcome.branch_pages += 1;
        self.branches[level] = right;
    }
}
