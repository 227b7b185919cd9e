//! LMDB as a container: the records of one database, in the order of their keys, are samples.

use forebay_types::{Extent, ShardId};
use serde_json::{Map, json};

use super::{Database, Record, Value, Version, WalkOptions, Word};
use crate::container::{Column, Container, ScanSummary};
use crate::file::Input;
use crate::index::sidecar::{IndexEntry, RecordClass, ShardState, Writer};
use crate::{Error, SchemaChoice};

/// Keys of records that are not samples: counts and lists that writers put beside them.
///
/// `num-samples`: scene-text sets; the others: tensorpack and its imitators. Excluded by exact name
/// only, since a pattern would drop samples silently.
pub const NOT_SAMPLES: [&str; 4] = ["num-samples", "__keys__", "__len__", "__classnum__"];

/// Keys of the first sample where it is two records, as in sets of text in scenes.
const PAIR: [&[u8]; 2] = [b"image-000000001", b"label-000000001"];

/// The number of this key in [`NOT_SAMPLES`], if its record is not a sample.
pub(crate) fn excluded(key: &[u8]) -> Option<u8> {
    NOT_SAMPLES.iter().position(|name| name.as_bytes() == key).map(|name| name as u8)
}

impl Value {
    /// Where the value starts [bytes from the start of the file], and its length \[bytes\].
    fn place(self, database: &Database) -> (u64, u64) {
        match self {
            Self::Inline { offset, length } => (offset, length),
            Self::Big { page, length } => {
                (page * u64::from(database.page_bytes()) + u64::from(database.header_bytes()), length)
            }
        }
    }

    /// What is read with the value: the header before it and the value, the length of the header
    /// \[bytes\], and the guard that the header is checked against, or 0.
    pub(crate) fn unit(self, database: &Database, shard: ShardId) -> (Extent, u32, u64) {
        let (offset, length) = self.place(database);
        let (head_bytes, guard) = match self {
            Self::Inline { .. } => (0, 0),
            Self::Big { page, .. } => (database.header_bytes(), page),
        };
        let head = u64::from(head_bytes);
        (Extent { shard, offset: offset - head, length: length + head }, head_bytes, guard)
    }

    fn entry(self, database: &Database) -> IndexEntry {
        match self {
            Self::Inline { offset, length } => IndexEntry::Plain { class: 0, start: offset, length },
            Self::Big { page, length } => {
                IndexEntry::Plain { class: 1, start: page * u64::from(database.page_bytes()), length }
            }
        }
    }
}

impl Database {
    /// The two classes of records: on a leaf page, and on pages of their own.
    fn classes(&self) -> [RecordClass; 2] {
        let page_bytes = self.page_bytes();
        let inline = RecordClass {
            step_bytes: 2,
            page_bytes,
            page_tail_bytes: self.identity().checksum_bytes,
            ..RecordClass::tight("inline")
        };
        let big = RecordClass {
            head_bytes: self.header_bytes(),
            align_bytes: page_bytes,
            step_bytes: page_bytes,
            guard: true,
            ..RecordClass::tight("big")
        };
        [inline, big]
    }

    /// Adds the next record to an index in the making; `excluded` is the number of its key in
    /// [`NOT_SAMPLES`], if it is no sample.
    pub fn add_record(&self, writer: &mut Writer, value: Value, excluded: Option<u8>) {
        match excluded.and_then(|name| NOT_SAMPLES.get(usize::from(name))) {
            Some(name) => writer.exclude(name),
            None => writer.push([value.entry(self)]),
        }
    }

    /// [`Container::add_to`], which also passes every record to `observe`, with the number of its
    /// key in [`NOT_SAMPLES`], if it is no sample.
    pub fn add_observed(
        &self,
        writer: &mut Writer,
        threads: usize,
        progress: &dyn Fn(u64) -> bool,
        observe: &mut dyn FnMut(&Record<'_>, Option<u8>),
    ) -> Result<ScanSummary, Error> {
        let options = WalkOptions { threads, ..WalkOptions::default() };
        let mut halves = [false; PAIR.len()];
        let report = self.walk(&options, &|leaves, _| progress(leaves), &mut |record| {
            let excluded = excluded(record.key);
            for (half, key) in halves.iter_mut().zip(PAIR) {
                *half |= record.key == key;
            }
            observe(&record, excluded);
            self.add_record(writer, record.value, excluded);
            Ok(())
        })?;
        Ok(ScanSummary {
            pairs: halves.iter().all(|half| *half),
            named_databases: report.named_databases,
            database_names: report.names,
            reads: report.reads,
            read_bytes: report.read_bytes,
            ..ScanSummary::default()
        })
    }
}

impl Container for Database {
    fn input(&self) -> &Input {
        &self.input
    }

    fn state(&self) -> ShardState {
        ShardState::Lmdb(self.identity().clone())
    }

    fn columns(&self) -> Result<Vec<Column>, Error> {
        Ok(vec![Column::opaque(self.classes().to_vec())])
    }

    fn usual_schema(&self) -> Option<SchemaChoice> {
        Some(SchemaChoice::CaffeDatum)
    }

    fn entries(&self) -> Option<u64> {
        Some(Self::entries(self))
    }

    fn progress_unit(&self) -> (&'static str, Option<u64>) {
        ("leaf pages", Some(self.identity().tree.leaf_pages))
    }

    fn add_to(
        &self,
        writer: &mut Writer,
        threads: usize,
        progress: &dyn Fn(u64) -> bool,
    ) -> Result<ScanSummary, Error> {
        self.add_observed(writer, threads, progress, &mut |_, _| {})
    }

    fn describe(&self) -> Map<String, serde_json::Value> {
        let identity = self.identity();
        let version = match identity.dialect.version {
            Version::V0_9 => "LMDB 0.9",
            Version::V1_0 => "LMDB 1.0",
        };
        let word_bits = if identity.dialect.word == Word::Bits64 { 64 } else { 32 };
        let dialect =
            format!("{version}, {word_bits} bit, {:?}-endian", identity.dialect.byte_order).to_lowercase();
        let description = [
            ("entries", json!(self.entries())),
            ("database", json!(identity.database)),
            ("dialect", json!(dialect)),
            ("page_bytes", json!(identity.page_bytes)),
            ("depth", json!(identity.tree.depth)),
            ("branch_pages", json!(identity.tree.branch_pages)),
            ("leaf_pages", json!(identity.tree.leaf_pages)),
            ("overflow_pages", json!(identity.tree.overflow_pages)),
            ("transaction", json!(identity.transactions.iter().max())),
        ];
        description.map(|(key, value)| (key.to_owned(), value)).into_iter().collect()
    }

    fn explain_empty(&self, summary: &ScanSummary, excluded: &[&str]) -> (String, String) {
        let names = summary.database_names.join(", ");
        if !names.is_empty() {
            let hint = format!("name the database to read; the file holds: {names}");
            return ("only named databases".to_owned(), hint);
        }
        if !excluded.is_empty() {
            return (format!("only records that are not samples: {}", excluded.join(", ")), String::new());
        }
        let hint = "where an LMDB file holds named databases, name the one to read with database=";
        ("no records".to_owned(), hint.to_owned())
    }

    fn check_unchanged(&self) -> Result<(), Error> {
        Self::check_unchanged(self)
    }
}
