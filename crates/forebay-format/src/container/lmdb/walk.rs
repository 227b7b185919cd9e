//! The scan of a tree: from the root to every record, level by level.
//!
//! Level 1 is the root. All pages of a level are read (see [`super::fetch`]) and replaced by their
//! children, down to the leaves, which give the records in key order. There are as many rounds of
//! dependent reads as levels, each page is read once, and nothing recurses. A page that is reached
//! twice ends the walk, so no file can make it loop. Counts, overflow runs and the order of keys
//! are checked as well.
//!
//! Not read: overflow pages. Their headers are checked when a value is read
//! ([`super::check_overflow_header`]).

use std::cell::Cell;
use std::cmp::Ordering;

use super::bitmap::PageSet;
use super::fetch::Fetch;
use super::meta::Layout;
use super::page::{PageNode, Payload, Role, compare_keys, decode};
use crate::Error;
use crate::file::{Input, IoCounters};
use crate::unit_check::lmdb_dialect::Dialect;
use crate::unit_check::lmdb_identity::TreeRecord;
use crate::unit_check::lmdb_page_error::{PageError, WalkError};

/// Leaves after which the progress callback is called.
const PROGRESS_LEAVES: u64 = 256;

/// Names of named databases that a report lists.
const LISTED_NAMES: usize = 16;

/// Parameters of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkOptions {
    /// Threads that read at the same time; with one, or none, the calling thread reads.
    pub threads: usize,
    /// Memory for pages \[bytes\]; two words per page of the widest level come on top.
    pub memory_bytes: u64,
}

impl Default for WalkOptions {
    /// Four threads and 32 MiB: announced reads need few threads, and more memory is no faster.
    fn default() -> Self {
        Self { threads: 4, memory_bytes: 32 << 20 }
    }
}

/// One record of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Where the value lies.
    pub value: Value,
    /// The value itself, where it is inline: it came with the leaf.
    pub inline: Option<&'a [u8]>,
    /// Page number of the leaf.
    pub leaf: u64,
}

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// On the leaf.
    Inline {
        /// First byte [bytes from the start of the file].
        offset: u64,
        /// Length \[bytes\].
        length: u64,
    },
    /// On overflow pages: the value starts one page header after the start of the first page.
    Big {
        /// First page of the run.
        page: u64,
        /// Length \[bytes\].
        length: u64,
    },
}

/// Findings and cost of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalkReport {
    /// Records that were visited.
    pub records: u64,
    /// Bytes read: meta, branch and leaf pages, with those of opening the database. Excludes the
    /// second read of the meta pages that ends every walk.
    pub read_bytes: u64,
    /// Reads for [`Self::read_bytes`].
    pub reads: u64,
    /// Rounds of reads that had to wait for the one before: the meta pages, then one per level.
    pub rounds: u32,
    /// Branch pages read.
    pub branch_pages: u64,
    /// Leaf pages read.
    pub leaf_pages: u64,
    /// Records whose value lies on the leaf.
    pub inline_records: u64,
    /// Records whose value lies on overflow pages.
    pub big_records: u64,
    /// Named databases in this one; they are no records and are not visited.
    pub named_databases: u64,
    /// The first 16 of their names.
    pub names: Vec<String>,
}

/// The input of a walk.
pub(super) struct TreeWalk<'a> {
    pub(super) input: &'a Input,
    pub(super) layout: &'a Layout,
    pub(super) tree: &'a TreeRecord,
    /// Whether this is the main tree, which may hold named databases.
    pub(super) is_main: bool,
    /// Offset of the tree's record [bytes from the start of the file].
    pub(super) tree_offset: u64,
}

