//! Equal records get equal schemas, whatever container holds them.

use std::path::{Path, PathBuf};

use crate::support::dataset::{Scratch, index, open_as};
use crate::support::datum::image;
use crate::support::example_writer::{example, key, packed_ints, strings};
use crate::support::record_writer::tfrecords;
use forebay_format::{Dataset, DatumSchema, Error, OpenOptions, Pixels, Schema, SchemaChoice, Summary};

/// The same records in LMDB and `TFRecord`.
fn containers(scratch: &Scratch, records: &[Vec<u8>]) -> [PathBuf; 2] {
    let keyed = records.iter().enumerate();
    let keyed = keyed.map(|(number, record)| (format!("{number:08}").into_bytes(), record.clone()));
    [scratch.lmdb("data.mdb", &keyed.collect()), scratch.write("data.tfrecord", &tfrecords(records).0)]
}

fn examples() -> Vec<Vec<u8>> {
    (0..64).map(|label| example(&[[key("label"), packed_ints(&[label])].concat()])).collect()
}

fn refused_sample(path: &Path) -> u64 {
    match open_as(&[path], SchemaChoice::TfExample).build_index(1, &|_| true) {
        Err(Error::Schema { path: named, sample, .. }) if named == path => sample,
        other => panic!("{}: {other:?}", path.display()),
    }
}

#[test]
fn a_record_that_contradicts_the_schema_is_found_in_every_container() {
    let other_kind = example(&[[key("label"), strings(&[b"text"])].concat()]);
    for contradicts in [17, 30, 63] {
        let scratch = Scratch::new();
        let mut records = examples();
        records[contradicts].clone_from(&other_kind);
        let samples = containers(&scratch, &records).map(|path| refused_sample(&path));
        assert_eq!(samples, [contradicts as u64; 2]);
    }
}

#[test]
fn every_container_infers_the_same_schema() {
    let scratch = Scratch::new();
    let mut records = examples();
    // One record has two labels: the field varies.
    records[17] = example(&[[key("label"), packed_ints(&[17, 18])].concat()]);
    let [lmdb, tfrecord] = containers(&scratch, &records)
        .map(|path| index(&open_as(&[&path], SchemaChoice::TfExample)).schema().clone());
    assert_eq!(lmdb.fields(&Summary::default())[0].sample_bytes(), None);
    assert_eq!(lmdb, tfrecord);
}

#[test]
fn a_schema_that_was_asked_for_is_found_in_every_container() {
    let scratch = Scratch::new();
    let records: Vec<Vec<u8>> = (0..70).map(|label| image([1, 2, 3], b"pixels", label)).collect();
    let schemas = containers(&scratch, &records)
        .map(|path| index(&open_as(&[&path], SchemaChoice::CaffeDatum)).schema().clone());
    let datum = DatumSchema { pixels: Pixels::Uint8, shape: [1, 2, 3] };
    assert_eq!(schemas, [Schema::CaffeDatum(datum), Schema::CaffeDatum(datum)]);
}

#[test]
fn fields_that_no_schema_has_are_refused_in_every_container() {
    let scratch = Scratch::new();
    let records: Vec<Vec<u8>> = (0..20).map(|byte| vec![byte; 30]).collect();
    for path in containers(&scratch, &records) {
        let (schema, fields) = (SchemaChoice::Raw, vec!["label".to_owned()]);
        let options = OpenOptions { schema, fields, ..OpenOptions::default() };
        let built = Dataset::open(&[path], &options).expect("a sound file").build_index(1, &|_| true);
        assert!(matches!(built, Err(Error::Usage { .. })), "{built:?}");
    }
}
