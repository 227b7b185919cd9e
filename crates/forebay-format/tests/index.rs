//! The index finds every record that is in the files, whatever they look like.

#![allow(clippy::disallowed_methods, reason = "a test may panic where there are no threads")]

use std::sync::Arc;

use crate::support::dataset::{Scratch, build, index, open, open_as};
use crate::support::lmdb_writer::{Random, Records, Spec, records};
use forebay_format::lmdb::Dialect;
use forebay_format::{Dataset, DecodedUnits, Error, Index, OpenOptions, SchemaChoice};
use forebay_types::{Located, Piece, SampleId};

/// Reads every sample through the index and compares it with the record it was made from.
fn assert_holds(dataset: &Dataset, index: &Index, records: &Records) {
    assert_eq!(index.samples(), records.len() as u64);
    for (sample, (_, value)) in records.iter().enumerate() {
        let columns =
            dataset.read_columns(index, SampleId(sample as u64), &DecodedUnits::default()).expect("a sample");
        assert_eq!(columns, [value.as_slice()], "sample {sample}");
    }
}

#[test]
fn every_record_is_found_in_every_dialect_and_page_size() {
    let scratch = Scratch::new();
    for dialect in Dialect::ALL {
        for (page_bytes, scatter, checksum_bytes) in [(512, None, 0), (4096, Some(3), 0), (4096, None, 16)] {
            let spec = Spec { checksum_bytes, scatter, ..Spec::new(dialect, page_bytes) };
            if checksum_bytes > 0 && dialect.version == forebay_format::lmdb::Version::V0_9 {
                continue;
            }
            let records = records(7, 700, |random| match random.below(3) {
                0 => 0,
                1 => random.below(60) as usize,
                _ => random.below(9000) as usize,
            });
            let path = scratch.write("data", &spec.build(&records).bytes);
            let dataset = open(&[&path]);
            assert_holds(&dataset, &index(&dataset), &records);
        }
    }
}

#[test]
fn a_regular_file_costs_less_than_a_tenth_of_a_byte_per_record() {
    let scratch = Scratch::new();
    for length in [201, 3073] {
        let records: Records =
            (0..20_000).map(|number| (format!("{number:08}").into_bytes(), vec![7; length])).collect();
        let built = build(&open(&[&scratch.lmdb("data", &records)]));
        assert!(built.bytes.len() < 2000, "{} bytes for records of {length}", built.bytes.len());
    }
}

#[test]
fn samples_are_counted_through_several_files_of_different_kinds() {
    let scratch = Scratch::new();
    let parts: Vec<Records> = (0..4)
        .map(|part| records(part, 1 + 1700 * part as usize, |random| random.below(3000) as usize))
        .collect();
    let paths: Vec<_> = parts
        .iter()
        .enumerate()
        .map(|(number, records)| {
            let spec = Spec::new(Dialect::ALL[2 * number], if number == 2 { 1024 } else { 4096 });
            scratch.write(&format!("part-{number}"), &spec.build(records).bytes)
        })
        .collect();
    let paths: Vec<_> = paths.iter().map(std::path::PathBuf::as_path).collect();
    let dataset = open(&paths);
    let index = index(&dataset);
    assert_holds(&dataset, &index, &parts.concat());
    let mut located = Located::default();
    index.locate(&[SampleId(1702)], &mut located).expect("a sample");
    let Piece::Extent(extent) = located.pieces()[0] else { panic!("an extent") };
    assert_eq!(extent.shard.0, 2, "samples 0, 1..1702 and 1702.. are in files 0, 1 and 2");
}

#[test]
fn many_ids_in_any_order_give_the_places_of_single_ones() {
    let scratch = Scratch::new();
    let records = records(5, 20_000, |random| random.below(3000) as usize);
    let dataset = open(&[&scratch.lmdb("data", &records)]);
    let index = index(&dataset);
    let mut random = Random(11);
    let ids: Vec<SampleId> = (0..70_000).map(|_| SampleId(random.below(20_000))).collect();
    let (mut all, mut one) = (Located::default(), Located::default());
    index.locate(&ids, &mut all).expect("samples");
    assert_eq!(all.samples(), ids.len());
    for (position, id) in ids.iter().enumerate().step_by(97) {
        index.locate(&[*id], &mut one).expect("a sample");
        let (found, alone) = (all.slices(position, 0)[0], one.slices(0, 0)[0]);
        assert_eq!((found.offset, found.length), (alone.offset, alone.length));
        let (found, alone) = (all.units()[found.unit as usize], one.units()[0]);
        assert_eq!((found.guard, found.decoded_bytes), (alone.guard, alone.decoded_bytes));
        assert_eq!(all.pieces()[found.first_piece as usize], one.pieces()[0]);
    }
}

