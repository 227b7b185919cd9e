//! A cursor finds the same samples at the same places as the index.

use std::fs;

use crate::support::dataset::{Scratch, index, open};
use crate::support::lmdb_writer::{Kind, Records, Spec, records};
use forebay_format::lmdb::{Dialect, PortableCursor};
use forebay_format::{Dataset, Error, Index, SampleCursor, ShardBytes};
use forebay_types::{Located, SampleId, ShardId};
use proptest::prelude::*;

/// Finds samples as [`Index::locate`] does, by walking on from where a cursor stands.
fn walk(
    dataset: &Dataset,
    cursor: &mut SampleCursor,
    index: &Index,
    ids: &[SampleId],
    bytes: &ShardBytes<'_>,
    out: &mut Located,
) -> Result<(), Error> {
    out.clear(1);
    ids.iter().try_for_each(|id| {
        dataset.find_by_cursor(cursor, index, *id, bytes)?.push(out);
        Ok(())
    })
}

/// The places of samples as the index and as a cursor find them; the cursor goes through all lists
/// in turn.
fn assert_same(dataset: &Dataset, index: &Index, lists: &[Vec<u64>]) {
    let files: Vec<Vec<u8>> =
        dataset.shards().iter().map(|shard| fs::read(&shard.path).expect("readable")).collect();
    let bytes = |shard: ShardId, offset: u64, length: u64| {
        files[shard.0 as usize].get(offset as usize..(offset + length) as usize)
    };
    let (mut walked, mut looked_up) = (Located::default(), Located::default());
    let mut cursor = SampleCursor::default();
    for list in lists {
        let ids: Vec<SampleId> = list.iter().map(|id| SampleId(*id)).collect();
        walk(dataset, &mut cursor, index, &ids, &bytes, &mut walked).expect("found");
        index.locate(&ids, &mut looked_up).expect("found");
        assert_eq!((walked.samples(), walked.columns()), (ids.len(), 1));
        for (position, sample) in list.iter().enumerate() {
            let place = |located: &Located| {
                let slice = located.slices(position, 0)[0];
                let piece = located.pieces()[located.unit_pieces(slice.unit)][0];
                (slice.offset, slice.length, piece, located.units()[slice.unit as usize].guard)
            };
            assert_eq!(place(&walked), place(&looked_up), "sample {sample}");
        }
    }
}

