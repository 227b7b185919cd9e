//! A cursor: from record to record in key order, one page per level, as LMDB's own library
//! iterates.
//!
//! The pages come from the owner of a mapping, one at a time and on demand, so a step costs what
//! touching them costs. Every page is checked as in the scan ([`super::page::decode`]). If the
//! pages of a file form a circle, the cursor ends with an error after more records than the
//! database claims.

use super::Database;
use super::page::{PageNode, Payload, Role, decode};
use super::walk::Value;
use crate::Error;
use crate::unit_check::lmdb_page_error::{PageError, WalkError};

/// Returns bytes of the data file, (offset, length) \[bytes\]; `None` where it has none.
pub type Pages<'a> = dyn Fn(u64, u64) -> Option<&'a [u8]> + 'a;

/// A place between two records.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// From the root down; empty before the first record and after the last.
    levels: Vec<CursorPage>,
    begun: bool,
    passed: u64,
}

/// A place between two records in a form for other processes: pages of the file instead of memory.
///
/// ```text
/// transaction (8 bytes) | root page (8) | levels (1) |
/// for each level: page (8), node that comes next (2)
/// ```
///
/// All little-endian; 47 bytes in a tree of three levels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortableCursor {
    /// Last transaction of the snapshot.
    pub transaction: u64,
    /// Root of the tree.
    pub root: u64,
    /// From the root down; empty before the first record and after the last.
    pub levels: Vec<(u64, u16)>,
}

impl PortableCursor {
    /// Bytes before the levels.
    const HEAD_BYTES: usize = 17;
    /// Bytes of a level.
    const LEVEL_BYTES: usize = 10;

    /// The place as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::HEAD_BYTES + Self::LEVEL_BYTES * self.levels.len());
        bytes.extend(self.transaction.to_le_bytes());
        bytes.extend(self.root.to_le_bytes());
        bytes.push(self.levels.len() as u8);
        for (page, next) in &self.levels {
            bytes.extend(page.to_le_bytes());
            bytes.extend(next.to_le_bytes());
        }
        bytes
    }

    /// Reads the bytes of a place; `None` if they are none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, levels) = bytes.split_at_checked(Self::HEAD_BYTES)?;
        let word = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        if levels.len() != usize::from(head[16]) * Self::LEVEL_BYTES {
            return None;
        }
        let level = |bytes: &[u8]| Some((word(bytes)?, u16::from_le_bytes(*bytes[8..].first_chunk()?)));
        Some(Self {
            transaction: word(head)?,
            root: word(&head[8..])?,
            levels: levels.chunks_exact(Self::LEVEL_BYTES).map(level).collect::<Option<_>>()?,
        })
    }
}

/// A page on the way down.
#[derive(Clone, Debug, Default)]
struct CursorPage {
    page: u64,
    nodes: Vec<PageNode>,
    /// The node that comes next.
    next: usize,
}

