//! Building an index: one walk per file, and a look at a few records.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::{Dataset, Files, Progress, Shard};
use crate::Format;
use crate::file::Input;
use crate::lmdb::{Database, Record, Value, WalkOptions};
use crate::schema::datum::{self, Look};
use crate::schema::{Schema, SchemaChoice, SchemaError};
use crate::sidecar::{Class, Entry, Home, ShardInfo, Writer};
use crate::{DatumSchema, Error};

/// Records that are looked at to find the schema: the first, the last, and as many between.
const LOOKS: u64 = 16;

/// Most classes of records; two for each kind of LMDB file in a dataset.
const MOST_CLASSES: usize = 16;

/// Keys of records that are not samples: counts and lists that writers put beside them.
///
/// `num-samples`: scene-text sets; the others: tensorpack and its imitators. Left out by exact name only, since a
/// pattern would drop samples in silence.
pub(crate) const NOT_SAMPLES: [&str; 4] = ["num-samples", "__keys__", "__len__", "__classnum__"];

/// An index, just built.
#[derive(Clone, Debug)]
pub struct BuiltIndex {
    /// The sidecar.
    pub bytes: Vec<u8>,
    /// What it cost and what was found.
    pub report: IndexReport,
}

/// What building an index cost and what was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IndexReport {
    /// Samples in the index.
    pub samples: u64,
    /// Records that are not samples, by name.
    pub excluded: BTreeMap<String, u64>,
    /// Databases with names of their own beside the records.
    pub named_databases: u64,
    /// Size of the data files \[bytes\].
    pub file_bytes: u64,
    /// Bytes read to build the index.
    pub read_bytes: u64,
    /// Reads for these.
    pub reads: u64,
    /// Time taken \[s\].
    pub seconds: f64,
    /// Size of the sidecar \[bytes\].
    pub sidecar_bytes: u64,
    /// What the user should know though all went well.
    pub warnings: Vec<String>,
}

