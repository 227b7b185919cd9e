//! Damaged shards of MDS, `LitData` and `ArrayRecord`: an error that names the file and says where,
//! or places that lie within the file.
//!
//! The bases are the golden files, which the libraries of the formats wrote. Headers of
//! `ArrayRecord` get a hash that fits, so that damage gets past it. What must hold always is that
//! nothing panics, and that no allocation is much larger than the file.
//!
//! 6,000 files by default, 300,000 with `FOREBAY_LONG_TESTS=1`.

use std::env;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::support::allocation::largest_allocation;
use crate::support::lmdb_writer::Random;
use forebay_format::file::Input;
use forebay_format::sidecar::{IndexEntry, PartPiece};
use forebay_format::{Error, OpenOptions, array_record, litdata, mds};

/// The serializers of the samples in `golden/litdata/trees`.
const LEAVES: [&str; 9] =
    ["bytes", "bool", "numpy", "int", "no_header_numpy:5", "tensor", "str", "no_header_tensor:2", "float"];

/// Largest allocation apart from those that grow with the file: the first read, and the numbers of
/// one block of the scan \[bytes\].
const ALLOWED_BYTES: usize = 16384;

type Places = Vec<(u64, u64)>;
type Reader = fn(&[u8]) -> Result<Places, Error>;

fn input(bytes: &[u8]) -> Result<Input, Error> {
    Input::from_source(Path::new("memory"), Arc::new(bytes.to_vec()))
}

fn offset_table(shard: &forebay_format::offset_table::OffsetTable) -> Result<Places, Error> {
    let mut found = Vec::new();
    shard.walk(&|_| true, &mut |places| {
        found.extend_from_slice(places);
        Ok(())
    })?;
    shard.check_lengths(&|_| true)?;
    Ok(found)
}

fn mds(bytes: &[u8]) -> Result<Places, Error> {
    offset_table(&mds::read(input(bytes)?, &OpenOptions::default())?)
}

fn litdata(bytes: &[u8]) -> Result<Places, Error> {
    offset_table(&litdata::read_chunk(input(bytes)?, &LEAVES, &OpenOptions::default())?)
}

fn array_record(bytes: &[u8]) -> Result<Places, Error> {
    let mut found = Vec::new();
    array_record::walk(&input(bytes)?, &|_| true, &mut |entry, _| {
        match entry {
            IndexEntry::Plain { start, length, .. } => found.push((start, length)),
            IndexEntry::Exception(parts) => {
                for piece in &parts[0].pieces {
                    let PartPiece::Extent { offset, length } = piece else { panic!("an extent") };
                    found.push((*offset, *length));
                }
            }
        }
        Ok(())
    })?;
    Ok(found)
}

/// A sound file, how it is read, and how many of its first bytes are damaged.
struct Base {
    name: &'static str,
    read: Reader,
    bytes: Vec<u8>,
    used: u64,
}

fn bases() -> Vec<Base> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats/golden");
    let files: [(&str, Reader); 5] = [
        ("mds/columns/shard.00001.mds", mds),
        ("mds/tokens/shard.00000.mds", mds),
        ("litdata/trees/chunk-0-1.bin", litdata),
        ("arrayrecord/grouped.array_record", array_record),
        ("arrayrecord/zstd.array_record", array_record),
    ];
    files
        .map(|(name, read)| {
            let bytes = fs::read(golden.join(name)).expect("a golden file");
            assert!(!read(&bytes).expect("a sound file").is_empty());
            Base { name, read, used: (bytes.len() as u64).min(3000), bytes }
        })
        .into()
}

#[derive(Debug, Default)]
struct Tally {
    files: u64,
    errors: u64,
    sound: u64,
}

impl Base {
    fn judge(&self, bytes: &[u8], tally: &mut Tally, story: &dyn Fn() -> String) {
        tally.files += 1;
        let (found, largest) = largest_allocation(|| (self.read)(bytes));
        assert!(largest <= ALLOWED_BYTES + 4 * bytes.len(), "{}: {}: {largest} bytes", self.name, story());
        match found {
            Ok(places) => {
                tally.sound += 1;
                for (start, length) in places {
                    let end = start.checked_add(length).expect("no overflow");
                    assert!(end <= bytes.len() as u64, "{}: {}: up to {end}", self.name, story());
                }
            }
            Err(error) => {
                tally.errors += 1;
                let message = error.to_string();
                assert!(message.starts_with("memory: "), "{}: {}: {message}", self.name, story());
            }
        }
    }

    /// Changes numbers, in a header of a chunk with a hash that fits.
    fn numbers(&self, random: &mut Random, tally: &mut Tally) {
        const HOSTILE: [u64; 8] = [0, 1, 7, 255, 1 << 16, u32::MAX as u64, u64::MAX >> 1, u64::MAX];
        for _ in 0..100 {
            let mut bytes = self.bytes.clone();
            let at = random.below(self.used - 8) as usize;
            let value = HOSTILE[random.below(HOSTILE.len() as u64) as usize];
            let width = [1, 4, 8][random.below(3) as usize];
            bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            self.judge(&bytes, tally, &|| format!("{value} in {width} bytes at {at}"));
            if self.name.starts_with("arrayrecord") {
                // The first chunk follows the signature.
                let mut bytes = self.bytes.clone();
                let at = 72 + random.below(25) as usize;
                bytes[at..at + width.min(104 - at)]
                    .copy_from_slice(&value.to_le_bytes()[..width.min(104 - at)]);
                let hash = array_record::header_hash(&bytes[72..104]);
                bytes[64..72].copy_from_slice(&hash.to_le_bytes());
                self.judge(&bytes, tally, &|| format!("{value} in {width} bytes at {at} with a hash"));
            }
        }
    }

    fn flips_and_cuts(&self, random: &mut Random, tally: &mut Tally) {
        for _ in 0..100 {
            let mut bytes = self.bytes.clone();
            let state = random.clone();
            for _ in 0..=random.below(3) {
                bytes[random.below(self.used) as usize] ^= 1 << random.below(8);
            }
            self.judge(&bytes, tally, &|| format!("flips from {:?}", state.0));
            let length = random.below(self.bytes.len() as u64) as usize;
            self.judge(&self.bytes[..length], tally, &|| format!("cut to {length}"));
        }
    }
}

#[test]
fn damaged_shards_give_a_clear_error_or_places_within_the_file() {
    let long = env::var_os("FOREBAY_LONG_TESTS").is_some_and(|value| value == "1");
    let (bases, mut tally) = (bases(), Tally::default());
    for round in 0.. {
        for (number, base) in bases.iter().enumerate() {
            let mut random = Random(round * 1000 + number as u64);
            base.numbers(&mut random, &mut tally);
            base.flips_and_cuts(&mut random, &mut tally);
        }
        if tally.files >= if long { 300_000 } else { 6_000 } {
            break;
        }
    }
    println!("{tally:?}");
    assert!(tally.errors > tally.files / 4 && tally.sound > 0, "{tally:?}");
}
