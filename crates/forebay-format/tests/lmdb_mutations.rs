//! Damaged LMDB files: an error that says where, or the records as they were, never anything else.
//!
//! Sound files of every dialect are damaged one field at a time (every field of every page gets
//! hostile values), by truncation, and by random flips of bits; all of it follows from seeds. What
//! may come back: an error with a path (and an offset, if it is damage); all records; no records,
//! where the damage made the other meta page, of an empty database, the last one; or the same
//! number of records, at most as many of them changed as there were mutations: LMDB has no
//! checksums, so the bytes of keys and values, and the length of a value within its page, are
//! beyond checking.
//!
//! 20,000 files and more by default, a million with `FOREBAY_LONG_TESTS=1`.

use std::collections::BTreeSet;
use std::env;

use crate::support::lmdb_reader::{read, read_by_cursor};
use crate::support::lmdb_writer::{FieldPlace, Image, Random, Records, Spec, put, records};
use forebay_format::Error;
use forebay_format::lmdb::{Dialect, Version};

/// What came of the mutated files.
#[derive(Debug, Default)]
struct Tally {
    files: u64,
    errors: u64,
    equal: u64,
    other_snapshot: u64,
    changed: u64,
    /// Fields whose damage changed a record.
    changing_fields: BTreeSet<&'static str>,
}

/// A sound file and what it holds.
struct Base {
    image: Image,
    database: Option<&'static str>,
    records: Records,
}

fn bases() -> Vec<Base> {
    let mut bases = Vec::new();
    for (index, dialect) in Dialect::ALL.into_iter().enumerate() {
        let seed = index as u64;
        let sizes = |random: &mut Random| match random.below(12) {
            0 => random.below(900) as usize,
            1 => 0,
            _ => random.below(20) as usize,
        };
        let plain = records(seed, 150, sizes);
        let scatter = (index % 2 == 0).then_some(seed);
        let image = Spec { scatter, ..Spec::new(dialect, 256) }.build(&plain);
        bases.push(Base { image, database: None, records: plain.clone() });
        let checksum_bytes = if dialect.version == Version::V1_0 { 8 } else { 0 };
        let wide = records(seed, 60, |random| random.below(600) as usize);
        let spec = Spec { checksum_bytes, scatter, transaction: 7, ..Spec::new(dialect, 512) };
        let main = plain[..30].to_vec();
        let image = spec.build_with(&main, &[("train", wide.clone()), ("validation", plain)]);
        bases.push(Base { image, database: Some("train"), records: wide });
    }
    bases
}

impl Base {
    /// Reads a mutated file and judges the outcome. `mutations` is the number of places that were
    /// changed.
    fn judge(&self, bytes: &[u8], mutations: usize, tally: &mut Tally, story: &dyn Fn() -> String) {
        tally.files += 1;
        // Mostly without threads, for speed.
        let threads = if tally.files.is_multiple_of(64) { 3 } else { 1 };
        let walked = read(bytes, self.database, threads);
        // A cursor sees less of the file at once: it may go through what the walk refuses, and
        // never the other way round.
        let passed = read_by_cursor(bytes, self.database);
        match walked {
            Err(error) => {
                tally.errors += 1;
                let message = error.to_string();
                let placed = match &error {
                    Error::Corrupt { .. } => message.contains(" at offset "),
                    Error::Unsupported { .. } | Error::Modified { .. } => true,
                    // A damaged name.
                    Error::Usage { .. } => self.database.is_some(),
                    _ => false,
                };
                assert!(placed && message.starts_with("memory.mdb: "), "{}: {message}", story());
            }
            Ok(records) if passed.as_ref().ok() != Some(&records) => {
                panic!("{}: a cursor gives {passed:?}", story())
            }
            Ok(records) if records == self.records => tally.equal += 1,
            Ok(records) if records.is_empty() && self.database.is_none() => tally.other_snapshot += 1,
            Ok(records) => {
                tally.changed += 1;
                assert_eq!(records.len(), self.records.len(), "{}", story());
                let changed = records.iter().zip(&self.records).filter(|(new, old)| new != old).count();
                assert!(changed <= mutations, "{}: {changed} records changed", story());
            }
        }
    }