impl TreeWalk<'_> {
    /// Walks the tree; see [`super::Database::walk`].
    pub(super) fn run(
        &self,
        options: &WalkOptions,
        counters: &IoCounters,
        progress: &dyn Fn(u64, u64) -> bool,
        sink: &mut dyn FnMut(Record<'_>) -> Result<(), Error>,
    ) -> Result<WalkReport, WalkError> {
        let tree = self.tree;
        let done_leaves = Cell::new(0);
        let go_on = |leaves: u64| {
            done_leaves.set(leaves);
            if progress(leaves, tree.leaf_pages) { Ok(()) } else { Err(Error::Interrupted.into()) }
        };
        let mut report = WalkReport { rounds: 1 + u32::from(tree.depth), ..WalkReport::default() };
        go_on(0)?;
        if tree.depth == 0 {
            return Ok(report);
        }
        let fetch = Fetch {
            input: self.input,
            layout: self.layout,
            counters,
            threads: options.threads,
            memory_bytes: options.memory_bytes,
            waiting: &|| go_on(done_leaves.get()),
        };
        let mut seen = PageSet::default();
        self.layout.check_tree_page(tree.root, self.tree_offset)?;
        seen.insert(tree.root, 1);
        let mut level = vec![tree.root];
        for depth in 1..tree.depth {
            report.branch_pages += level.len() as u64;
            self.check_count("branch pages", tree.branch_pages, report.branch_pages, false)?;
            // The level above the leaves knows how many children there must be.
            let most = if depth + 1 == tree.depth { tree.leaf_pages } else { tree.branch_pages };
            level = self.children(&fetch, &level, most, &mut seen)?;
            go_on(0)?;
        }
        report.leaf_pages = level.len() as u64;
        self.check_count("branch pages", tree.branch_pages, report.branch_pages, true)?;
        self.check_count("leaf pages", tree.leaf_pages, report.leaf_pages, true)?;
        self.leaves(&fetch, &level, &mut seen, &mut report, &go_on, sink)?;
        self.check_count("entries", tree.entries, report.records + report.named_databases, true)?;
        go_on(report.leaf_pages)?;
        Ok(report)
    }

    /// Reads a level of branch pages and returns their children in key order.
    fn children(
        &self,
        fetch: &Fetch<'_>,
        level: &[u64],
        most: u64,
        seen: &mut PageSet,
    ) -> Result<Vec<u64>, WalkError> {
        let mut children = Vec::new();
        let mut nodes = Vec::new();
        let mut order = KeyOrder::new(self.layout.dialect, self.tree.flags);
        fetch.level(level, &mut |_, page, bytes| {
            decode(self.layout, page, Role::Branch, bytes, &mut nodes)?;
            for (index, node) in nodes.iter().enumerate() {
                let offset = self.node_offset(page, node);
                let Payload::Child(child) = node.payload else {
                    unreachable!("nodes of a branch page are children")
                };
                self.layout.check_tree_page(child, offset)?;
                if seen.insert(child, 1).is_some() {
                    return Err(twice(child, page, offset));
                }
                children.push(child);
                // The key of the first node is implied and not kept up to date.
                if index > 0 {
                    order.check(node.key(bytes), page, offset)?;
                }
            }
            if children.len() as u64 > most {
                let expected = format!("at most {most} on the level below");
                let what = format!("LMDB page {page}: children");
                return Err(PageError::new(self.layout.offset(page), what, expected, children.len()).into());
            }
            Ok(())
        })?;
        Ok(children)
    }

    /// Reads the leaves and visits their records.
    fn leaves(
        &self,
        fetch: &Fetch<'_>,
        level: &[u64],
        seen: &mut PageSet,
        report: &mut WalkReport,
        go_on: &dyn Fn(u64) -> Result<(), WalkError>,
        sink: &mut dyn FnMut(Record<'_>) -> Result<(), Error>,
    ) -> Result<(), WalkError> {
        let mut nodes = Vec::new();
        let mut order = KeyOrder::new(self.layout.dialect, self.tree.flags);
        let mut overflow_pages = 0_u64;
        fetch.level(level, &mut |index, page, bytes| {
            if (index as u64).is_multiple_of(PROGRESS_LEAVES) && index > 0 {
                go_on(index as u64)?;
            }
            decode(self.layout, page, Role::Leaf, bytes, &mut nodes)?;
            for node in &nodes {
                let offset = self.node_offset(page, node);
                let key = node.key(bytes);
                order.check(key, page, offset)?;
                let (value, inline) = match node.payload {
                    Payload::Inline { at, length } => {
                        report.inline_records += 1;
                        let offset = self.layout.offset(page) + u64::from(at);
                        let inline = &bytes[at as usize..at as usize + length as usize];
                        (Value::Inline { offset, length: u64::from(length) }, Some(inline))
                    }
                    Payload::Big { page: first, length, pages } => {
                        report.big_records += 1;
                        let length = u64::from(length);
                        let pages = self.layout.check_overflow(first, length, pages, offset)?;
                        if let Some(page) = seen.insert(first, pages) {
                            return Err(twice(page, first, offset));
                        }
                        overflow_pages += pages;
                        self.check_count("overflow pages", self.tree.overflow_pages, overflow_pages, false)?;
                        (Value::Big { page: first, length }, None)
                    }
                    Payload::Tree { .. } if self.is_main => {
                        report.named_databases += 1;
                        if report.names.len() < LISTED_NAMES {
                            report.names.push(name_of(key));
                        }
                        continue;
                    }
                    Payload::Tree { .. } => {
                        let what = format!("LMDB page {page}: node flags");
                        return Err(PageError::new(
                            offset,
                            what,
                            "a value",
                            "a database within a named database",
                        )
                        .into());
                    }
                    Payload::Child(_) => unreachable!("nodes of a leaf are records"),
                };
                report.records += 1;
                self.check_count(
                    "entries",
                    self.tree.entries,
                    report.records + report.named_databases,
                    false,
                )?;
                sink(Record { key, value, inline, leaf: page })?;
            }
            Ok(())
        })
    }

    /// Finds the record of the named database with this key, from the root down. Returns it and its
    /// offset, or `None` if there is no such key, or an error if the key's value is something else.
    pub(super) fn find_tree(
        &self,
        key: &[u8],
        counters: &IoCounters,
    ) -> Result<Option<NamedEntry>, WalkError> {
        let mut page = self.tree.root;
        let (mut bytes, mut nodes) = (Vec::new(), Vec::new());
        let mut named_at = self.tree_offset;
        for depth in 1..=self.tree.depth {
            self.layout.check_tree_page(page, named_at)?;
            super::meta::read_page(self.input, self.layout, page, &mut bytes, counters)?;
            let role = if depth == self.tree.depth { Role::Leaf } else { Role::Branch };
            decode(self.layout, page, role, &bytes, &mut nodes)?;
            let order =
                |node: &PageNode| compare_keys(self.layout.dialect, self.tree.flags, node.key(&bytes), key);
            if role == Role::Leaf {
                let node = nodes.iter().find(|node| order(node) == Some(Ordering::Equal));
                return Ok(node.map(|node| match node.payload {
                    Payload::Tree { at } => {
                        let tree = TreeRecord::decode(self.layout.dialect, &bytes, at as usize);
                        NamedEntry::Tree(tree, self.layout.offset(page) + u64::from(at))
                    }
                    _ => NamedEntry::Value,
                }));
            }
            // The last separator that is not above the key; the first is implied.
            let last =
                nodes.iter().skip(1).take_while(|node| order(node).is_none_or(Ordering::is_le)).count();
            let Payload::Child(child) = nodes[last].payload else {
                unreachable!("nodes of a branch page are children")
            };
            named_at = self.node_offset(page, &nodes[last]);
            page = child;
        }
        Ok(None)
    }

    fn node_offset(&self, page: u64, node: &PageNode) -> u64 {
        self.layout.offset(page) + u64::from(node.at)
    }

    /// Compares the counts in the tree's record with those found so far, or at the end.
    fn check_count(&self, what: &str, stored: u64, found: u64, at_end: bool) -> Result<(), WalkError> {
        if found > stored || (at_end && found < stored) {
            let found = if at_end { format!("{found}") } else { format!("{found} or more") };
            return Err(
                PageError::new(self.tree_offset, format!("LMDB database: {what}"), stored, found).into()
            );
        }
        Ok(())
    }
}

/// Result of [`TreeWalk::find_tree`].
pub(super) enum NamedEntry {
    /// A named database: its record and the offset of that [bytes from the start of the file].
    Tree(TreeRecord, u64),
    /// A plain record.
    Value,
}

/// The name of a database as a string; LMDB 1.0 keeps it with a NUL at its end.
fn name_of(key: &[u8]) -> String {
    String::from_utf8_lossy(key.strip_suffix(&[0]).unwrap_or(key)).into_owned()
}

fn twice(page: u64, from: u64, offset: u64) -> WalkError {
    let what = format!("LMDB page {page}: number of references");
    PageError::new(offset, what, 1, format!("another one by page {from}")).into()
}

/// Checks that keys ascend.
struct KeyOrder {
    dialect: Dialect,
    tree_flags: u16,
    last: Vec<u8>,
    any: bool,
}

impl KeyOrder {
    fn new(dialect: Dialect, tree_flags: u16) -> Self {
        Self { dialect, tree_flags, last: Vec::new(), any: false }
    }

    /// Takes the next key, of the node at `offset` on `page`.
    fn check(&mut self, key: &[u8], page: u64, offset: u64) -> Result<(), PageError> {
        let order = compare_keys(self.dialect, self.tree_flags, &self.last, key);
        if self.any && order.is_some_and(Ordering::is_ge) {
            let what = format!("LMDB page {page}: order of keys");
            let expected = format!("a key after {:?}", String::from_utf8_lossy(&self.last));
            return Err(PageError::new(
                offset,
                what,
                expected,
                format!("{:?}", String::from_utf8_lossy(key)),
            ));
        }
        self.any = true;
        self.last.clear();
        self.last.extend_from_slice(key);
        Ok(())
    }
}