impl Cursor {
    /// Steps over the next record and returns its key and where its value lies; `None` after the
    /// last.
    ///
    /// Named databases in a main database are no records and are skipped.
    pub fn next<'a>(
        &mut self,
        database: &Database,
        pages: &Pages<'a>,
    ) -> Result<Option<(&'a [u8], Value)>, Error> {
        self.step(database, pages).map_err(|error| error.at(database.path()))
    }

    /// The branch page above the cursor's leaf, and the leaves from there on that it names, as
    /// bytes of the file; `None` where a tree has no branches, and after the last record.
    pub(crate) fn leaves_ahead<'a>(
        &'a self,
        database: &'a Database,
    ) -> Option<(u64, impl Iterator<Item = (u64, u64)> + 'a)> {
        let [.., branch, _] = self.levels.as_slice() else { return None };
        let layout = &database.layout;
        let leaves = branch.nodes.get(branch.next..)?.iter().filter_map(|node| match node.payload {
            Payload::Child(child) => Some((layout.offset(child), u64::from(layout.page_bytes))),
            _ => None,
        });
        Some((branch.page, leaves))
    }

    /// The place in a form for other processes.
    #[must_use]
    pub fn portable(&self, database: &Database) -> PortableCursor {
        let levels = self.levels.iter().map(|level| (level.page, level.next as u16)).collect();
        PortableCursor { transaction: last_transaction(database), root: database.identity.tree.root, levels }
    }

    /// The place from another process, at least `passed` records after the first.
    ///
    /// # Errors
    /// A place of another snapshot, and one that is none: every page must be in the file, of the
    /// right kind, and the child that its parent was left at.
    pub fn restore(
        database: &Database,
        portable: &PortableCursor,
        passed: u64,
        pages: &Pages<'_>,
    ) -> Result<Self, Error> {
        let tree = &database.identity.tree;
        let refuse = |what: &str, expected: String, found: String| {
            Err(Error::Modified {
                path: database.path().to_owned(),
                what: format!("cursor of another process: {what}"),
                expected,
                found,
            })
        };
        let snapshot = (last_transaction(database), tree.root);
        let found = (portable.transaction, portable.root);
        if found != snapshot {
            return refuse("transaction and root page", format!("{snapshot:?}"), format!("{found:?}"));
        }
        let mut cursor = Self { begun: passed > 0, passed: passed.min(tree.entries), ..Self::default() };
        if portable.levels.is_empty() {
            return Ok(cursor);
        }
        if portable.levels.len() != usize::from(tree.depth) {
            return refuse("levels", tree.depth.to_string(), portable.levels.len().to_string());
        }
        cursor.begun = true;
        let mut expected = tree.root;
        for (page, next) in &portable.levels {
            if *page != expected {
                return refuse("page", expected.to_string(), page.to_string());
            }
            cursor
                .descend(database, *page, database.tree_offset, pages)
                .map_err(|error| error.at(database.path()))?;
            let level = cursor.levels.last_mut().expect("a level was just added");
            level.next = usize::from(*next);
            let entered = level.next.checked_sub(1).and_then(|node| level.nodes.get(node));
            expected = match entered.map(|node| node.payload) {
                Some(Payload::Child(child)) => child,
                // After a record of the leaf, which is the last level.
                Some(_) => 0,
                None => {
                    let nodes = level.nodes.len();
                    return refuse("node of a page", format!("1 to {nodes}"), next.to_string());
                }
            };
        }
        Ok(cursor)
    }

    fn step<'a>(
        &mut self,
        database: &Database,
        pages: &Pages<'a>,
    ) -> Result<Option<(&'a [u8], Value)>, WalkError> {
        let (layout, tree) = (&database.layout, &database.identity.tree);
        if !self.begun {
            self.begun = true;
            if tree.depth > 0 {
                self.descend(database, tree.root, database.tree_offset, pages)?;
            }
        }
        while let Some(level) = self.levels.last_mut() {
            let Some(node) = level.nodes.get(level.next).copied() else {
                self.levels.pop();
                continue;
            };
            level.next += 1;
            let (page, at) = (level.page, layout.offset(level.page) + u64::from(node.at));
            let value = match node.payload {
                Payload::Child(child) => {
                    self.descend(database, child, at, pages)?;
                    continue;
                }
                Payload::Tree { .. } => continue,
                Payload::Inline { at, length } => {
                    Value::Inline { offset: layout.offset(page) + u64::from(at), length: u64::from(length) }
                }
                Payload::Big { page, length, pages } => {
                    layout.check_overflow(page, u64::from(length), pages, at)?;
                    Value::Big { page, length: u64::from(length) }
                }
            };
            self.passed += 1;
            if self.passed > tree.entries {
                let found = format!("{} or more", self.passed);
                return Err(PageError::new(
                    database.tree_offset,
                    "LMDB database: entries",
                    tree.entries,
                    found,
                )
                .into());
            }
            return Ok(Some((node.key(page_bytes(database, page, pages)?), value)));
        }
        Ok(None)
    }

    /// Takes in a page that is named at `named_at` of the file.
    fn descend(
        &mut self,
        database: &Database,
        page: u64,
        named_at: u64,
        pages: &Pages<'_>,
    ) -> Result<(), WalkError> {
        let (layout, tree) = (&database.layout, &database.identity.tree);
        layout.check_tree_page(page, named_at)?;
        let bytes = page_bytes(database, page, pages)?;
        let is_leaf = self.levels.len() + 1 == usize::from(tree.depth);
        let role = if is_leaf { Role::Leaf } else { Role::Branch };
        let mut level = CursorPage { page, ..CursorPage::default() };
        decode(layout, page, role, bytes, &mut level.nodes)?;
        self.levels.push(level);
        Ok(())
    }
}

fn last_transaction(database: &Database) -> u64 {
    let [one, other] = database.identity.transactions;
    one.max(other)
}

/// The bytes of a page.
fn page_bytes<'a>(database: &Database, page: u64, pages: &Pages<'a>) -> Result<&'a [u8], WalkError> {
    let (offset, length) = (database.layout.offset(page), u64::from(database.layout.page_bytes));
    pages(offset, length).ok_or_else(|| {
        let found = "the end of the file".to_owned();
        PageError::new(offset, format!("LMDB page {page}"), format!("{length} bytes"), found).into()
    })
}
