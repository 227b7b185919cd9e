//! Compares a computed layout with the file: the meta pages, and sixteen leaves in full.
//!
//! The meta pages hold root, last page, last transaction, depth and counts of pages and records; a
//! wrong rhythm of commits often leaves all of them right. A leaf holds the locations of its
//! records, some hundred at a time, so sixteen leaves find far more than sixteen records would.
//! They are the first, the last, and others spread over the file, by preference those during which
//! the writer committed. The digest of a derived recipe finds the rest.

use forebay_format::lmdb::{Database, Identity, Value};

use crate::error::Error;
use crate::facts::{KeyPattern, Recipe};
use crate::insertion::{InsertionResult, LeafPage, Placed};
use crate::layout::Finished;

/// Leaves that are read.
pub(crate) const CHECKED_LEAVES: u64 = 16;

/// A prediction of the recipe that the file contradicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Which thing differs.
    pub what: String,
    /// What follows from the recipe.
    pub expected: String,
    /// What the file has.
    pub found: String,
}

impl Difference {
    pub(crate) fn new(
        what: impl Into<String>,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Self {
        Self { what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }

    /// The difference as an error about a file.
    pub(crate) fn at(self, database: &Database) -> Error {
        let Self { what, expected, found } = self;
        Error::Mismatch { path: database.path().to_owned(), what, expected, found }
    }
}

/// A recipe that cannot be carried out.
impl From<String> for Difference {
    fn from(reason: String) -> Self {
        Self::new("what it describes", "a history that LMDB can have", reason)
    }
}

/// Compares what can be compared before anything is computed. A recipe that passes has as many
/// records as the file.
pub(crate) fn compare_facts(recipe: &Recipe, identity: &Identity) -> Result<(), Difference> {
    let differ = |what: &str, expected: String, found: String| {
        if expected == found { Ok(()) } else { Err(Difference::new(what, expected, found)) }
    };
    let dialect = |dialect| format!("{dialect:?}");
    differ("dialect", dialect(recipe.dialect), dialect(identity.dialect))?;
    differ("length of a page", recipe.page_bytes.to_string(), identity.page_bytes.to_string())?;
    differ("length of a checksum", recipe.checksum_bytes.to_string(), identity.checksum_bytes.to_string())?;
    let name = |name: Option<&str>| name.map_or("the main one".to_owned(), |name| format!("{name:?}"));
    let declared = recipe.database.as_ref().map(|named| named.name.as_str());
    differ("database", name(declared), name(identity.database.as_deref()))?;
    differ("records", recipe.records.to_string(), identity.tree.entries.to_string())?;
    if identity.tree.flags != 0 {
        return Err(Difference::new(
            "order of keys",
            "byte by byte",
            format!("flags {:#x}", identity.tree.flags),
        ));
    }
    Ok(())
}

/// Compares the meta pages.
pub(crate) fn compare_metas(outcome: &InsertionResult, identity: &Identity) -> Result<(), Difference> {
    let tree = &identity.tree;
    let newest = identity.transactions[0].max(identity.transactions[1]);
    let oldest = identity.transactions[0].min(identity.transactions[1]);
    for (what, expected, found) in [
        ("records", outcome.entries, tree.entries),
        ("depth of the tree", outcome.depth, u64::from(tree.depth)),
        ("leaf pages", outcome.leaf_pages, tree.leaf_pages),
        ("branch pages", outcome.branch_pages, tree.branch_pages),
        ("overflow pages", outcome.overflow_pages, tree.overflow_pages),
        ("last transaction", outcome.transaction, newest),
        ("transaction before the last", outcome.transaction - 1, oldest),
        ("last page", outcome.last_page, identity.last_page),
        ("root page", outcome.root, tree.root),
    ] {
        if expected != found {
            return Err(Difference::new(what, expected, found));
        }
    }
    if let Some(root) = outcome.main_root {
        let main = &identity.main;
        for (what, expected, found) in [
            ("records of the main database", 1, main.entries),
            ("pages of the main database", 1, main.leaf_pages + main.branch_pages + main.overflow_pages),
            ("root page of the main database", root, main.root),
        ] {
            if expected != found {
                return Err(Difference::new(what, expected, found));
            }
        }
    }
    Ok(())
}

/// A leaf to check, and its first record.
#[derive(Clone, Debug)]
pub(crate) struct PickedLeaf {
    page: LeafPage,
    first: u64,
}

/// Picks the leaves to check from the sequence of all leaves.
pub(crate) struct LeafPicker {
    leaves: u64,
    seen: u64,
    picked: Vec<PickedLeaf>,
    /// Whether the last one picked is one during which the writer committed, or the first of all.
    at_boundary: bool,
}

impl LeafPicker {
    /// A picker for a file of this many leaves.
    pub(crate) fn new(leaves: u64) -> Self {
        Self { leaves, seen: 0, picked: Vec::new(), at_boundary: true }
    }

    /// Takes the next leaf.
    pub(crate) fn add(&mut self, leaf: &Finished<'_>) {
        let (number, boundary) = (self.seen, leaf.page.begun != leaf.page.transaction);
        self.seen += 1;
        let spread = u128::from(self.leaves) * self.picked.len() as u128 / u128::from(CHECKED_LEAVES);
        let is_due = u128::from(number) >= spread && (self.picked.len() as u64) < CHECKED_LEAVES - 1;
        let is_last = number + 1 == self.leaves;
        if is_due || is_last {
            self.picked.push(PickedLeaf { page: leaf.page.clone(), first: leaf.first });
            self.at_boundary = boundary || number == 0;
        } else if !self.at_boundary
            && boundary
            && let Some(last) = self.picked.last_mut()
        {
            *last = PickedLeaf { page: leaf.page.clone(), first: leaf.first };
            self.at_boundary = true;
        }
    }

    /// The leaves that were picked.
    pub(crate) fn finish(self) -> Vec<PickedLeaf> {
        self.picked
    }
}

impl PickedLeaf {
    /// Prefetches the leaf, so that the reads of all picked leaves overlap.
    pub(crate) fn prefetch(&self, database: &Database) {
        database.announce_page(self.page.page);
    }

    /// Reads the leaf and compares every node of it.
    pub(crate) fn check(&self, database: &Database, pattern: Option<&KeyPattern>) -> Result<(), Error> {
        let number = self.page.page;
        let differ = |what: String, expected: String, found: String| {
            Err(Difference::new(format!("page {number}: {what}"), expected, found).at(database))
        };
        let nodes = match database.leaf(number) {
            Ok(nodes) => nodes,
            Err(forebay_format::Error::Corrupt { what, expected, found, .. }) => {
                return differ(what, expected, found);
            }
            Err(error) => return Err(error.into()),
        };
        if nodes.len() != self.page.records.len() {
            return differ(
                "records".to_owned(),
                self.page.records.len().to_string(),
                nodes.len().to_string(),
            );
        }
        for (index, ((key, value), record)) in nodes.iter().zip(&self.page.records).enumerate() {
            let ordinal = self.first + index as u64;
            let what = |what: &str| format!("{what} of record {ordinal}");
            if key.len() != usize::from(record.key_bytes) {
                let expected = format!("{} bytes", record.key_bytes);
                return differ(what("key"), expected, format!("{} bytes", key.len()));
            }
            if let Some(predicted) = pattern.map(|pattern| pattern.key(ordinal)).filter(|text| text != key) {
                let text = |key: &[u8]| format!("{:?}", String::from_utf8_lossy(key));
                return differ(what("key"), text(&predicted), text(key));
            }
            let predicted = value_of(number, database, record);
            if *value != predicted {
                return differ(what("value"), describe(predicted), describe(*value));
            }
        }
        Ok(())
    }
}

/// Where the value of a record on leaf `leaf` lies.
pub(crate) fn value_of(leaf: u64, database: &Database, record: &Placed) -> Value {
    let length = u64::from(record.value_bytes);
    if record.big {
        Value::Big { page: record.at, length }
    } else {
        Value::Inline { offset: leaf * u64::from(database.page_bytes()) + record.at, length }
    }
}

fn describe(value: Value) -> String {
    match value {
        Value::Inline { offset, length } => format!("{length} bytes at offset {offset}"),
        Value::Big { page, length } => format!("{length} bytes from page {page} on"),
    }
}