/// A record to look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) sample: u64,
    pub(super) shard: usize,
    /// Where the record starts [bytes from the start of the file].
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Dataset {
    /// Walks the files and makes an index of them, with up to `threads` reads at the same time.
    ///
    /// `progress` is called often; `false` ends the walk with [`Error::Interrupted`].
    pub fn build_index(
        &self,
        threads: usize,
        progress: &(dyn Fn(Progress) -> bool + Sync),
    ) -> Result<BuiltIndex, Error> {
        match &self.files {
            Files::Lmdb(_) => self.build_observed(threads, progress, &mut |_, _, _| {}),
            Files::Other(files) => self.build_from_files(files, progress),
        }
    }

    /// The same for LMDB files; `observe` sees every record of every shard, with the number of its name in [`NOT_SAMPLES`], if it is one
    /// of those.
    pub(super) fn build_observed(
        &self,
        threads: usize,
        progress: &(dyn Fn(Progress) -> bool + Sync),
        observe: &mut dyn FnMut(usize, &Record<'_>, Option<u8>),
    ) -> Result<BuiltIndex, Error> {
        let mut assembly = Assembly::new(self)?;
        let total = self.databases().iter().map(|database| database.identity().tree.leaf_pages).sum();
        let mut leaves_before = 0;
        for (number, database) in self.databases().iter().enumerate() {
            let walked = database.walk(
                &WalkOptions { threads, ..WalkOptions::default() },
                &|leaves, _| progress(Progress { what: "leaf pages", done: leaves_before + leaves, total }),
                &mut |record| {
                    let excluded = NOT_SAMPLES.iter().position(|name| name.as_bytes() == record.key);
                    let excluded = excluded.map(|name| name as u8);
                    observe(number, &record, excluded);
                    assembly.push(number, record.value, excluded);
                    Ok(())
                },
            )?;
            assembly.end_shard(number);
            leaves_before += database.identity().tree.leaf_pages;
            assembly.report.named_databases += walked.named_databases;
            assembly.report.read_bytes += walked.read_bytes;
            assembly.report.reads += walked.reads;
            assembly.names.extend(walked.names);
        }
        assembly.finish()
    }

    /// The classes of records of all shards, and for each shard the number of its first one.
    fn classes(&self) -> Result<(Vec<Class>, Vec<u8>), Error> {
        let mut classes: Vec<Class> = Vec::new();
        let mut first = Vec::new();
        for database in self.databases() {
            let of_shard = lmdb_classes(database);
            let known = classes.chunks(2).position(|pair| *pair == of_shard);
            if known.is_none() {
                classes.extend(of_shard);
            }
            first.push(known.map_or(classes.len() - 2, |pair| 2 * pair) as u8);
        }
        if classes.len() > MOST_CLASSES {
            return Err(Error::Usage {
                message: format!("the files are of {} kinds (page size, LMDB version)", classes.len() / 2),
                hint: format!("a dataset mixes at most {}; rewrite some of them", MOST_CLASSES / 2),
            });
        }
        Ok((classes, first))
    }

    fn without_samples<'a>(&self, names: &[String], excluded: impl Iterator<Item = &'a String>) -> Error {
        let excluded: Vec<_> = excluded.map(String::as_str).collect();
        let (found, hint) = if names.is_empty() && excluded.is_empty() {
            let named = "where an LMDB file holds named databases, name the one to read with database=";
            ("no records".to_owned(), named.to_owned())
        } else if names.is_empty() {
            (format!("only records that are not samples: {}", excluded.join(", ")), String::new())
        } else {
            let names = names.join(", ");
            ("only named databases".to_owned(), format!("name the database to read; the file holds: {names}"))
        };
        let what = "a dataset without samples".to_owned();
        Error::Unsupported { path: self.shards[0].path.clone(), what, found, hint }
    }

    /// Finds the schema that the options ask for, from a look at a few records.
    fn find_schema(&self, probes: &[Probe], report: &mut IndexReport) -> Result<Schema, Error> {
        let of_library = match self.options.schema {
            SchemaChoice::Raw => Some(Schema::Raw),
            SchemaChoice::TfExample => self.find_example(probes, &self.options.fields, true, report)?,
            SchemaChoice::ImageRecord => self.find_image_record(probes, true, report)?,
            SchemaChoice::Auto | SchemaChoice::CaffeDatum => None,
        };
        if let Some(schema) = of_library {
            return Ok(schema);
        }
        let forced = self.options.schema == SchemaChoice::CaffeDatum;
        let mut found: Option<DatumSchema> = None;
        let mut misfit = None;
        for probe in probes {
            let other = match (self.look(probe, report)?, found) {
                (Look::Fits(schema), None) => {
                    found = Some(schema);
                    continue;
                }
                (Look::Fits(schema), Some(first)) if schema == first => continue,
                (Look::Fits(schema), Some(first)) => datum::difference(&first, &schema),
                (Look::Extended(error), _) if !forced => return Err(self.misfit(probe, error)),
                (Look::Other(error) | Look::Extended(error), _) if forced => {
                    // It may be damaged: whoever reads it will see.
                    misfit.get_or_insert_with(|| self.misfit(probe, error));
                    continue;
                }
                (Look::Other(_) | Look::Extended(_), _) => return Ok(Schema::Raw),
            };
            return if forced { Err(self.misfit(probe, other)) } else { Ok(Schema::Raw) };
        }
        match (found, misfit) {
            (Some(schema), _) => Ok(Schema::CaffeDatum(schema)),
            (None, Some(misfit)) => Err(misfit),
            (None, None) => Ok(Schema::Raw),
        }
    }

    pub(super) fn misfit(&self, probe: &Probe, source: SchemaError) -> Error {
        let path = self.shards[probe.shard].path.clone();
        Error::Schema { path, sample: probe.sample, offset: probe.offset, source: Box::new(source) }
    }

    fn look(&self, probe: &Probe, report: &mut IndexReport) -> Result<Look, Error> {
        let input = Input::open(&self.shards[probe.shard].path)?;
        datum::look(probe.length, &mut |at, into| {
            report.reads += 1;
            report.read_bytes += into.len() as u64;
            input.read(probe.offset + at, into, "record")
        })
    }
}

/// An index in the making: takes records in order, from wherever their places are known.
pub(super) struct Assembly<'a> {
    dataset: &'a Dataset,
    started: Instant,
    writer: Writer,
    first_classes: Vec<u8>,
    probes: Probes,
    /// Names of databases among the records.
    names: Vec<String>,
    pub(super) report: IndexReport,
}

impl<'a> Assembly<'a> {
    pub(super) fn new(dataset: &'a Dataset) -> Result<Self, Error> {
        let started = Instant::now();
        let (classes, first_classes) = dataset.classes()?;
        Ok(Self {
            dataset,
            started,
            writer: Writer::new(vec![classes]),
            first_classes,
            probes: Probes::new(dataset.databases().iter().map(Database::entries).sum()),
            names: Vec::new(),
            report: IndexReport::default(),
        })
    }

