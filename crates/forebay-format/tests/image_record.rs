//! Image records of `MXNet`: header and image, or an error.

use crate::support::record_writer::image_record as record;
use forebay_format::{FieldOut, ImageRecordSchema, Labels, Schema, SchemaError, Summary};
use forebay_types::Layout;

/// Labels, id and image of a record.
fn decode(
    labels: Labels,
    image_bytes: Option<u64>,
    record: &[u8],
) -> Result<(Vec<f32>, u64, Vec<u8>), SchemaError> {
    let schema = Schema::ImageRecord(ImageRecordSchema { labels, image_bytes });
    let fields = schema.fields(&Summary::default());
    let (mut dense, mut ragged) = (vec![Vec::new(); 3], vec![Vec::new(); 3]);
    for (dense, field) in dense.iter_mut().zip(&fields) {
        dense.resize(field.sample_bytes().unwrap_or(0) as usize, 0);
    }
    let mut takes: Vec<_> =
        ragged.iter_mut().map(|taken: &mut Vec<u8>| |bytes: &[u8]| taken.extend_from_slice(bytes)).collect();
    let mut out: Vec<FieldOut<'_>> = dense
        .iter_mut()
        .zip(&mut takes)
        .zip(&fields)
        .map(
            |((dense, take), field)| {
                if field.layout == Layout::Ragged { FieldOut::Ragged(take) } else { FieldOut::Dense(dense) }
            },
        )
        .collect();
    schema.decode(&[record], &mut out)?;
    let of = |number: usize| [dense[number].clone(), ragged[number].clone()].concat();
    let labels =
        of(0).chunks_exact(4).map(|float| f32::from_ne_bytes(float.try_into().expect("4"))).collect();
    Ok((labels, u64::from_ne_bytes(of(1).try_into().expect("8 bytes")), of(2)))
}

#[test]
fn labels_id_and_image_come_out() {
    let one = record(&[], 2.5, 77, b"image");
    assert_eq!(decode(Labels::One, None, &one), Ok((vec![2.5], 77, b"image".to_vec())));
    assert_eq!(decode(Labels::One, Some(5), &one), Ok((vec![2.5], 77, b"image".to_vec())));
    assert_eq!(decode(Labels::Varying, None, &one), Ok((vec![2.5], 77, b"image".to_vec())));
    let three = record(&[1.0, -2.0, 3.0], 0.0, u64::MAX, b"");
    assert_eq!(decode(Labels::Fixed(3), None, &three), Ok((vec![1.0, -2.0, 3.0], u64::MAX, vec![])));
    assert_eq!(decode(Labels::Varying, None, &three), Ok((vec![1.0, -2.0, 3.0], u64::MAX, vec![])));
}

#[test]
fn a_second_id_is_refused_as_no_field_would_hold_it() {
    let mut one = record(&[], 2.5, 77, b"image");
    one[16] = 3;
    let error = decode(Labels::One, None, &one).expect_err("a second id").to_string();
    let expected =
        "IRHeader: id2 at byte 16 of the record: expected 0, as the schema has no such field, found 3";
    assert_eq!(error, expected);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let three = record(&[1.0, 2.0, 3.0], 0.0, 1, b"image");
    for (labels, image_bytes, record, text) in [
        (Labels::One, None, &three[..], "number of labels at byte 0 of the record: expected 0, found 3"),
        (Labels::Fixed(2), None, &three, "expected 2, found 3"),
        (Labels::Fixed(3), Some(6), &three, "data at byte 36 of the record: expected 6 bytes, found 5 bytes"),
        (
            Labels::One,
            None,
            &three[..23],
            "IRHeader at byte 0 of the record: expected 24 bytes, found 23 bytes",
        ),
        (
            Labels::Fixed(3),
            None,
            &three[..35],
            "number of labels at byte 0 of the record: expected at most 2, found 3",
        ),
    ] {
        let error = decode(labels, image_bytes, record).expect_err(text).to_string();
        assert!(error.contains(text), "{error}");
    }
}
