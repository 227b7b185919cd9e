//! A cursor: from record to record in key order, with one page in hand per level, as LMDB's own library walks.
//!
//! The pages come from whoever holds the file in memory, one at a time and when they are wanted, so what a step costs is
//! what touching them costs. Every page is checked like in the walk ([`super::page::decode`]); a file whose pages lead in
//! circles ends with an error once more records have come than the database says it has.

use super::Database;
use super::fault::{Fault, Trouble};
use super::page::{Node, Payload, Role, decode};
use super::walk::Value;
use crate::Error;

/// Hands out bytes of the data file, (offset, length) \[bytes\]; `None` where it has none.
pub type Pages<'a> = dyn Fn(u64, u64) -> Option<&'a [u8]> + 'a;

/// A place between two records.
#[derive(Debug, Default)]
pub struct Cursor {
    /// From the root down; empty before the first record and behind the last.
    levels: Vec<Level>,
    begun: bool,
    passed: u64,
}

/// A page on the way down.
#[derive(Debug, Default)]
struct Level {
    page: u64,
    nodes: Vec<Node>,
    /// The node that comes next.
    next: usize,
}

impl Cursor {
    /// Goes over the next record and hands out its key and where its value lies; `None` behind the last.
    ///
    /// Named databases in a main database are no records and are passed over.
    pub fn next<'a>(
        &mut self,
        database: &Database,
        pages: &Pages<'a>,
    ) -> Result<Option<(&'a [u8], Value)>, Error> {
        self.step(database, pages).map_err(|trouble| trouble.at(&database.path))
    }

    fn step<'a>(
        &mut self,
        database: &Database,
        pages: &Pages<'a>,
    ) -> Result<Option<(&'a [u8], Value)>, Trouble> {
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
                return Err(
                    Fault::new(database.tree_offset, "LMDB database: entries", tree.entries, found).into()
                );
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
    ) -> Result<(), Trouble> {
        let (layout, tree) = (&database.layout, &database.identity.tree);
        layout.check_tree_page(page, named_at)?;
        let bytes = page_bytes(database, page, pages)?;
        let is_leaf = self.levels.len() + 1 == usize::from(tree.depth);
        let role = if is_leaf { Role::Leaf } else { Role::Branch };
        let mut level = Level { page, ..Level::default() };
        decode(layout, page, role, bytes, &mut level.nodes)?;
        self.levels.push(level);
        Ok(())
    }
}

/// The bytes of a page.
fn page_bytes<'a>(database: &Database, page: u64, pages: &Pages<'a>) -> Result<&'a [u8], Trouble> {
    let (offset, length) = (database.layout.offset(page), u64::from(database.layout.page_bytes));
    pages(offset, length).ok_or_else(|| {
        let found = "the end of the file".to_owned();
        Fault::new(offset, format!("LMDB page {page}"), format!("{length} bytes"), found).into()
    })
}
