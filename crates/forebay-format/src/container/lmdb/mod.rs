//! LMDB, read natively: one database of one data file, without liblmdb, without its lock file,
//! without a mapping.
//!
//! In order: [`Database::open`] reads the two meta pages, detects how the file was written
//! ([`Dialect`]), picks the snapshot of the last transaction ([`meta`]) and, for a named database,
//! descends the main tree to its record. [`Database::walk`] reads the tree level by level
//! ([`walk`], [`fetch`]) and visits every record in key order: key, place and length of the value.
//! Overflow pages, the bulk of most files, are not read. [`Cursor`] instead goes from record to
//! record, as programs do that use LMDB's own library.
//!
//! Promised: each meta, branch and leaf page is read once and nothing else. No file, however
//! damaged, leads to a panic, a loop or unbounded memory, because everything is checked before it
//! is used ([`page`] and the table in `docs/formats/lmdb.md`). Errors name file, offset, what was
//! expected and what was found.
//!
//! Refused: duplicate keys (`MDB_DUPSORT`) and encryption. Checksums of LMDB 1.0 are skipped, not
//! verified, since the file does not name their function. Nothing excludes writers:
//! [`Database::check_unchanged`] detects a file that is written while it is read, two transactions
//! late and in time.
//!
//! Source: observation of files written by LMDB 0.9.7 to 1.0.2; the byte layout is in
//! `docs/formats/lmdb.md`.

mod bitmap;
mod container;
mod cursor;
mod fetch;
mod meta;
mod page;
mod page_reads;
mod walk;

use std::path::Path;
use std::sync::Arc;

pub use crate::file::ReadAt;
pub use crate::unit_check::lmdb_dialect::{ByteOrder, Dialect, Version, Word};
pub use crate::unit_check::lmdb_identity::{Identity, TreeRecord};
pub use crate::unit_check::lmdb_overflow_header::check_overflow_header;
pub use crate::unit_check::lmdb_page_error::PageError;
pub use container::NOT_SAMPLES;
pub(crate) use container::excluded;
pub use cursor::{Cursor, Pages, PortableCursor};
pub use walk::{Record, Value, WalkOptions, WalkReport};

use self::meta::{Layout, Metas};
use self::page::Payload;
use self::walk::{NamedEntry, TreeWalk};
use crate::Error;
use crate::file::{Input, IoCounters};
use crate::unit_check::lmdb_page_error::WalkError;

/// Name of the data file in a database's directory.
const DATA_FILE: &str = "data.mdb";

/// Largest main tree whose named databases are listed when one is not found [leaf pages].
const LISTED_LEAF_PAGES: u64 = 64;

/// One database, open for reading.
#[derive(Clone, Debug)]
pub struct Database {
    input: Arc<Input>,
    layout: Layout,
    identity: Identity,
    /// Offset of the tree's record [bytes from the start of the file].
    tree_offset: u64,
    opening_reads: u64,
    opening_bytes: u64,
}

impl Database {
    /// Opens the main database of `path`, or the one named `database`.
    ///
    /// `path` is a directory that holds `data.mdb`, or a data file. Only meta pages are read and,
    /// for a named database, one page per level of the main tree.
    pub fn open(path: &Path, database: Option<&str>) -> Result<Self, Error> {
        let file = if path.is_dir() {
            let file = path.join(DATA_FILE);
            if matches!(file.try_exists(), Ok(false)) {
                return Err(Error::Usage {
                    message: format!("{}: the directory holds no {DATA_FILE}", path.display()),
                    hint: "name the directory of an LMDB database, or its data file".to_owned(),
                });
            }
            file
        } else {
            path.to_owned()
        };
        Self::of_input(Input::open(&file)?, database)
    }

    /// Opens a database that lies in `source`; `path` is its name in messages.
    pub fn from_source(source: Arc<dyn ReadAt>, path: &Path, database: Option<&str>) -> Result<Self, Error> {
        Self::of_input(Input::from_source(path, source)?, database)
    }

    fn of_input(input: Input, database: Option<&str>) -> Result<Self, Error> {
        let path = input.path().to_owned();
        Self::open_tree(input, database).map_err(|error| error.at(&path))
    }

