//! `tf.train.Example`: decoded as protobuf would, or refused; never other values.

use crate::support::dataset::{Scratch, index, open_as};
use crate::support::datum::{bytes, number, tag};
use crate::support::example_writer::{
    example, feature_lists, key, packed_floats, packed_ints, plain_floats, plain_ints, strings, value,
};
use crate::support::lmdb_writer::Random;
use crate::support::record_writer;
use forebay_format::{
    DecodedUnits, ExampleSchema, Feature, FeatureKind, FieldOut, Schema, SchemaChoice, SchemaError, Summary,
    Values,
};
use forebay_types::{Dtype, Layout, SampleId};
use proptest::prelude::*;

/// Number and length of the values of a feature that has always as many \[bytes\].
type Fixed = Option<(u64, u64)>;

fn schema(features: &[(&str, FeatureKind, Fixed)]) -> Schema {
    let features = features.iter().map(|(name, kind, fixed)| Feature {
        name: (*name).to_owned(),
        kind: *kind,
        values: fixed.map_or(Values::Varying, |(count, value_bytes)| Values::Fixed { count, value_bytes }),
    });
    Schema::TfExample(ExampleSchema { features: features.collect(), complete: false })
}

/// The schema of records that have no other features.
fn complete(schema: Schema) -> Schema {
    let Schema::TfExample(ExampleSchema { features, .. }) = schema else { unreachable!("of examples") };
    Schema::TfExample(ExampleSchema { features, complete: true })
}