    /// Takes the next record of shard `shard`; `excluded` is the number of its name in [`NOT_SAMPLES`].
    pub(super) fn push(&mut self, shard: usize, value: Value, excluded: Option<u8>) {
        if let Some(name) = excluded.and_then(|name| NOT_SAMPLES.get(usize::from(name))) {
            self.writer.exclude(name);
            return;
        }
        let database = &self.dataset.databases()[shard];
        let (offset, length) = place_of(value, database);
        self.probes.see(Probe { sample: self.writer.samples(), shard, offset, length });
        self.writer.push([entry(value, database, self.first_classes[shard])]);
    }

    /// Ends shard `shard`.
    pub(super) fn end_shard(&mut self, shard: usize) {
        self.writer.end_shard(self.dataset.describe_shard(shard));
        self.report.file_bytes += self.dataset.shards[shard].bytes;
    }

    /// Finds the schema, which reads a few records, and makes the sidecar.
    pub(super) fn finish(self) -> Result<BuiltIndex, Error> {
        let Self { dataset, started, writer, probes, names, mut report, .. } = self;
        if writer.samples() == 0 {
            return Err(dataset.without_samples(&names, writer.summary().excluded.keys()));
        }
        let schema = dataset.find_schema(&probes.finish(), &mut report)?;
        report.samples = writer.samples();
        report.excluded = writer.summary().excluded.clone();
        let bytes = writer.finish(Format::Lmdb, schema, dataset.fingerprint);
        report.sidecar_bytes = bytes.len() as u64;
        report.seconds = started.elapsed().as_secs_f64();
        Ok(BuiltIndex { bytes, report })
    }
}

impl Dataset {
    /// What a sidecar says of a shard; the number of samples is the writer's to fill in.
    pub(super) fn describe_shard(&self, number: usize) -> ShardInfo {
        let Shard { bytes, modified_ns, .. } = self.shards[number];
        let state = self.files.state(number);
        ShardInfo { name: self.shards[number].name(), bytes, modified_ns, samples: 0, state }
    }
}

/// The two classes of LMDB's records: on a leaf page, and on pages of their own.
fn lmdb_classes(database: &Database) -> [Class; 2] {
    let page_bytes = database.page_bytes();
    let inline = Class {
        name: "inline".to_owned(),
        head_bytes: 0,
        tail_bytes: 0,
        align_bytes: 1,
        step_bytes: 2,
        page_bytes,
        page_tail_bytes: database.identity().checksum_bytes,
        guard: false,
        home: Home::default(),
    };
    let big = Class {
        name: "big".to_owned(),
        head_bytes: database.header_bytes(),
        tail_bytes: 0,
        align_bytes: page_bytes,
        step_bytes: page_bytes,
        page_bytes: 0,
        page_tail_bytes: 0,
        guard: true,
        home: Home::default(),
    };
    [inline, big]
}

/// The entry of a record.
fn entry(value: Value, database: &Database, first_class: u8) -> Entry {
    match value {
        Value::Inline { offset, length } => Entry::Plain { class: first_class, start: offset, length },
        Value::Big { page, length } => {
            let start = page * u64::from(database.page_bytes());
            Entry::Plain { class: first_class + 1, start, length }
        }
    }
}

/// Where the bytes of a record start [bytes from the start of the file], and how many they are.
pub(super) fn place_of(value: Value, database: &Database) -> (u64, u64) {
    match value {
        Value::Inline { offset, length } => (offset, length),
        Value::Big { page, length } => {
            (page * u64::from(database.page_bytes()) + u64::from(database.header_bytes()), length)
        }
    }
}

/// Whether the record with this key is a sample.
pub(super) fn is_sample(key: &[u8]) -> bool {
    NOT_SAMPLES.iter().all(|name| name.as_bytes() != key)
}

/// Picks the records to look at while the walk goes by.
struct Probes {
    entries: u64,
    picked: Vec<Probe>,
    last: Option<Probe>,
}

impl Probes {
    fn new(entries: u64) -> Self {
        Self { entries, picked: Vec::new(), last: None }
    }

    fn see(&mut self, probe: Probe) {
        // Spread evenly: the first of each sixteenth.
        let wanted = u128::from(self.entries) * self.picked.len() as u128 / u128::from(LOOKS);
        if (self.picked.len() as u64) < LOOKS - 1 && u128::from(probe.sample) >= wanted {
            self.picked.push(probe);
        }
        self.last = Some(probe);
    }

    fn finish(mut self) -> Vec<Probe> {
        if let Some(last) = self.last
            && self.picked.last().is_none_or(|picked| picked.sample != last.sample)
        {
            self.picked.push(last);
        }
        self.picked
    }
}
