//! `tf.train.Example`: decoded as protobuf would, or refused; never other values.

mod support {
    pub mod dataset;
    pub mod datum;
    pub mod example_writer;
    pub mod lmdb_writer;
}

use forebay_format::{
    ExampleSchema, Feature, FeatureKind, FieldOut, Schema, SchemaChoice, SchemaError, Summary, Values,
};
use forebay_types::{Dtype, Layout, SampleId};
use proptest::prelude::*;
use support::dataset::{Scratch, index, open_as};
use support::datum::{bytes, number, tag};
use support::example_writer::{
    example, key, packed_floats, packed_ints, plain_floats, plain_ints, strings, value,
};
use support::lmdb_writer::Random;

/// Number and length of the values of a feature that has always as many \[bytes\].
type Fixed = Option<(u64, u64)>;

fn schema(features: &[(&str, FeatureKind, Fixed)]) -> Schema {
    let features = features.iter().map(|(name, kind, fixed)| Feature {
        name: (*name).to_owned(),
        kind: *kind,
        values: fixed.map_or(Values::Varying, |(count, value_bytes)| Values::Fixed { count, value_bytes }),
    });
    Schema::TfExample(ExampleSchema { features: features.collect() })
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
    let unknown =
        [number(9, 5), bytes(8, b"skip"), [tag(7, 5), vec![0; 4]].concat(), [tag(6, 1), vec![0; 8]].concat()]
            .concat();
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
    let expected = schema(&[("label", FeatureKind::Int64, Some((2, 8))), ("text", FeatureKind::Bytes, None)]);
    assert_eq!(index.schema(), &expected);
    let dataset = open_as(&[&path], SchemaChoice::TfExample);
    let record = dataset.read_columns(&index, SampleId(42)).expect("readable").remove(0);
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
    let (mut random, mut refused) = (Random(1), 0);
    for _ in 0..6000 {
        let mut damaged = message.clone();
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
                Ok(fields) => assert!(fields.iter().map(Vec::len).sum::<usize>() <= 8 * message.len()),
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
