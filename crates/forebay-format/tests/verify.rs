//! Reading everything once finds exactly what is broken.

use std::fs;

use crate::support::dataset::{Scratch, index, open, open_as};
use crate::support::datum::image;
use crate::support::lmdb_writer::{Records, Spec, records};
use forebay_format::lmdb::Dialect;
use forebay_format::{Error, SchemaChoice, Verification};
use forebay_types::{Located, Piece, SampleId};

#[test]
fn a_sound_dataset_has_no_bad_samples() {
    let scratch = Scratch::new();
    let records = records(
        3,
        40_000,
        |random| if random.below(50) == 0 { random.below(20_000) } else { random.below(90) } as usize,
    );
    let path = scratch.lmdb("data", &records);
    let dataset = open(&[&path, &path]);
    let index = index(&dataset);
    for threads in [1, 3] {
        let verification = dataset.verify(&index, threads, &|_| true, 10).expect("readable");
        let file_bytes = fs::metadata(&path).expect("a file").len();
        assert_eq!((verification.samples, verification.bad_samples), (80_000, 0));
        assert!(
            verification.read_bytes < 3 * file_bytes,
            "{} of twice {file_bytes}",
            verification.read_bytes
        );
    }
}

#[test]
fn damaged_overflow_headers_are_found_with_their_place() {
    let scratch = Scratch::new();
    let path = scratch.lmdb("data", &records(3, 2000, |random| 2500 + random.below(9000) as usize));
    let dataset = open(&[&path]);
    let index = index(&dataset);
    let mut bytes = fs::read(&path).expect("a file");
    let mut located = Located::default();
    let broken = [3_u64, 700, 1999];
    index.locate(&broken.map(SampleId), &mut located).expect("samples");
    for (position, _) in broken.iter().enumerate() {
        let Piece::Extent(extent) = located.pieces()[position] else { panic!("an extent") };
        bytes[extent.offset as usize + position] ^= 1;
    }
    fs::write(&path, &bytes).expect("written");
    let verification = dataset.verify(&index, 2, &|_| true, 10).expect("readable");
    let samples: Vec<u64> = verification.bad.iter().map(|bad| bad.sample).collect();
    assert_eq!((verification.bad_samples, samples), (3, broken.to_vec()));
    let message = &verification.bad[0].message;
    assert!(message.starts_with(&format!("{}: LMDB overflow page", path.display())), "{message}");
    assert!(message.contains("page number at offset"), "{message}");
    let limited = dataset.verify(&index, 2, &|_| true, 1).expect("readable");
    assert_eq!(
        (limited.bad_samples, limited.bad.len(), limited.bad[0].sample),
        (3, 1, 3),
        "the first ones are kept"
    );
}

#[test]
fn samples_that_do_not_decode_are_found() {
    let scratch = Scratch::new();
    let messages: Records = (0..500)
        .map(|label| {
            let width = if label == 123 { 3 } else { 2 };
            (format!("{label:06}").into_bytes(), image([1, 1, width], &vec![1; width as usize], label))
        })
        .collect();
    let dataset = open(&[&scratch.lmdb("data", &messages)]);
    let verification = dataset.verify(&index(&dataset), 1, &|_| true, 10).expect("readable");
    assert_eq!(verification.bad_samples, 1);
    let message = &verification.bad[0].message;
    assert!(message.contains("sample 123, at offset"), "{message}");
    assert!(message.ends_with("expected 1 x 1 x 2, found 1 x 1 x 3"), "{message}");
}

#[test]
fn a_file_that_became_shorter_meanwhile_is_an_error_of_its_own() {
    let scratch = Scratch::new();
    let path = scratch.lmdb("data", &records(3, 1000, |_| 5000));
    let dataset = open(&[&path]);
    let index = index(&dataset);
    let mut bytes = fs::read(&path).expect("a file");
    bytes.truncate(bytes.len() / 2);
    fs::write(&path, &bytes).expect("written");
    let error = dataset.verify(&index, 1, &|_| true, 10).expect_err("the file became shorter");
    assert!(matches!(error, Error::Modified { .. }), "{error}");
}

#[test]
fn samples_of_no_bytes_and_of_many_are_read() {
    let scratch = Scratch::new();
    for dialect in [Dialect::ALL[0], Dialect::ALL[7]] {
        let records = records(3, 20, |random| [0, 0, 1, 9_000_000][random.below(4) as usize]);
        let path = scratch.write("data", &Spec::new(dialect, 4096).build(&records).bytes);
        let dataset = open_as(&[&path], SchemaChoice::Raw);
        let verification = dataset.verify(&index(&dataset), 2, &|_| true, 10).expect("readable");
        assert_eq!(verification.bad_samples, 0, "{:?}", verification.bad);
    }
}

#[test]
fn the_callback_sees_the_end_and_can_stop_before() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data", &records(3, 40_000, |_| 5))]);
    let index = index(&dataset);
    let last = std::sync::Mutex::new(0);
    let note = |progress: forebay_format::Progress| {
        let mut last = last.lock().expect("no panic");
        *last = progress.done.max(*last);
        assert_eq!((progress.what, progress.total), ("samples", 40_000));
        true
    };
    let verification: Verification = dataset.verify(&index, 2, &note, 10).expect("readable");
    assert_eq!((*last.lock().expect("no panic"), verification.samples), (40_000, 40_000));
    assert!(matches!(dataset.verify(&index, 2, &|_| false, 10), Err(Error::Interrupted)));
}

#[test]
fn a_dataset_describes_itself() {
    let scratch = Scratch::new();
    let dataset = open(&[&scratch.lmdb("data.mdb", &records(3, 4000, |random| random.below(3000) as usize))]);
    let index = index(&dataset);
    let described = dataset.inspect(Some(&index), &scratch.cache());
    assert_eq!(described["format"], "lmdb");
    assert_eq!(described["samples"], 4000);
    assert_eq!(described["schema"], "raw");
    assert_eq!(described["sidecar"], serde_json::Value::Null);
    assert_eq!(described["shards"][0]["dialect"], "lmdb 0.9, 64 bit, little-endian");
    assert_eq!(described["shards"][0]["page_bytes"], 4096);
    let classes = &described["records"]["classes"];
    assert_eq!(
        classes["inline"].as_u64().zip(classes["big"].as_u64()).map(|(inline, big)| inline + big),
        Some(4000)
    );
    assert!(described["records"]["mean_bytes"].as_f64().is_some_and(|mean| (1000.0..2000.0).contains(&mean)));
}