#[test]
fn every_sample_is_found_in_every_dialect() {
    let scratch = Scratch::new();
    for dialect in Dialect::ALL {
        for (page_bytes, scatter) in [(512, None), (4096, Some(3))] {
            let records = records(7, 500, |random| match random.below(3) {
                0 => 0,
                1 => random.below(60) as usize,
                _ => random.below(9000) as usize,
            });
            let spec = Spec { scatter, ..Spec::new(dialect, page_bytes) };
            let dataset = open(&[&scratch.write("data", &spec.build(&records).bytes)]);
            assert_same(&dataset, &index(&dataset), &[(0..500).collect(), vec![0, 499]]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn samples_are_found_in_any_order_and_over_several_shards(
        lists in prop::collection::vec(prop::collection::vec(0_u64..600, 0..20), 1..5),
    ) {
        let scratch = Scratch::new();
        let mut parts = [3_u64, 4, 5].map(|seed| records(seed, 200, |random| random.below(5000) as usize));
        // Records that are no samples, before, between and behind the others.
        for (part, key) in parts.iter_mut().zip(["__keys__", "__len__", "num-samples"]) {
            part.push((key.as_bytes().to_vec(), vec![1, 2, 3]));
            part.sort();
        }
        let paths = [0, 1, 2].map(|part| scratch.lmdb(&format!("{part}"), &parts[part]));
        // One without samples between them.
        let none = scratch.lmdb("none", &vec![(b"__len__".to_vec(), vec![0])]);
        let dataset = open(&[&paths[0], &none, &paths[1], &paths[2]]);
        assert_same(&dataset, &index(&dataset), &lists);
    }
}

#[test]
fn a_cursor_ends_with_an_error_where_pages_lead_in_circles_or_are_gone() {
    let scratch = Scratch::new();
    let records: Records = records(7, 2000, |_| 40);
    let sound = Spec::new(Dialect::ALL[0], 512).build(&records);
    let path = scratch.write("data", &sound.bytes);
    let dataset = open(&[&path]);
    let index = index(&dataset);
    let last = [SampleId(1999)];
    let mut located = Located::default();

    // More records than the database says it has: what pages that lead in circles come to.
    let mut few = Spec::new(Dialect::ALL[0], 512).build(&records);
    few.set(few.meta("entries"), 1000);
    let few = open(&[&scratch.write("few", &few.bytes)]);
    let whole =
        |_: ShardId, offset: u64, length: u64| sound.bytes.get(offset as usize..(offset + length) as usize);
    let error = walk(&few, &mut SampleCursor::default(), &index, &last, &whole, &mut located)
        .expect_err("too many records");
    assert!(error.to_string().contains("entries") && error.to_string().contains("1001 or more"), "{error}");

    // A page where another should be.
    let mut swapped = sound.bytes.clone();
    let [a, b] = [0, 1].map(|leaf| sound.unit(Kind::Leaf, leaf).page as usize * 512);
    swapped.copy_within(a..a + 512, b);
    let bytes =
        |_: ShardId, offset: u64, length: u64| swapped.get(offset as usize..(offset + length) as usize);
    let error = walk(&dataset, &mut SampleCursor::default(), &index, &last, &bytes, &mut located)
        .expect_err("a page stands where another should");
    assert!(error.to_string().contains("page number"), "{error}");

    let short = |_: ShardId, offset: u64, length: u64| {
        sound.bytes[..20_000].get(offset as usize..(offset + length) as usize)
    };
    let error = walk(&dataset, &mut SampleCursor::default(), &index, &last, &short, &mut located)
        .expect_err("half of the file is gone");
    assert!(error.to_string().contains("the end of the file"), "{error}");
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
}

/// A dataset of several levels and its files.
fn deep(scratch: &Scratch) -> (Dataset, Vec<u8>) {
    let records = records(3, 900, |random| random.below(700) as usize);
    let path = scratch.write("deep", &Spec::new(Dialect::ALL[0], 512).build(&records).bytes);
    let file = fs::read(&path).expect("readable");
    (open(&[&path]), file)
}

#[test]
fn a_cursor_that_was_told_goes_on_exactly_there() {
    let scratch = Scratch::new();
    let (dataset, file) = deep(&scratch);
    let index = index(&dataset);
    let bytes = |_: ShardId, offset: u64, length: u64| file.get(offset as usize..(offset + length) as usize);
    let mut whole = SampleCursor::default();
    let mut told = dataset.export_cursor(&whole);
    for id in 0..900 {
        // Told from process to process after every sample.
        let mut cursor = dataset.import_cursor(&index, &told, &bytes).expect("taken");
        assert_eq!(cursor.next_sample(), id);
        let found = dataset.find_by_cursor(&mut cursor, &index, SampleId(id), &bytes).expect("found");
        let expected = dataset.find_by_cursor(&mut whole, &index, SampleId(id), &bytes).expect("found");
        assert_eq!(found, expected, "sample {id}");
        told = dataset.export_cursor(&cursor);
    }
    // Behind the last one there is nothing to come.
    let cursor = dataset.import_cursor(&index, &told, &bytes).expect("taken");
    assert_eq!(cursor.next_sample(), 900);
}

#[test]
fn a_portable_cursor_takes_47_bytes_in_a_tree_of_three_levels() {
    let levels = vec![(7, 1), (8, 2), (9, 30)];
    let cursor = PortableCursor { transaction: 5, root: 7, levels };
    let bytes = cursor.encode();
    assert_eq!(bytes.len(), 47);
    assert_eq!(PortableCursor::decode(&bytes), Some(cursor));
    for length in 0..47 {
        assert_eq!(PortableCursor::decode(&bytes[..length]), None);
    }
}

#[test]
fn a_cursor_of_another_snapshot_is_refused_with_both() {
    let scratch = Scratch::new();
    let (dataset, file) = deep(&scratch);
    let bytes = |_: ShardId, offset: u64, length: u64| file.get(offset as usize..(offset + length) as usize);
    let mut told = dataset.export_cursor(&SampleCursor::default());
    told[12] ^= 1;
    let error = dataset.import_cursor(&index(&dataset), &told, &bytes).unwrap_err();
    assert!(error.to_string().contains("transaction and root page"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_damaged_cursor_is_refused_or_leads_to_records(
        at in 0_usize..60, flip in 1_u8..=255, walked in 1_u64..900,
    ) {
        let scratch = Scratch::new();
        let (dataset, file) = deep(&scratch);
        let index = index(&dataset);
        let bytes = |_: ShardId, offset: u64, length: u64| file.get(offset as usize..(offset + length) as usize);
        let mut cursor = SampleCursor::default();
        dataset.find_by_cursor(&mut cursor, &index, SampleId(walked - 1), &bytes).expect("found");
        let mut told = dataset.export_cursor(&cursor);
        let at = at % told.len();
        told[at] ^= flip;
        if let Ok(mut taken) = dataset.import_cursor(&index, &told, &bytes) {
            // A node or a number that is another, but is one: the walk goes on or ends, and nothing
            // worse.
            let next = taken.next_sample().min(899);
            let _ = dataset.find_by_cursor(&mut taken, &index, SampleId(next), &bytes);
        }
    }
}