#[test]
fn several_threads_may_ask_one_index() {
    let scratch = Scratch::new();
    let records = records(5, 30_000, |random| random.below(100) as usize);
    let dataset = open(&[&scratch.lmdb("data", &records)]);
    let index = index(&dataset);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (index, records) = (&index, &records);
            scope.spawn(move || {
                let mut random = Random(seed);
                let mut located = Located::default();
                for _ in 0..50 {
                    let ids: Vec<_> = (0..100).map(|_| SampleId(random.below(30_000))).collect();
                    index.locate(&ids, &mut located).expect("samples");
                    for (position, id) in ids.iter().enumerate() {
                        assert_eq!(
                            located.slices(position, 0)[0].length,
                            records[id.0 as usize].1.len() as u64
                        );
                    }
                }
            });
        }
    });
}

#[test]
fn an_id_that_does_not_exist_is_refused() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data", &records(1, 10, |_| 5))]);
    let error = index(&dataset).locate(&[SampleId(10)], &mut Located::default()).expect_err("no such sample");
    assert_eq!(error.to_string(), "there is no sample 10: the dataset has 10 samples");
}

#[test]
fn records_that_are_not_samples_are_left_out_by_exact_name() {
    let scratch = Scratch::new();
    let mut all = records(1, 300, |random| random.below(50) as usize);
    let samples = all.len() as u64;
    for name in ["num-samples", "__keys__", "__len__", "__classnum__"] {
        all.push((name.into(), b"300".to_vec()));
    }
    for kept in ["num-samples2", "__key__"] {
        all.push((kept.into(), b"kept".to_vec()));
    }
    all.sort();
    let path = scratch.lmdb("data", &all);
    for schema in [SchemaChoice::Auto, SchemaChoice::Raw] {
        let dataset = open_as(&[&path], schema);
        let built = build(&dataset);
        assert_eq!(built.report.samples, samples + 2);
        assert_eq!(built.report.excluded.len(), 4);
        assert!(built.report.excluded.values().all(|count| *count == 1));
        let index = dataset.index(Arc::new(built.bytes)).expect("an index just built");
        let kept: Records = all.iter().filter(|(_, value)| value != b"300").cloned().collect();
        assert_holds(&dataset, &index, &kept);
    }
}

#[test]
fn a_named_database_is_a_dataset_of_its_own() {
    let scratch = Scratch::new();
    let (main, train) = (records(1, 50, |_| 9), records(2, 400, |random| random.below(5000) as usize));
    let image = Spec::new(Dialect::ALL[0], 4096).build_with(&main, &[("train", train.clone())]);
    let path = scratch.write("data", &image.bytes);
    let named = OpenOptions { database: Some("train".into()), ..OpenOptions::default() };
    let dataset = Dataset::open(std::slice::from_ref(&path), &named).expect("a sound dataset");
    assert_holds(&dataset, &index(&dataset), &train);
    let whole = open(&[&path]);
    assert_holds(&whole, &index(&whole), &main);
    assert_ne!(whole.fingerprint(), dataset.fingerprint());
}

#[test]
fn the_callback_can_stop_the_building() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data", &records(1, 1000, |_| 5))]);
    let stopped = dataset.build_index(1, &|_| false);
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
}

#[test]
fn building_reads_tree_pages_and_the_heads_of_a_few_records_only() {
    let scratch = Scratch::new();
    let path = scratch.lmdb("data", &records(1, 2000, |_| 20_000));
    let report = build(&open(&[&path])).report;
    assert_eq!(report.file_bytes, std::fs::metadata(&path).expect("a file").len());
    assert!(report.read_bytes < report.file_bytes / 200, "{} of {}", report.read_bytes, report.file_bytes);
}
