//! Measuring the limit of a storage.

use crate::support::Shards;
use forebay_io::{Limit, LimitKind, measure};

const BYTES: usize = (3 << 20) + 777;

#[test]
fn every_kind_measures_whole_blocks() {
    let shards = Shards::new(&[BYTES]);
    for kind in LimitKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        for (block_bytes, threads) in [(4096, 1), (64 << 10, 2), (1 << 20, 64)] {
            let limit =
                Limit { kind, block_bytes, seconds: 0.02, threads, pool_bytes: 1 << 20, ..Limit::default() };
            let found = match measure(&shards.paths[0], &limit) {
                Ok(found) => found,
                Err(error) if kind == LimitKind::Direct => {
                    eprintln!("skipped for direct: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            assert_eq!(found.bytes, found.reads * block_bytes);
            assert!(found.seconds > 0.0 && found.rate_mib_s() > 0.0 && found.reads > 0);
            assert!(found.latency_p50_ns <= found.latency_p99_ns);
        }
    }
}

#[test]
fn a_cold_measurement_reads_no_block_twice() {
    let shards = Shards::new(&[BYTES]);
    for kind in [LimitKind::Sequential, LimitKind::Random, LimitKind::Mmap] {
        for threads in [1, 3] {
            let limit =
                Limit { kind, block_bytes: 4096, seconds: 60.0, threads, cold: true, ..Limit::default() };
            let found = measure(&shards.paths[0], &limit).expect("measured");
            assert_eq!(found.reads, (BYTES / 4096) as u64, "{kind:?}, {threads} threads");
        }
    }
}

#[test]
fn a_block_larger_than_the_file_is_the_file() {
    let shards = Shards::new(&[5000]);
    for kind in LimitKind::ALL {
        let limit = Limit { kind, seconds: 0.0, ..Limit::default() };
        match measure(&shards.paths[0], &limit) {
            Ok(found) => assert_eq!((found.reads, found.bytes), (1, 5000)),
            Err(error) => assert_eq!(kind, LimitKind::Direct, "{error}"),
        }
    }
}

#[test]
fn of_a_directory_the_largest_file_is_measured() {
    let shards = Shards::new(&[10, 5000, 20]);
    let limit = Limit { seconds: 0.0, ..Limit::default() };
    assert_eq!(measure(shards.directory.path(), &limit).expect("measured").path, shards.paths[1]);
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    let shards = Shards::new(&[0, 5000]);
    let missing = shards.directory.path().join("missing");
    let empty = tempfile::tempdir().expect("a directory");
    let direct = Limit { kind: LimitKind::Direct, block_bytes: 1000, ..Limit::default() };
    let zero = Limit { block_bytes: 0, ..Limit::default() };
    for (path, limit, text) in [
        (shards.paths[0].as_path(), Limit::default(), "an empty file cannot be measured"),
        (missing.as_path(), Limit::default(), "No such file or directory"),
        (empty.path(), Limit::default(), "a directory without files"),
        (shards.paths[1].as_path(), direct, "expected a multiple of 4096"),
        (shards.paths[1].as_path(), zero, "blocks of 0 bytes"),
    ] {
        let error = measure(path, &limit).expect_err("refused").to_string();
        assert!(error.contains(text), "{error}");
    }
    assert!(
        "backwards".parse::<LimitKind>().expect_err("unknown").contains("sequential, random, direct, mmap")
    );
}
