//! Caffe's `Datum`: found by looking, decoded as protobuf would.

use crate::support::dataset::{Scratch, build, index, open, open_as};
use crate::support::datum::{bytes, encoded, floats, image, number, packed_floats, shape, tag};
use crate::support::lmdb_writer::{Random, Records};
use forebay_format::{
    Dataset, DatumSchema, DecodedUnits, FieldOut, OpenOptions, Pixels, Schema, SchemaChoice, SchemaError,
    Summary,
};
use forebay_types::{Dtype, Layout, SampleId};
use proptest::prelude::*;

const TINY: Schema = Schema::CaffeDatum(DatumSchema { pixels: Pixels::Uint8, shape: [1, 2, 3] });
const TINY_FLOAT: Schema = Schema::CaffeDatum(DatumSchema { pixels: Pixels::Float32, shape: [1, 2, 3] });
const ENCODED: Schema = Schema::CaffeDatum(DatumSchema { pixels: Pixels::Encoded, shape: [0; 3] });

/// Image bytes and label of a message.
fn decode(schema: &Schema, message: &[u8]) -> Result<(Vec<u8>, i64), SchemaError> {
    let image_bytes = match schema.fields(&Summary::default())[0].sample_bytes() {
        Some(bytes) => bytes as usize,
        None => 0,
    };
    let (mut image, mut label, mut ragged) = (vec![0; image_bytes], [0; 8], Vec::new());
    let mut take = |bytes: &[u8]| ragged.extend_from_slice(bytes);
    let image_out =
        if *schema == ENCODED { FieldOut::Ragged(&mut take) } else { FieldOut::Dense(&mut image) };
    schema.decode(&[message], &mut [image_out, FieldOut::Dense(&mut label)])?;
    Ok((if *schema == ENCODED { ragged } else { image }, i64::from_ne_bytes(label)))
}

fn records(messages: impl IntoIterator<Item = Vec<u8>>) -> Records {
    messages
        .into_iter()
        .enumerate()
        .map(|(number, message)| (format!("{number:08}").into_bytes(), message))
        .collect()
}

fn schema_of(messages: impl IntoIterator<Item = Vec<u8>>) -> Schema {
    let scratch = Scratch::new();
    index(&open(&[&scratch.lmdb("data", &records(messages))])).schema().clone()
}

#[test]
fn pixels_and_label_come_out() {
    let pixels = [1, 2, 3, 4, 5, 6];
    for label in [0, 1, 127, 128, 1000, i64::from(i32::MAX), -1, i64::from(i32::MIN)] {
        assert_eq!(decode(&TINY, &image([1, 2, 3], &pixels, label)), Ok((pixels.to_vec(), label)));
    }
    assert_eq!(number(5, -1).len(), 11, "a negative label takes ten bytes");
    let without_label = [shape(1, 2, 3), bytes(4, &pixels)].concat();
    assert_eq!(decode(&TINY, &without_label), Ok((pixels.to_vec(), 0)), "an absent label is 0");
}

#[test]
fn of_a_field_that_occurs_twice_the_last_one_counts() {
    let message =
        [image([9, 9, 9], b"first", 3), number(7, 1), image([1, 2, 3], b"second", 4), number(7, 0)].concat();
    assert_eq!(decode(&TINY, &message), Ok((b"second".to_vec(), 4)));
}

#[test]
fn fields_come_in_any_order_and_unknown_ones_that_hold_nothing_are_read_over() {
    let message = [
        number(5, 8),
        bytes(9, b""),
        bytes(4, b"pixels"),
        number(3, 3),
        number(12, 0),
        number(2, 2),
        // Known numbers with other types are unknown fields as well.
        bytes(5, b""),
        number(4, 0),
        number(1, 1),
    ]
    .concat();
    assert_eq!(decode(&TINY, &message), Ok((b"pixels".to_vec(), 8)));
}

#[test]
fn unknown_fields_that_hold_something_are_refused_by_name() {
    let sound = image([1, 2, 3], b"pixels", 8);
    for (unknown, error) in [
        (
            bytes(9, b"mask"),
            "Datum: field 9 at byte 16 of the record: expected nothing, as the schema has no such field, found 4 bytes",
        ),
        (
            [tag(10, 1), vec![0; 8]].concat(),
            "Datum: field 10 at byte 16 of the record: expected nothing, as the schema has no such field, found 8 bytes",
        ),
        ([tag(11, 5), vec![0; 4]].concat(), "found 4 bytes"),
        (number(12, 5), "found the number 5"),
        (bytes(5, b"label"), "Datum: field 5"),
        (number(4, 77), "Datum: field 4"),
    ] {
        let message = [sound.clone(), unknown].concat();
        let found = decode(&TINY, &message).expect_err(error).to_string();
        assert!(found.contains(error), "{found}");
        // Not taken for bytes either: what is there is a Datum, and more.
        let scratch = Scratch::new();
        for messages in [vec![message.clone(); 3], vec![sound.clone(), sound.clone(), message]] {
            let path = scratch
                .lmdb(&format!("data-{}", messages.iter().map(Vec::len).sum::<usize>()), &records(messages));
            let error = open(&[&path]).build_index(1, &|_| true).expect_err("more than a Datum");
            assert!(error.to_string().contains("Datum: field"), "{error}");
            assert_eq!(error.hint(), Some("read the records undecoded with schema=\"raw\""));
            assert_eq!(index(&open_as(&[&path], SchemaChoice::Raw)).schema(), &Schema::Raw);
        }
    }
}

