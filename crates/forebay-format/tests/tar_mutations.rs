//! Damaged tar files: an error that says where, or members that lie within the file.
//!
//! Headers have a checksum, so damage of a single byte in one is an error or changes nothing.
//! Extended headers and data have none: a changed name can make other samples. What must hold
//! always is that nothing panics, that all places lie within the file, one behind the other, and
//! that no allocation is larger than the file asks for.
//!
//! 6,000 files by default, 300,000 with `FOREBAY_LONG_TESTS=1`.

use std::env;
use std::path::Path;
use std::sync::Arc;

use crate::support::allocation::largest_allocation;
use crate::support::lmdb_writer::Random;
use crate::support::tar_writer::{Kind, archive, member, record};
use forebay_format::Error;
use forebay_format::file::Input;
use forebay_format::sidecar::IndexEntry;
use forebay_format::tar::TarFile;

type Samples = Vec<Vec<(u64, u64)>>;

/// Start and length of a field.
fn place(entry: &IndexEntry) -> (u64, u64) {
    let IndexEntry::Plain { start, length, .. } = entry else { panic!("a field in the file") };
    (*start, *length)
}

/// Where each field of each sample lies.
fn read(bytes: &[u8]) -> Result<Samples, Error> {
    let input = Input::from_source(Path::new("memory.tar"), Arc::new(bytes.to_vec()))?;
    let file = TarFile::read(input, &[])?;
    let mut samples = Vec::new();
    file.samples(&|_| true, &mut |places| {
        samples.push(places.iter().map(place).collect());
        Ok(())
    })?;
    Ok(samples)
}

/// A sound file, where its members lie, and which of its blocks are headers.
struct Base {
    kind: Kind,
    bytes: Vec<u8>,
    samples: Samples,
    headers: Vec<usize>,
}

fn bases() -> Vec<Base> {
    let mut bases = Vec::new();
    for (seed, kind) in [Kind::Ustar, Kind::Gnu, Kind::Pax].into_iter().enumerate() {
        let mut random = Random(seed as u64);
        let mut members = Vec::new();
        for sample in 0..6 {
            let long = if sample % 2 == 0 {
                format!("{}/{}/", "d".repeat(80), "e".repeat(40))
            } else {
                String::new()
            };
            for extension in ["jpg", "seg.PNG", "cls"] {
                let length = [0, 3, 511, 512, 700][random.below(5) as usize];
                members.push((format!("{long}{sample:04}.{extension}"), random.bytes(length)));
            }
        }
        let bytes = archive(kind, &members);
        let samples = read(&bytes).expect("a sound file");
        assert_eq!(samples.len(), 6);
        let found: Vec<&[u8]> = samples
            .iter()
            .flat_map(|sample| [sample[1], sample[2], sample[0]])
            .map(|(start, length)| &bytes[start as usize..(start + length) as usize])
            .collect();
        assert_eq!(found, members.iter().map(|(_, data)| data.as_slice()).collect::<Vec<_>>());
        let headers =
            (0..bytes.len()).step_by(512).filter(|at| bytes[at + 257..].starts_with(b"ustar")).collect();
        bases.push(Base { kind, bytes, samples, headers });
    }
    bases
}

#[derive(Debug, Default)]
struct Tally {
    files: u64,
    errors: u64,
    equal: u64,
    changed: u64,
}

impl Base {
    /// Reads a damaged file; `known` says that the damage can be seen by a checksum.
    fn judge(&self, bytes: &[u8], known: bool, tally: &mut Tally, story: &dyn Fn() -> String) {
        tally.files += 1;
        let (found, largest) = largest_allocation(|| read(bytes));
        // The copy in memory, or a window twice as large as it.
        assert!(largest <= 16384 + 2 * bytes.len(), "{}: {largest} bytes at once", story());
        match found {
            Err(error) => {
                tally.errors += 1;
                let message = error.to_string();
                let kind = matches!(error, Error::Corrupt { .. } | Error::Unsupported { .. });
                assert!(kind && message.starts_with("memory.tar: "), "{}: {message}", story());
                assert!(message.contains("at offset "), "{}: {message}", story());
            }
            Ok(samples) if samples == self.samples => tally.equal += 1,
            Ok(samples) => {
                tally.changed += 1;
                assert!(!known, "{}: other samples", story());
                let mut places: Vec<_> = samples.into_iter().flatten().collect();
                places.sort_unstable();
                let mut end = 0;
                for (start, length) in places {
                    assert!(start >= end + 512, "{}: a member at {start}", story());
                    end = start.checked_add(length).expect("no overflow");
                }
                assert!(end <= bytes.len() as u64, "{}: a member up to {end}", story());
            }
        }
    }

