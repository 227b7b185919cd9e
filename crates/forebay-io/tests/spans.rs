//! Reads that copies answer in part: the same bytes, whatever the copies have and however they
//! fail.

#![allow(clippy::disallowed_methods, reason = "a test may panic where there are no threads")]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::support::{self, Aligned, Shards, requesting};
use forebay_io::{
    Access, At, Descriptor, Failing, FileIo, LevelId, LevelSet, ReadError, Reader, ShardFiles, Span, Transfer,
};
use forebay_types::ShardId;
use proptest::prelude::*;

/// Bytes that are copied together.
const PIECE: u64 = 8192;

/// A length that is no multiple of anything.
const BYTES: usize = (1 << 20) + 4321;

/// What is wrong with a level of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    /// Each read is an error: the descriptor is open for writing only.
    Unreadable,
    /// The file has lost its second half.
    Cut,
}

/// A level that has some pieces of shard 0, each in its place behind `shift` other bytes.
struct Copies {
    file: Arc<OwnedFd>,
    has: Vec<bool>,
    shift: u64,
    failures: AtomicU64,
}

/// The source and its copies, the nearest level first.
struct Tiered {
    files: Arc<ShardFiles>,
    levels: Vec<Copies>,
    /// Bytes of requests that were timed by the reader.
    answered_bytes: AtomicU64,
}

impl Tiered {
    fn new(shards: &Shards, direct: bool, levels: &[(Health, Vec<bool>)]) -> Arc<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let make = |(number, (health, has)): (usize, &(Health, Vec<bool>))| {
            let shift = PIECE * (number as u64 + 1);
            let path = directory.path().join(format!("level-{number}"));
            let file = File::create(&path).expect("created");
            file.write_all_at(&shards.contents[0], shift).expect("copied");
            let file: OwnedFd = match health {
                Health::Good => File::open(&path).expect("open").into(),
                Health::Unreadable => file.into(),
                Health::Cut => {
                    file.set_len(shift + BYTES as u64 / 2).expect("cut");
                    File::open(&path).expect("open").into()
                }
            };
            Copies { file: Arc::new(file), has: has.clone(), shift, failures: AtomicU64::new(0) }
        };
        let levels = levels.iter().enumerate().map(make).collect();
        Arc::new(Self { files: shards.open(direct), levels, answered_bytes: AtomicU64::new(0) })
    }

    fn failures(&self) -> Vec<u64> {
        self.levels.iter().map(|level| level.failures.load(Ordering::Relaxed)).collect()
    }
}

impl FileIo for Tiered {
    fn files(&self) -> &ShardFiles {
        &self.files
    }

    fn span(&self, at: At, length: usize, left_out: LevelSet) -> io::Result<Span<'_>> {
        let piece = at.offset / PIECE;
        let found = (0..self.levels.len()).find(|number| {
            !left_out.contains(LevelId::copy(*number)) && self.levels[*number].has[piece as usize]
        });
        let Some(number) = found else {
            // As far as no copy could help: a request for more would be right as well.
            return self.files.source_span(at, length);
        };
        let level = &self.levels[number];
        let count = level.has[piece as usize..].iter().take_while(|has| **has).count();
        let end = (piece + count as u64) * PIECE;
        Ok(Span {
            source: at,
            level: LevelId::copy(number),
            descriptor: Descriptor::Shared(Arc::clone(&level.file)),
            offset: at.offset + level.shift,
            length: length.min((end - at.offset) as usize),
        })
    }

    fn answered(&self, level: LevelId, bytes: usize, _took: Duration) {
        assert!(level.copy_number().is_none_or(|number| number < self.levels.len()));
        self.answered_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn copy_failed(&self, level: LevelId, _at: At, error: &io::Error) {
        assert!(error.raw_os_error().is_some() || error.kind() == io::ErrorKind::UnexpectedEof, "{error}");
        let number = level.copy_number().expect("the source is no copy");
        self.levels[number].failures.fetch_add(1, Ordering::Relaxed);
    }
}

fn shards() -> &'static Shards {
    static SHARDS: OnceLock<Shards> = OnceLock::new();
    SHARDS.get_or_init(|| Shards::new(&[BYTES]))
}

fn pieces() -> usize {
    BYTES.div_ceil(PIECE as usize)
}