#[test]
fn floats_are_read_packed_and_not() {
    let values = [0.5, -1.0, f32::MAX, f32::MIN_POSITIVE, 0.0, 3.25];
    let bytes: Vec<u8> = values.iter().flat_map(|value: &f32| value.to_ne_bytes()).collect();
    for message in [
        floats([1, 2, 3], &values, 7),
        packed_floats([1, 2, 3], &values, 7),
        [packed_floats([1, 2, 3], &values[..4], 7), floats([1, 2, 3], &values[4..], 7)].concat(),
    ] {
        assert_eq!(decode(&TINY_FLOAT, &message), Ok((bytes.clone(), 7)));
    }
}

#[test]
fn encoded_images_stay_bytes() {
    assert_eq!(decode(&ENCODED, &encoded([0, 0, 0], b"\xff\xd8jpeg", 2)), Ok((b"\xff\xd8jpeg".to_vec(), 2)));
    assert_eq!(decode(&ENCODED, &encoded([3, 500, 375], b"x", -2)), Ok((b"x".to_vec(), -2)), "any shape");
}

#[test]
fn what_does_not_fit_is_said() {
    let values = [0.0; 6];
    for (schema, message, text) in [
        (
            &TINY,
            image([1, 3, 2], b"pixels", 0),
            "Datum: shape at byte 0 of the record: expected 1 x 2 x 3, found 1 x 3 x 2",
        ),
        (
            &TINY,
            image([1, 2, 3], b"pixel", 0),
            "expected 6 bytes in data and 0 in float_data, found 5 bytes in data and 0 in float_data",
        ),
        (
            &TINY,
            encoded([1, 2, 3], b"pixels", 0),
            "Datum: encoded at byte 0 of the record: expected plain elements, found an encoded image",
        ),
        (&ENCODED, image([1, 2, 3], b"pixels", 0), "expected an encoded image, found plain elements"),
        (&TINY, floats([1, 2, 3], &values, 0), "found 0 bytes in data and 6 in float_data"),
        (&TINY_FLOAT, floats([1, 2, 3], &values[..5], 0), "found 0 bytes in data and 5 in float_data"),
        (&TINY_FLOAT, floats([1, 2, 3], &[0.0; 7], 0), "found 0 bytes in data and 7 in float_data"),
        (
            &TINY_FLOAT,
            packed_floats([1, 2, 3], &[0.0; 700], 0),
            "found 0 bytes in data and 700 in float_data",
        ),
        (
            &TINY_FLOAT,
            [shape(1, 2, 3), bytes(6, &[0; 25])].concat(),
            "float_data at byte 8 of the record: expected a multiple of 4 bytes, found 25",
        ),
        (&TINY, vec![], "found 0 x 0 x 0"),
        (
            &TINY,
            image([1, 2, 3], b"pixels", 0)[..10].to_vec(),
            "field 4 at byte 8 of the record: expected 6 bytes, found 2 bytes",
        ),
        (
            &TINY,
            [shape(1, 2, 3), tag(8, 3), tag(8, 4)].concat(),
            "field 8: wire type at byte 6 of the record: expected 0, 1, 2 or 5, found a group",
        ),
    ] {
        let error = decode(schema, &message).expect_err("does not fit").to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_dataset_of_images_is_recognised() {
    let pixels = vec![7; 3 * 32 * 32];
    let schema = schema_of((0..500).map(|label| image([3, 32, 32], &pixels, label)));
    assert_eq!(schema, Schema::CaffeDatum(DatumSchema { pixels: Pixels::Uint8, shape: [3, 32, 32] }));
    let fields = schema.fields(&Summary::default());
    let described: Vec<_> =
        fields.iter().map(|field| (field.name.as_str(), field.dtype, field.layout.clone())).collect();
    assert_eq!(
        described,
        [
            ("image", Dtype::Uint8, Layout::Dense(vec![3, 32, 32])),
            ("label", Dtype::Int64, Layout::Dense(vec![]))
        ]
    );
    let schema = schema_of((0..40).map(|size| encoded([0, 0, 0], &vec![0xff; 1 + 300 * size], 1)));
    assert_eq!(schema, ENCODED);
    assert_eq!(schema.fields(&Summary::default())[0].layout, Layout::Ragged);
    let schema = schema_of((0..40).map(|label| floats([512, 1, 1], &[0.5; 512], label)));
    assert_eq!(schema, Schema::CaffeDatum(DatumSchema { pixels: Pixels::Float32, shape: [512, 1, 1] }));
    let schema = schema_of([image([1, 1, 1], b"x", 0)]);
    assert_eq!(
        schema,
        Schema::CaffeDatum(DatumSchema { pixels: Pixels::Uint8, shape: [1, 1, 1] }),
        "one sample"
    );
}

#[test]
fn anything_else_stays_raw() {
    let mut random = Random(3);
    assert_eq!(schema_of((0..300).map(|_| random.bytes(40))), Schema::Raw);
    assert_eq!(schema_of((0..300).map(|_| vec![])), Schema::Raw, "samples of no bytes");
    assert_eq!(schema_of((0..300).map(|_| b"\x80\x04\x95pickle.".to_vec())), Schema::Raw);
    assert_eq!(
        schema_of((0..300).map(|size| image([1, 1, 1 + size], &vec![1; 1 + size as usize], 0))),
        Schema::Raw,
        "mixed shapes"
    );
    assert_eq!(schema_of((0..300).map(|label| number(5, label))), Schema::Raw, "labels only");
    let mut messages: Vec<_> = (0..300).map(|label| image([1, 1, 2], b"xy", label)).collect();
    messages[299] = b"a list of something".to_vec();
    assert_eq!(schema_of(messages), Schema::Raw, "the last record is looked at");
    let scratch = Scratch::new();
    let path = scratch.lmdb("data", &records([image([1, 1, 1], b"x", 0)]));
    assert_eq!(
        *index(&open_as(&[&path], SchemaChoice::Raw)).schema(),
        Schema::Raw,
        "because it was asked for"
    );
}

#[test]
fn a_schema_that_was_asked_for_and_does_not_fit_names_the_record() {
    let scratch = Scratch::new();
    let mut messages: Vec<_> = (0..160).map(|label| image([1, 1, 2], b"xy", label)).collect();
    messages[80] = image([1, 2, 2], b"abcd", 0);
    let path = scratch.lmdb("data", &records(messages));
    let dataset = open_as(&[&path], SchemaChoice::CaffeDatum);
    let error = dataset.build_index(1, &|_| true).expect_err("two shapes");
    let text = error.to_string();
    assert!(text.starts_with(&format!("{}: sample 80, at offset ", path.display())), "{text}");
    assert!(text.contains("expected 1 x 1 x 2 uint8, found 1 x 2 x 2 uint8"), "{text}");
    assert_eq!(error.hint(), Some("read the records undecoded with schema=\"raw\""));

    let path = scratch.lmdb("other", &records([b"no Datum".to_vec()]));
    let text = open_as(&[&path], SchemaChoice::CaffeDatum)
        .build_index(1, &|_| true)
        .expect_err("no Datum")
        .to_string();
    assert!(text.contains("sample 0, at offset") && text.contains("record"), "{text}");
}

#[test]
fn looking_reads_the_ends_of_large_records_and_not_their_pixels() {
    let scratch = Scratch::new();
    let messages = (0..40).map(|label| image([3, 500, 500], &vec![1; 750_000], label));
    let report = build(&open(&[&scratch.lmdb("data", &records(messages))])).report;
    assert!(report.read_bytes < 40_000, "{} bytes", report.read_bytes);
}

#[test]
fn every_sample_of_a_dataset_decodes() {
    let scratch = Scratch::new();
    let messages: Vec<_> =
        (0..200_u8).map(|label| image([1, 2, 3], &[label; 6], i64::from(label) - 100)).collect();
    let dataset =
        Dataset::open(&[scratch.lmdb("data", &records(messages))], &OpenOptions::default()).expect("sound");
    let index = index(&dataset);
    assert_eq!(*index.schema(), TINY);
    for sample in 0..200 {
        let columns =
            dataset.read_columns(&index, SampleId(sample), &DecodedUnits::default()).expect("a sample");
        assert_eq!(decode(&TINY, &columns[0]), Ok((vec![sample as u8; 6], sample as i64 - 100)));
    }
}

proptest! {
    #[test]
    fn no_message_makes_the_decoder_panic(message in proptest::collection::vec(any::<u8>(), 0..200)) {
        for schema in [&TINY, &TINY_FLOAT, &ENCODED] {
            let _ = decode(schema, &message);
        }
    }

    #[test]
    fn a_damaged_message_is_decoded_or_refused(at in 0_usize..20, value: u8, cut in 0_usize..40) {
        for mut message in [image([1, 2, 3], b"pixels", -3), packed_floats([1, 2, 3], &[1.0; 6], 3)] {
            let at = at % message.len();
            message[at] = value;
            message.truncate(message.len().saturating_sub(cut));
            for schema in [&TINY, &TINY_FLOAT, &ENCODED] {
                let _ = decode(schema, &message);
            }
        }
    }
}