    /// Gives every field hostile values; each `stride`th of the cases, so that a short run sees all
    /// kinds.
    fn fields(&self, random: &mut Random, stride: u64, tally: &mut Tally) {
        let dialect = self.image.spec.dialect;
        let places: Vec<FieldPlace> = self
            .image
            .metas
            .iter()
            .flatten()
            .chain(self.image.units.iter().flat_map(|unit| &unit.places))
            .copied()
            .collect();
        // Values that mean something elsewhere: page numbers of the root, the metas, neighbours,
        // beyond the file.
        let last = self.image.bytes.len() as u64 / u64::from(self.image.spec.page_bytes);
        for place in places.iter().filter(|place| !matches!(place.name, "key" | "branch key")) {
            let old = self.image.get(*place);
            let largest = if place.bytes == 8 { u64::MAX } else { (1 << (8 * place.bytes)) - 1 };
            let sibling = self.image.units[random.below(self.image.units.len() as u64) as usize].page;
            let hostile = [
                0,
                1,
                2,
                old.wrapping_add(1),
                old.wrapping_sub(1),
                old.wrapping_add(2),
                old.wrapping_sub(2),
                old ^ (1 << random.below(8 * place.bytes as u64)),
                old.wrapping_mul(2),
                largest,
                largest - 1,
                largest / 2,
                largest / 2 + 1,
                self.image.root,
                last,
                last - 1,
                sibling,
                random.next(),
            ];
            for value in hostile {
                let value = value & largest;
                if value == old || random.below(stride) != 0 {
                    continue;
                }
                let mut bytes = self.image.bytes.clone();
                put(dialect, &mut bytes, place.offset, place.bytes, value);
                let story = || {
                    format!(
                        "{:?} {:?}: {} at {} from {old} to {value}",
                        self.image.spec, self.database, place.name, place.offset
                    )
                };
                let changed = tally.changed;
                self.judge(&bytes, 1, tally, &story);
                if tally.changed > changed {
                    tally.changing_fields.insert(place.name);
                }
            }
        }
    }

    fn truncations(&self, random: &mut Random, count: u64, tally: &mut Tally) {
        for _ in 0..count {
            let page = u64::from(self.image.spec.page_bytes);
            let length = match random.below(3) {
                0 => random.below(self.image.bytes.len() as u64 / page) * page,
                1 => random.below(3 * page),
                _ => random.below(self.image.bytes.len() as u64),
            };
            let story = || format!("{:?} {:?}: cut to {length}", self.image.spec, self.database);
            self.judge(&self.image.bytes[..length as usize], 0, tally, &story);
        }
    }

    fn flips(&self, random: &mut Random, count: u64, tally: &mut Tally) {
        for _ in 0..count {
            let mut bytes = self.image.bytes.clone();
            let flips = 1 + random.below(4) as usize;
            let state = random.clone();
            for _ in 0..flips {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            let story =
                || format!("{:?} {:?}: {flips} flips from {:?}", self.image.spec, self.database, state.0);
            self.judge(&bytes, flips, tally, &story);
        }
    }

    /// Copies a stretch of the file, such as a whole page, over another one.
    fn copies(&self, random: &mut Random, count: u64, tally: &mut Tally) {
        let page = self.image.spec.page_bytes as usize;
        let pages = self.image.bytes.len() / page;
        for _ in 0..count {
            let mut bytes = self.image.bytes.clone();
            let (from, to) =
                (random.below(pages as u64) as usize * page, random.below(pages as u64) as usize * page);
            let keep_number = if random.below(2) == 0 { 0 } else { 8 };
            bytes.copy_within(from + keep_number..from + page, to + keep_number);
            let story = || format!("{:?} {:?}: page at {from} over {to}", self.image.spec, self.database);
            // A page in the middle of a value may be any value's bytes.
            self.judge(&bytes, 1, tally, &story);
        }
    }
}

#[test]
fn damaged_files_give_a_clear_error_or_the_records_as_they_were() {
    let long = env::var_os("FOREBAY_LONG_TESTS").is_some_and(|value| value == "1");
    let bases = bases();
    let mut tally = Tally::default();
    for round in 0.. {
        for (index, base) in bases.iter().enumerate() {
            let mut random = Random(round * 1000 + index as u64);
            base.fields(&mut random, 4, &mut tally);
            base.truncations(&mut random, 100, &mut tally);
            base.flips(&mut random, 400, &mut tally);
            base.copies(&mut random, 60, &mut tally);
        }
        if tally.files >= if long { 1_000_000 } else { 20_000 } {
            break;
        }
    }
    println!("{tally:?}");
    // An overflow page can be that of another database in the same file, whose tree is not read.
    let harmless = BTreeSet::from(["key length", "value length", "overflow page"]);
    assert!(tally.changing_fields.is_subset(&harmless), "{tally:?}");
    assert!(tally.errors > tally.files / 4 && tally.equal > 0 && tally.changed > 0, "{tally:?}");
}

#[test]
fn random_bytes_behind_sound_meta_pages_are_refused() {
    for dialect in Dialect::ALL {
        let base = Spec::new(dialect, 256).build(&records(1, 200, |_| 20));
        for seed in 0..100 {
            let mut bytes = base.bytes.clone();
            let noise = Random(seed).bytes(bytes.len() - 512);
            bytes[512..].copy_from_slice(&noise);
            let error = read(&bytes, None, 1).expect_err("noise");
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        }
    }
}