/// The bytes of every field.
fn decode(schema: &Schema, message: &[u8]) -> Result<Vec<Vec<u8>>, SchemaError> {
    let fields = schema.fields(&Summary::default());
    let mut dense: Vec<Vec<u8>> =
        fields.iter().map(|field| vec![0xee; field.sample_bytes().unwrap_or(0) as usize]).collect();
    let mut ragged: Vec<Vec<u8>> = vec![Vec::new(); fields.len()];
    let mut takes: Vec<_> =
        ragged.iter_mut().map(|taken| |bytes: &[u8]| taken.extend_from_slice(bytes)).collect();
    let mut out: Vec<FieldOut<'_>> = dense
        .iter_mut()
        .zip(&mut takes)
        .zip(&fields)
        .map(|((dense, take), field)| match field.layout {
            Layout::Dense(_) => FieldOut::Dense(dense),
            Layout::Ragged => FieldOut::Ragged(take),
        })
        .collect();
    schema.decode(&[message], &mut out)?;
    Ok(dense
        .into_iter()
        .zip(ragged)
        .map(|(dense, ragged)| if ragged.is_empty() { dense } else { ragged })
        .collect())
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn ints(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

#[test]
fn features_of_every_kind_come_out_in_any_writing() {
    let fixed = schema(&[
        ("box", FeatureKind::Float, Some((3, 4))),
        ("image", FeatureKind::Bytes, Some((2, 4))),
        ("label", FeatureKind::Int64, Some((3, 8))),
    ]);
    let varying = schema(&[
        ("box", FeatureKind::Float, None),
        ("image", FeatureKind::Bytes, None),
        ("label", FeatureKind::Int64, None),
    ]);
    let (boxes, labels) = ([0.5, -1.0, f32::MAX], [-1, 300, i64::MIN]);
    // Fields of other messages that hold nothing.
    let unknown = [number(9, 0), bytes(8, b""), bytes(2_000, b"")].concat();
    for boxes_value in [packed_floats(&boxes), plain_floats(&boxes)] {
        for labels_value in [packed_ints(&labels), plain_ints(&labels)] {
            let message = example(&[
                [unknown.clone(), labels_value, key("label")].concat(),
                [key("other"), strings(&[b"not looked at"])].concat(),
                [key("image"), strings(&[b"abcd", b"efgh"]), unknown.clone()].concat(),
                [key("box"), boxes_value.clone()].concat(),
            ]);
            let message = [unknown.clone(), message].concat();
            let expected = vec![floats(&boxes), b"abcdefgh".to_vec(), ints(&labels)];
            assert_eq!(decode(&fixed, &message), Ok(expected));
        }
    }
    let message = example(&[
        [key("image"), strings(&[b"any length"])].concat(),
        [key("label"), plain_ints(&labels)].concat(),
        [key("box"), packed_floats(&[1.0])].concat(),
    ]);
    assert_eq!(decode(&varying, &message), Ok(vec![floats(&[1.0]), b"any length".to_vec(), ints(&labels)]));
    assert_eq!(decode(&varying, &[]), Ok(vec![vec![]; 3]), "all of them absent");
}

#[test]
fn fields_that_are_no_part_of_an_example_are_refused_if_they_hold_something() {
    let label = schema(&[("label", FeatureKind::Int64, Some((1, 8)))]);
    let list = number(1, 7);
    let sound = example(&[[key("label"), value(3, &list)].concat()]);
    for (unknown, found) in [
        (number(9, 5), "field 9 at byte"),
        (bytes(8, b"data"), "found 4 bytes"),
        ([tag(7, 5), vec![0; 4]].concat(), "found 4 bytes"),
        ([tag(6, 1), vec![0; 8]].concat(), "found 8 bytes"),
    ] {
        let with = |part: &[u8]| [part, &unknown].concat();
        for (where_, message) in [
            ("Example: field", with(&sound)),
            (
                "Example: features: field",
                bytes(1, &with(&bytes(1, &[key("label"), value(3, &list)].concat()))),
            ),
            ("Example: feature: field", example(&[with(&[key("label"), value(3, &list)].concat())])),
            (
                "Example: value of a feature: field",
                example(&[[key("label"), bytes(2, &with(&bytes(3, &list)))].concat()]),
            ),
            (
                "Example: list of a feature: field",
                example(&[[key("label"), bytes(2, &bytes(3, &with(&list)))].concat()]),
            ),
        ] {
            let error = decode(&label, &message).expect_err(where_).to_string();
            assert!(error.contains(where_) && error.contains(found), "{error}");
        }
    }
}

#[test]
fn sequence_examples_are_refused_by_name_wherever_they_stand() {
    let label = schema(&[("label", FeatureKind::Int64, Some((1, 8)))]);
    let context = example(&[[key("label"), packed_ints(&[7])].concat()]);
    let frames = [strings(&[b"one"]), strings(&[b"two"])];
    let lists =
        feature_lists(&[("frames", &frames), ("times", &[packed_floats(&[1.0]), plain_floats(&[2.0])])]);
    let refusal = "record at byte 15 of the record: expected a tf.train.Example, found a tf.train.SequenceExample \
                   with the feature lists \"frames\", \"times\"";
    let at = context.len();
    let refusal = refusal.replace("byte 15", &format!("byte {at}"));
    let sequence = [context.clone(), lists.clone()].concat();
    assert_eq!(decode(&label, &sequence).expect_err("a sequence").to_string(), refusal);
    assert_eq!(decode(&label, &[context.clone(), bytes(2, b"")].concat()), Ok(vec![ints(&[7])]), "no list");

    // By themselves, with a context or without one, with a later one among examples, and where they
    // were asked for.
    let scratch = Scratch::new();
    for (name, records) in [
        ("all", vec![sequence.clone(); 3]),
        ("no-context", vec![lists.clone(); 3]),
        ("empty-context", vec![[bytes(1, b""), lists].concat(); 3]),
        ("last", vec![context.clone(), context.clone(), sequence.clone()]),
    ] {
        let path = scratch.write(name, &record_writer::tfrecords(&records).0);
        for choice in [SchemaChoice::Auto, SchemaChoice::TfExample] {
            let error = open_as(&[&path], choice).build_index(1, &|_| true).expect_err(name);
            let text = error.to_string();
            assert!(text.contains("found a tf.train.SequenceExample"), "{name}: {text}");
            assert_eq!(error.hint(), Some("read the records undecoded with schema=\"raw\""), "{name}");
        }
        assert_eq!(index(&open_as(&[&path], SchemaChoice::Raw)).schema(), &Schema::Raw);
    }

    // One that was not looked at.
    let mut records = vec![context; 10_000];
    records[5_000] = sequence;
    let path = scratch.write("hidden", &record_writer::tfrecords(&records).0);
    let dataset = open_as(&[&path], SchemaChoice::Auto);
    let index = index(&dataset);
    assert_eq!(index.schema(), &complete(label));
    let found = dataset.verify(&index, 1, &|_| true, 10).expect("readable");
    assert_eq!(found.bad.iter().map(|bad| bad.sample).collect::<Vec<_>>(), [5_000]);
    assert!(found.bad[0].message.contains("tf.train.SequenceExample"), "{found:?}");
}

#[test]
fn a_feature_that_was_in_no_record_looked_at_is_refused_unless_features_were_chosen() {
    let chosen = schema(&[("label", FeatureKind::Int64, Some((1, 8)))]);
    let all = complete(chosen.clone());
    let label = [key("label"), packed_ints(&[7])].concat();
    let with = |other: Vec<u8>| example(&[label.clone(), [key("caption"), other].concat()]);
    let error = decode(&all, &with(strings(&[b"a cat"]))).expect_err("another feature").to_string();
    assert!(error.contains("feature \"caption\" at byte"), "{error}");
    assert!(error.contains("found another one, a list of bytes"), "{error}");
    assert_eq!(decode(&chosen, &with(strings(&[b"a cat"]))), Ok(vec![ints(&[7])]));
    for empty in [vec![], bytes(2, &[]), strings(&[])] {
        assert_eq!(decode(&all, &with(empty)), Ok(vec![ints(&[7])]), "nothing in it");
    }
}

#[test]
fn values_in_several_stretches_are_one_list() {
    let label = schema(&[("label", FeatureKind::Int64, Some((4, 8)))]);
    let mixed = [number(1, 7), bytes(1, &[8, 9]), bytes(1, &[]), number(1, -1)].concat();
    let message = example(&[[key("label"), value(3, &mixed)].concat()]);
    assert_eq!(decode(&label, &message), Ok(vec![ints(&[7, 8, 9, -1])]));
}

#[test]
fn of_a_feature_that_is_there_twice_the_last_counts() {
    let label = schema(&[("label", FeatureKind::Int64, Some((1, 8)))]);
    let once = |value: i64| [key("label"), packed_ints(&[value])].concat();
    assert_eq!(decode(&label, &example(&[once(1), once(2)])), Ok(vec![ints(&[2])]));
    let twice = [example(&[once(1)]), example(&[once(3)])].concat();
    assert_eq!(decode(&label, &twice), Ok(vec![ints(&[3])]), "features in two stretches");
    let renamed = example(&[[key("other"), key("label"), packed_ints(&[4])].concat()]);
    assert_eq!(decode(&label, &renamed), Ok(vec![ints(&[4])]));
}

#[test]
fn what_does_not_fit_is_an_error_that_names_the_feature() {
    let label = schema(&[("label", FeatureKind::Int64, Some((2, 8)))]);
    let image = schema(&[("image", FeatureKind::Bytes, Some((1, 4)))]);
    let text = schema(&[("text", FeatureKind::Bytes, None)]);
    let boxes = schema(&[("box", FeatureKind::Float, Some((1, 4)))]);
    let one = |name: &str, value: Vec<u8>| example(&[[key(name), value].concat()]);
    for (schema, message, error) in [
        (
            &label,
            one("label", packed_ints(&[1])),
            "feature \"label\" at byte 15 of the record: expected 2 values, found 1",
        ),
        (&label, one("label", plain_ints(&[1, 2, 3])), "expected 2 values, found 3"),
        (
            &label,
            one("other", packed_ints(&[1, 2])),
            "feature \"label\" at byte 0 of the record: expected 2 values, found 0",
        ),
        (&label, one("label", bytes(2, &[])), "expected 2 values, found 0"),
        (&label, one("label", packed_floats(&[1.0, 2.0])), "expected a list of int64, found a list of float"),
        (&label, one("label", value(3, &bytes(1, &[0x80]))), "varint at byte"),
        (&label, one("label", [packed_ints(&[1]), packed_ints(&[2])].concat()), "value of a feature at byte"),
        (
            &label,
            one("label", bytes(2, &[bytes(3, &[]), bytes(1, &[])].concat())),
            "list of a feature at byte",
        ),
        (&label, one("label", value(3, &[tag(1, 5), vec![0; 4]].concat())), "value of a int64 list"),
        (&image, one("image", strings(&[b"abc"])), "expected 4 bytes, found 3 bytes"),
        (&image, one("image", strings(&[b"abcd", b"efgh"])), "expected 1 values, found 2"),
        (&image, one("image", strings(&[])), "expected 1 values, found 0"),
        (
            &text,
            one("text", strings(&[b"a", b"b"])),
            "feature \"text\" at byte 14 of the record: expected one value, found several",
        ),
        (&boxes, one("box", value(2, &bytes(1, &[0; 5]))), "value of a float list"),
        (&boxes, number(1, 7), "Example: features at byte 0 of the record: expected a field with a length"),
        (&boxes, bytes(1, &number(1, 7)), "Example: feature at byte 2"),
        (&boxes, vec![0x0b], "found a group"),
        (&boxes, bytes(1, &bytes(1, &[0x0a, 200])), "expected"),
    ] {
        let found = decode(schema, &message).expect_err(error).to_string();
        assert!(found.contains(error), "{found} instead of {error}");
    }
}

#[test]
fn examples_are_found_in_any_container_that_is_said_to_hold_them() {
    let scratch = Scratch::new();
    let records = (0..100_i64).map(|number| {
        let text = format!("number {number}");
        let features = [
            [key("text"), strings(&[text.as_bytes()])].concat(),
            [key("label"), packed_ints(&[number, -number])].concat(),
        ];
        (format!("{number:08}").into_bytes(), example(&features))
    });
    let path = scratch.lmdb("data", &records.collect());
    let index = index(&open_as(&[&path], SchemaChoice::TfExample));
    let expected =
        complete(schema(&[("label", FeatureKind::Int64, Some((2, 8))), ("text", FeatureKind::Bytes, None)]));
    assert_eq!(index.schema(), &expected);
    let dataset = open_as(&[&path], SchemaChoice::TfExample);
    let record =
        dataset.read_columns(&index, SampleId(42), &DecodedUnits::default()).expect("readable").remove(0);
    assert_eq!(decode(&expected, &record), Ok(vec![ints(&[42, -42]), b"number 42".to_vec()]));

    let other = scratch.lmdb("other", &(0..3_u8).map(|number| (vec![number], vec![0xff; 9])).collect());
    let error =
        open_as(&[&other], SchemaChoice::TfExample).build_index(1, &|_| true).expect_err("no example");
    assert!(error.to_string().contains("sample 0, at offset"), "{error}");
}

#[test]
fn fields_have_the_shapes_of_their_features() {
    let fields = schema(&[
        ("a", FeatureKind::Bytes, Some((1, 9))),
        ("b", FeatureKind::Bytes, Some((2, 9))),
        ("c", FeatureKind::Float, Some((1, 4))),
        ("d", FeatureKind::Int64, Some((5, 8))),
        ("e", FeatureKind::Int64, None),
    ])
    .fields(&Summary::default());
    let found: Vec<_> = fields.into_iter().map(|field| (field.dtype, field.layout)).collect();
    let expected = [
        (Dtype::Uint8, Layout::Dense(vec![9])),
        (Dtype::Uint8, Layout::Dense(vec![2, 9])),
        (Dtype::Float32, Layout::Dense(vec![])),
        (Dtype::Int64, Layout::Dense(vec![5])),
        (Dtype::Int64, Layout::Ragged),
    ];
    assert_eq!(found, expected);
}

#[test]
fn damaged_messages_are_refused_or_decoded_within_bounds() {
    let schemas = [
        schema(&[
            ("box", FeatureKind::Float, Some((3, 4))),
            ("image", FeatureKind::Bytes, Some((1, 4))),
            ("label", FeatureKind::Int64, Some((2, 8))),
        ]),
        schema(&[
            ("box", FeatureKind::Float, None),
            ("image", FeatureKind::Bytes, None),
            ("label", FeatureKind::Int64, None),
        ]),
    ];
    let message = example(&[
        [key("label"), packed_ints(&[-1, 300])].concat(),
        [key("image"), strings(&[b"abcd"])].concat(),
        [key("box"), plain_floats(&[1.0, 2.0, 3.0])].concat(),
    ]);
    let lists = feature_lists(&[("steps", &[packed_ints(&[1]), packed_ints(&[2, 3])])]);
    let sequence = [message.clone(), lists].concat();
    let (mut random, mut refused) = (Random(1), 0);
    for _ in 0..6000 {
        let mut damaged = if random.below(4) == 0 { sequence.clone() } else { message.clone() };
        for _ in 0..=random.below(3) {
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] =
                if random.below(2) == 0 { random.next() as u8 } else { damaged[at] ^ 1 << random.below(8) };
        }
        damaged.truncate(if random.below(3) == 0 {
            random.below(damaged.len() as u64 + 1) as usize
        } else {
            damaged.len()
        });
        for schema in &schemas {
            match decode(schema, &damaged) {
                Ok(fields) => assert!(fields.iter().map(Vec::len).sum::<usize>() <= 8 * sequence.len()),
                Err(error) => {
                    assert!(error.offset <= damaged.len() as u64, "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!((1000..12_000).contains(&refused), "{refused}");
}

proptest! {
    #[test]
    fn numbers_come_back(values in proptest::collection::vec(any::<i64>(), 1..50), reals in proptest::collection::vec(any::<f32>(), 1..50)) {
        let schema = schema(&[
            ("i", FeatureKind::Int64, Some((values.len() as u64, 8))),
            ("r", FeatureKind::Float, Some((reals.len() as u64, 4))),
        ]);
        for (first, second) in [(packed_floats(&reals), plain_ints(&values)), (plain_floats(&reals), packed_ints(&values))] {
            let message = example(&[[key("r"), first].concat(), [second, key("i")].concat()]);
            prop_assert_eq!(decode(&schema, &message), Ok(vec![ints(&values), floats(&reals)]));
        }
    }
}