fn level() -> impl Strategy<Value = (Health, Vec<bool>)> {
    let health = prop_oneof![2 => Just(Health::Good), 1 => Just(Health::Unreadable), 1 => Just(Health::Cut)];
    (health, prop::collection::vec(any::<bool>(), pieces()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn copies_change_no_byte(
        levels in prop::collection::vec(level(), 0..3),
        ranges in prop::collection::vec((0..BYTES, 0_usize..200_000), 1..12),
    ) {
        let shards = shards();
        for access in requesting() {
            let io = Tiered::new(shards, false, &levels);
            let mut reader = Reader::with_io(Arc::clone(&io) as _, access, false, 4);
            let ranges: Vec<_> =
                ranges.iter().map(|(start, length)| *start..(start + length).min(BYTES)).collect();
            let mut memory: Vec<Vec<u8>> = ranges.iter().map(|range| vec![0; range.len()]).collect();
            let mut transfers: Vec<Transfer<'_>> = ranges
                .iter()
                .zip(&mut memory)
                .map(|(range, into)| Transfer { shard: ShardId(0), offset: range.start as u64, into })
                .collect();
            reader.fill(&mut transfers).expect("read");
            for (range, bytes) in ranges.iter().zip(&memory) {
                prop_assert!(*bytes == shards.contents[0][range.clone()], "{access:?} {range:?}");
            }
            let counters = reader.counters();
            let copied: u64 = counters.copies.iter().map(|level| level.read_bytes).sum();
            let total: usize = ranges.iter().map(ExactSizeIterator::len).sum();
            prop_assert_eq!(counters.read_bytes + copied, total as u64);
            let timed = if access == Access::IoUring { total as u64 } else { 0 };
            prop_assert_eq!(io.answered_bytes.load(Ordering::Relaxed), timed);
            prop_assert_eq!(counters.retries, 0);
            let failures: Vec<u64> =
                counters.copies.iter().take(levels.len()).map(|level| level.failures).collect();
            prop_assert_eq!(&failures, &io.failures());
            for (number, (health, _)) in levels.iter().enumerate() {
                prop_assert!(*health != Health::Good || failures[number] == 0);
            }
            for range in &ranges {
                let mut bytes = vec![0; range.len()];
                let (head, into) = bytes.split_at_mut(range.len() / 3);
                let place = (ShardId(0), range.start as u64);
                Failing::default().read(&io, false, place, head, into).expect("read");
                prop_assert!(bytes == shards.contents[0][range.clone()]);
            }
        }
    }

    #[test]
    fn copies_change_no_byte_around_the_page_cache(
        levels in prop::collection::vec(level(), 0..3),
        blocks in prop::collection::vec((0..BYTES / 4096 + 1, 1_usize..40), 1..6),
    ) {
        let shards = shards();
        for access in requesting() {
            let io = Tiered::new(shards, true, &levels);
            let mut reader = Reader::with_io(Arc::clone(&io) as _, access, true, 4);
            for (first, count) in &blocks {
                let (start, end) = (first * 4096, ((first + count) * 4096).min(BYTES.next_multiple_of(4096)));
                let mut memory = Aligned::new(end - start);
                let into = memory.bytes();
                reader.fill(&mut [Transfer { shard: ShardId(0), offset: start as u64, into }]).expect("read");
                let expected = &shards.contents[0][start..end.min(BYTES)];
                prop_assert!(&memory.bytes()[..expected.len()] == expected, "{access:?} {start} {end}");
            }
        }
    }
}

#[test]
fn whole_copies_leave_nothing_for_the_source() {
    for access in requesting() {
        let shards = Shards::new(&[BYTES]);
        let io = Tiered::new(&shards, false, &[(Health::Good, vec![true; pieces()])]);
        std::fs::remove_file(&shards.paths[0]).expect("removed");
        let mut reader = Reader::with_io(io as _, access, false, 4);
        let mut memory = vec![0; BYTES];
        reader.fill(&mut [support::transfer(0, &mut memory)]).expect("read");
        assert!(memory == shards.contents[0]);
        let counters = reader.counters();
        assert_eq!((counters.reads, counters.copies[0].read_bytes), (0, BYTES as u64), "{access:?}");
    }
}

#[test]
fn an_error_of_the_source_behind_a_failed_copy_is_the_error_of_the_source() {
    let shards = Shards::new(&[BYTES]);
    let io = Tiered::new(&shards, false, &[(Health::Unreadable, vec![true; pieces()])]);
    let mut reader = Reader::with_io(io as _, Access::Pread, false, 4);
    File::options().write(true).open(&shards.paths[0]).expect("open").set_len(5000).expect("cut");
    let mut memory = vec![0; 10_000];
    let error = reader.fill(&mut [support::transfer(0, &mut memory)]).expect_err("nobody has them");
    assert!(matches!(error, ReadError::Truncated { offset: 5000, .. }), "{error}");
    assert_eq!(error.path(), Some(shards.paths[0].as_path()));
    assert_eq!(io_failures(&reader), 1);
}

fn io_failures(reader: &Reader) -> u64 {
    reader.counters().copies[0].failures
}
