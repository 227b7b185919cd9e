//! Damaged `TFRecord` and `RecordIO` files: an error that says where, or records that lie within
//! the file.
//!
//! Sound files are damaged by hostile values in every header, by truncation, and by random flips of
//! bits; all of it follows from seeds. `TFRecord` has checksums of everything: what comes back,
//! with the check of the data, are the records as they were, the first of them where the file was
//! cut between two, or an error. `RecordIO` has none: records may change, but never lie outside the
//! file or over each other.
//!
//! 6,000 files of each and more by default, 200,000 with `FOREBAY_LONG_TESTS=1`.

use std::env;
use std::path::Path;
use std::sync::Arc;

use crate::support::dataset::Scratch;
use crate::support::lmdb_writer::Random;
use crate::support::record_writer::{recordios, tfrecords};
use forebay_format::file::Input;
use forebay_format::sidecar::{IndexEntry, PartPiece};
use forebay_format::{Dataset, Error, OpenOptions, SchemaChoice, recordio, tfrecord};

type Records = Vec<Vec<u8>>;

fn files() -> u64 {
    let long = env::var_os("FOREBAY_LONG_TESTS").is_some_and(|value| value == "1");
    if long { 200_000 } else { 6000 }
}

fn input(bytes: &[u8]) -> Input {
    Input::from_source(Path::new("memory"), Arc::new(bytes.to_vec())).expect("a file in memory")
}

/// Damages a file: a header, its length, or any bits.
fn damage(random: &mut Random, sound: &[u8], headers: &[usize]) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    match random.below(4) {
        0 => bytes.truncate(random.below(sound.len() as u64) as usize),
        1 => {
            let cut = headers[random.below(headers.len() as u64) as usize] + random.below(3) as usize;
            bytes.truncate(cut);
        }
        2 => {
            let at = headers[random.below(headers.len() as u64) as usize];
            let old = u64::from_le_bytes(*bytes[at..].first_chunk().expect("a header"));
            let hostile = [
                0,
                u64::MAX,
                u64::MAX - 15,
                old.wrapping_add(1),
                old.wrapping_sub(1),
                old ^ 1 << random.below(64),
                sound.len() as u64,
                random.next(),
                u64::from(recordio::MAGIC) | random.next() << 32,
                u64::from(recordio::MAGIC) | (random.below(8) << 29 | random.below(64)) << 32,
            ];
            let value = hostile[random.below(hostile.len() as u64) as usize].to_le_bytes();
            bytes[at..at + 8].copy_from_slice(&value);
            // A length with a sound checksum gets past the first line of defence.
            if random.below(2) == 0 && at + 12 <= bytes.len() {
                let checksum = tfrecord::masked_crc32c(&value).to_le_bytes();
                bytes[at + 8..at + 12].copy_from_slice(&checksum);
            }
        }
        _ => {
            for _ in 0..=random.below(3) {
                let at = random.below(sound.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
        }
    }
    bytes
}

fn records(seed: u64) -> Records {
    let mut random = Random(seed);
    (0..20)
        .map(|_| {
            let length = random.below(60) as usize;
            random.bytes(length)
        })
        .collect()
}

/// Whether an error names the file, and the place of damage.
fn is_placed(error: &Error) -> bool {
    let message = error.to_string();
    let offset = !matches!(error, Error::Corrupt { .. }) || message.contains(" at offset ");
    message.starts_with("memory: ")
        && offset
        && matches!(error, Error::Corrupt { .. } | Error::Unsupported { .. })
}

#[test]
fn damaged_tfrecord_files_give_an_error_or_records_as_they_were() {
    let (mut errors, mut equal, mut shorter) = (0, 0, 0);
    for seed in 0..files() {
        let records = records(seed / 100);
        let (sound, headers) = tfrecords(&records);
        let bytes = damage(&mut Random(seed), &sound, &headers);
        let mut found: Records = Vec::new();
        let walked = tfrecord::walk(&input(&bytes), &|_| true, &mut |entry| {
            let IndexEntry::Plain { start, length, .. } = entry else { panic!("seed {seed}: {entry:?}") };
            let unit = &bytes[start as usize..(start + 12 + length + 4) as usize];
            tfrecord::check_record(unit, start, Path::new("memory"))?;
            found.push(unit[12..unit.len() - 4].to_vec());
            Ok(())
        });
        if let Err(error) = walked {
            assert!(is_placed(&error), "seed {seed}: {error}");
            errors += 1;
        } else {
            assert!(records.starts_with(&found), "seed {seed}: other records");
            *(if found.len() == records.len() { &mut equal } else { &mut shorter }) += 1;
        }
    }
    println!("{errors} errors, {equal} equal, {shorter} shorter");
    assert!(errors > files() / 2 && equal > 0 && shorter > 0);
}

#[test]
fn damaged_recordio_files_give_an_error_or_records_within_the_file() {
    let (mut errors, mut read) = (0, 0);
    for seed in 0..files() {
        let (sound, headers) = recordios(&records(seed / 100));
        let bytes = damage(&mut Random(seed), &sound, &headers);
        let mut end = 0;
        let walked = recordio::walk(&input(&bytes), &|_| true, &mut |start, entry| {
            assert!(start >= end, "seed {seed}: records overlap");
            let extents = match entry {
                IndexEntry::Plain { start, length, .. } => vec![(start + 8, length)],
                IndexEntry::Exception(parts) => parts[0]
                    .pieces
                    .iter()
                    .map(|piece| match piece {
                        PartPiece::Extent { offset, length } => (*offset, *length),
                        PartPiece::Literal(_) => panic!("seed {seed}: no literals"),
                    })
                    .collect(),
            };
            for (offset, length) in extents {
                assert!(offset >= end, "seed {seed}: extents overlap");
                end = offset + length;
                assert!(end <= bytes.len() as u64, "seed {seed}: behind the end of the file");
            }
            Ok(())
        });
        match walked {
            Err(error) => {
                assert!(is_placed(&error), "seed {seed}: {error}");
                errors += 1;
            }
            Ok(()) => read += 1,
        }
    }
    println!("{errors} errors, {read} read");
    assert!(errors > files() / 3 && read > 0);
}

#[test]
fn datasets_of_damaged_files_are_refused_or_read() {
    let scratch = Scratch::new();
    let (mut errors, mut samples) = (0, 0);
    for seed in 0..400 {
        let records = records(seed);
        let (name, (sound, headers)) =
            if seed % 2 == 0 { ("tfrecord", tfrecords(&records)) } else { ("recordio", recordios(&records)) };
        let path = scratch.write("data", &damage(&mut Random(seed), &sound, &headers));
        let options = OpenOptions {
            format: Some(name.parse().expect("a format")),
            schema: if seed % 3 == 0 { SchemaChoice::Raw } else { SchemaChoice::Auto },
            ..OpenOptions::default()
        };
        let verified = Dataset::open(&[path], &options).and_then(|dataset| {
            let built = dataset.build_index(1, &|_| true)?;
            let index = dataset.index(Arc::new(built.bytes))?;
            dataset.verify(&index, 1, &|_| true, 3)
        });
        match verified {
            Ok(verification) => samples += verification.samples,
            Err(error) => {
                assert!(error.to_string().contains("data"), "seed {seed}: {error}");
                errors += 1;
            }
        }
    }
    assert!(errors > 100 && samples > 500, "{errors} errors, {samples} samples");
}