    fn flips(&self, random: &mut Random, tally: &mut Tally) {
        for _ in 0..300 {
            let mut bytes = self.bytes.clone();
            let header = self.headers[random.below(self.headers.len() as u64) as usize];
            let at = header + random.below(512) as usize;
            let value = random.next() as u8;
            // A checksum is a sum of digits: blanks, zeros and what stands behind it may change.
            let known = !(148..156).contains(&(at - header));
            bytes[at] = value;
            self.judge(&bytes, known, tally, &|| format!("{:?}: byte {at} is {value}", self.kind));
            let mut bytes = self.bytes.clone();
            let state = random.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
            self.judge(&bytes, false, tally, &|| format!("{:?}: flips from {:?}", self.kind, state.0));
        }
    }

    /// Gives sizes hostile values, with a checksum that fits.
    fn sizes(&self, random: &mut Random, tally: &mut Tally) {
        for header in &self.headers {
            let base256 = |value: u64| [&[0x80, 0, 0, 0][..], &value.to_be_bytes()].concat();
            let values = [
                base256(u64::MAX),
                base256(u64::MAX - 511),
                base256(u64::MAX - *header as u64),
                base256(self.bytes.len() as u64 - *header as u64 - 512 + random.below(2)),
                b"77777777777\0".to_vec(),
                format!("{:011o}\0", random.below(1 << 12)).into_bytes(),
                vec![0xff; 12],
            ];
            for value in values {
                let mut bytes = self.bytes.clone();
                let block = &mut bytes[*header..header + 512];
                block[124..136].copy_from_slice(&value);
                seal(block);
                self.judge(&bytes, false, tally, &|| {
                    format!("{:?}: size {} at {header}", self.kind, value.escape_ascii())
                });
            }
            for kind in b"LKxgSX15DA\0" {
                let mut bytes = self.bytes.clone();
                bytes[header + 156] = *kind;
                seal(&mut bytes[*header..header + 512]);
                self.judge(&bytes, false, tally, &|| format!("{:?}: type {kind} at {header}", self.kind));
            }
        }
    }

    /// Blocks are cut off, copied over others and left out.
    fn blocks(&self, random: &mut Random, tally: &mut Tally) {
        let count = self.bytes.len() as u64 / 512;
        for _ in 0..150 {
            let length = random.below(self.bytes.len() as u64) as usize;
            self.judge(&self.bytes[..length], false, tally, &|| format!("{:?}: cut to {length}", self.kind));
            let (from, to) = (random.below(count) as usize * 512, random.below(count) as usize * 512);
            let mut bytes = self.bytes.clone();
            bytes.copy_within(from..from + 512, to);
            self.judge(&bytes, false, tally, &|| format!("{:?}: block {from} over {to}", self.kind));
            let mut bytes = self.bytes.clone();
            bytes.drain(from..from + 512);
            self.judge(&bytes, false, tally, &|| format!("{:?}: without block {from}", self.kind));
        }
    }
}

fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[test]
fn damaged_files_give_a_clear_error_or_places_within_the_file() {
    let long = env::var_os("FOREBAY_LONG_TESTS").is_some_and(|value| value == "1");
    let bases = bases();
    let mut tally = Tally::default();
    for round in 0.. {
        for (number, base) in bases.iter().enumerate() {
            let mut random = Random(round * 1000 + number as u64);
            base.flips(&mut random, &mut tally);
            base.sizes(&mut random, &mut tally);
            base.blocks(&mut random, &mut tally);
        }
        if tally.files >= if long { 300_000 } else { 6_000 } {
            break;
        }
    }
    println!("{tally:?}");
    assert!(tally.errors > tally.files / 4 && tally.equal > 0 && tally.changed > 0, "{tally:?}");
}

#[test]
fn records_of_extended_headers_are_checked() {
    let sound = [record("path", "a.txt"), record("size", "3")].concat();
    for cut in 0..=sound.len() {
        let mut bytes = Vec::new();
        member(&mut bytes, b'x', b"x", &sound[..cut], true);
        member(&mut bytes, b'0', b"b.txt", b"abc", true);
        // A header that is cut between two records is a header of one record.
        let whole = [0, record("path", "a.txt").len(), sound.len()].contains(&cut);
        match read(&bytes) {
            Ok(samples) => {
                let start = 1024 + cut.next_multiple_of(512) as u64;
                assert!(whole && samples == [[(start, 3)]], "{cut}: {samples:?}");
            }
            Err(error) => {
                assert!(!whole && error.to_string().contains("tar extended header"), "{cut}: {error}");
            }
        }
    }
    for (key, value, expected) in [
        ("size", "18446744073709551615", "tar member"),
        ("size", "18446744073709551616", "a size in decimal digits"),
        ("GNU.sparse.map", "0,3", "a sparse member"),
    ] {
        let mut bytes = Vec::new();
        member(&mut bytes, b'x', b"x", &record(key, value), true);
        member(&mut bytes, b'0', b"b.txt", b"abc", true);
        let error = read(&bytes).expect_err("refused").to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut bytes = Vec::new();
    member(&mut bytes, b'g', b"g", &record("size", "3"), true);
    member(&mut bytes, b'0', b"b.txt", b"abc", true);
    assert!(read(&bytes).expect_err("refused").to_string().contains("a global size"));
}