    fn open_tree(input: Input, database: Option<&str>) -> Result<Self, WalkError> {
        let counters = IoCounters::default();
        let metas = Metas::read(&input, &counters)?;
        let (meta, number) = metas.chosen();
        let Metas { dialect, page_bytes, checksum_bytes, .. } = metas;
        let (last_page, file_bytes) = (meta.last_page, input.bytes());
        let layout = Layout { dialect, page_bytes, checksum_bytes, last_page, file_bytes };
        let mut tree_offset = metas.main_offset(number);
        meta.main.check("main", tree_offset, &layout)?;
        let mut tree = meta.main;
        if let Some(name) = database {
            let walk =
                TreeWalk { input: &input, layout: &layout, tree: &meta.main, is_main: true, tree_offset };
            (tree, tree_offset) = find_named(&walk, input.path(), name, &counters)?;
            tree.check(&format!("{name:?}"), tree_offset, &layout)?;
        }
        let identity = Identity {
            dialect,
            page_bytes,
            checksum_bytes,
            transactions: [metas.pages[0].transaction, metas.pages[1].transaction],
            last_page: meta.last_page,
            main: meta.main,
            database: database.map(str::to_owned),
            tree,
        };
        let (opening_reads, opening_bytes) = (counters.reads(), counters.read_bytes());
        let input = Arc::new(input);
        Ok(Self { input, layout, identity, tree_offset, opening_reads, opening_bytes })
    }

    /// The same database, read through what `wrap` makes of its source.
    #[must_use]
    pub fn read_through(&self, wrap: impl FnOnce(Arc<dyn ReadAt>) -> Arc<dyn ReadAt>) -> Self {
        Self { input: Arc::new(self.input.read_through(wrap)), ..self.clone() }
    }

    /// The data file.
    pub fn path(&self) -> &Path {
        self.input.path()
    }

    /// Length of the data file when it was opened \[bytes\].
    pub fn file_bytes(&self) -> u64 {
        self.layout.file_bytes
    }

    /// Which state of which database this is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Number of records; in a main database, with the named databases.
    pub fn entries(&self) -> u64 {
        self.identity.tree.entries
    }

    /// Length of a page header \[bytes\]: a big value starts this far into its first page.
    pub fn header_bytes(&self) -> u32 {
        self.layout.dialect.header_bytes()
    }

    /// Length of a page \[bytes\].
    pub fn page_bytes(&self) -> u32 {
        self.layout.page_bytes
    }

    /// Reads the meta pages again and fails if what was opened may have been overwritten since.
    ///
    /// A transaction does not touch the pages of the snapshot before it, so one more than at the
    /// opening is harmless; from the second on pages may be reused. Also an error: a shorter file,
    /// fewer transactions than at the opening, other contents under the same number (another file
    /// was copied over this one).
    pub fn check_unchanged(&self) -> Result<(), Error> {
        let modified = |what: &str, expected: String, found: String| Error::Modified {
            path: self.path().to_owned(),
            what: what.to_owned(),
            expected,
            found,
        };
        let metas = match Metas::read(&self.input, &IoCounters::default()) {
            Ok(metas) => metas,
            Err(error @ WalkError::Read(_)) => return Err(error.at(self.path())),
            Err(error) => {
                return Err(modified(
                    "meta pages",
                    "as when opened".to_owned(),
                    error.at(self.path()).to_string(),
                ));
            }
        };
        let identity = &self.identity;
        let opened = identity.transactions[0].max(identity.transactions[1]);
        let now = metas.chosen().0.transaction;
        if now < opened || now - opened >= 2 {
            return Err(modified("last transaction", format!("{opened} or {}", opened + 1), now.to_string()));
        }
        // The page of the opened snapshot: still there while at most one transaction has followed.
        let number = usize::from(identity.transactions[1] > identity.transactions[0]);
        let page = &metas.pages[number];
        let same_pages = (metas.dialect, metas.page_bytes, metas.checksum_bytes)
            == (identity.dialect, identity.page_bytes, identity.checksum_bytes);
        if !same_pages || page.transaction != opened || page.main != identity.main {
            let found = format!("transaction {} with {} entries", page.transaction, page.main.entries);
            let expected = format!("transaction {opened} with {} entries", identity.main.entries);
            return Err(modified("meta page", expected, found));
        }
        if let Ok(bytes) = self.input.present_bytes()
            && bytes < self.layout.file_bytes
        {
            let expected = format!("at least {} bytes", self.layout.file_bytes);
            return Err(modified("length", expected, bytes.to_string()));
        }
        Ok(())
    }

    /// Announces that a page is read soon.
    pub fn announce_page(&self, page: u64) {
        self.input.will_need(self.layout.offset(page), u64::from(self.layout.page_bytes));
    }

    /// Reads one page as a leaf of the tree: the keys and values of its nodes, in key order.
    pub fn leaf(&self, page: u64) -> Result<Vec<(Vec<u8>, Value)>, Error> {
        self.leaf_nodes(page).map_err(|error| error.at(self.path()))
    }

    fn leaf_nodes(&self, page: u64) -> Result<Vec<(Vec<u8>, Value)>, WalkError> {
        let (mut bytes, mut nodes) = (Vec::new(), Vec::new());
        self.layout.check_tree_page(page, self.tree_offset)?;
        meta::read_page(&self.input, &self.layout, page, &mut bytes, &IoCounters::default())?;
        page::decode(&self.layout, page, page::Role::Leaf, &bytes, &mut nodes)?;
        let start = self.layout.offset(page);
        let mut found = Vec::with_capacity(nodes.len());
        for node in &nodes {
            let at = start + u64::from(node.at);
            let value = match node.payload {
                Payload::Inline { at, length } => {
                    Value::Inline { offset: start + u64::from(at), length: u64::from(length) }
                }
                Payload::Big { page, length, pages } => {
                    self.layout.check_overflow(page, u64::from(length), pages, at)?;
                    Value::Big { page, length: u64::from(length) }
                }
                Payload::Tree { .. } | Payload::Child(_) => {
                    let what = format!("LMDB page {page}: node flags");
                    return Err(PageError::new(at, what, "a value", "the record of a database").into());
                }
            };
            found.push((node.key(&bytes).to_vec(), value));
        }
        Ok(found)
    }

    /// Reads the tree level by level and hands every record to `sink`, in key order.
    ///
    /// `progress` is called often, with the leaves done and all leaves; `false` ends the walk with
    /// [`Error::Interrupted`]. An error of `sink` also ends it. Records before an error are
    /// meaningless. The walk ends with [`Self::check_unchanged`].
    pub fn walk(
        &self,
        options: &WalkOptions,
        progress: &dyn Fn(u64, u64) -> bool,
        sink: &mut dyn FnMut(Record<'_>) -> Result<(), Error>,
    ) -> Result<WalkReport, Error> {
        let counters = IoCounters::default();
        let walk = TreeWalk {
            input: &self.input,
            layout: &self.layout,
            tree: &self.identity.tree,
            is_main: self.identity.database.is_none(),
            tree_offset: self.tree_offset,
        };
        match walk.run(options, &counters, progress, sink) {
            Ok(mut report) => {
                self.check_unchanged()?;
                report.reads = self.opening_reads + counters.reads();
                report.read_bytes = self.opening_bytes + counters.read_bytes();
                Ok(report)
            }
            // What looks like damage may be a writer at work.
            Err(WalkError::PageError(error)) => match self.check_unchanged() {
                Err(modified @ Error::Modified { .. }) => Err(modified),
                _ => Err(error.at(self.path())),
            },
            Err(error) => Err(error.at(self.path())),
        }
    }
}

/// Finds the record of the database `name` in the main tree.
fn find_named(
    walk: &TreeWalk<'_>,
    path: &Path,
    name: &str,
    counters: &IoCounters,
) -> Result<(TreeRecord, u64), WalkError> {
    let mut key = name.as_bytes().to_vec();
    if walk.layout.dialect.version == Version::V1_0 {
        key.push(0);
    }
    let usage = |message: String, hint: String| WalkError::from(Error::Usage { message, hint });
    match walk.find_tree(&key, counters)? {
        Some(NamedEntry::Tree(tree, offset)) => Ok((tree, offset)),
        Some(NamedEntry::Value) => Err(usage(
            format!("{}: {name:?} is a record of the main database, not a named database", path.display()),
            "leave the database name out to read the main database".to_owned(),
        )),
        None => {
            let hint = if walk.tree.leaf_pages <= LISTED_LEAF_PAGES {
                let options = WalkOptions { threads: 1, memory_bytes: 1 << 20 };
                let names = walk.run(&options, counters, &|_, _| true, &mut |_| Ok(()))?.names;
                if names.is_empty() {
                    "the file holds no named database; leave the name out".to_owned()
                } else {
                    format!("it holds: {}", names.join(", "))
                }
            } else {
                "the main database has records of its own; leave the name out to read them".to_owned()
            };
            Err(usage(format!("{}: no database is named {name:?}", path.display()), hint))
        }
    }
}
