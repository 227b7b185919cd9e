//! Any bytes as a `tf.train.Example` or an image record, with fields of every kind: decoded within bounds, or refused.
#![no_main]

use forebay_format::{
    ExampleSchema, Feature, FeatureKind, FieldOut, ImageRecordSchema, Labels, Schema, Summary, Values,
};
use forebay_types::Layout;
use libfuzzer_sys::fuzz_target;

fn decode(schema: &Schema, record: &[u8]) {
    let fields = schema.fields(&Summary::default());
    let mut dense: Vec<Vec<u8>> =
        fields.iter().map(|field| vec![0; field.sample_bytes().unwrap_or(0) as usize]).collect();
    // A batch has room for eight bytes of every byte of a record.
    let most = 8 * record.len();
    let mut takes = vec![|bytes: &[u8]| assert!(bytes.len() <= most); fields.len()];
    let mut out: Vec<FieldOut<'_>> = dense
        .iter_mut()
        .zip(&mut takes)
        .zip(&fields)
        .map(|((dense, take), field)| match field.layout {
            Layout::Dense(_) => FieldOut::Dense(dense),
            Layout::Ragged => FieldOut::Ragged(take),
        })
        .collect();
    if let Err(error) = schema.decode(&[record], &mut out) {
        assert!(error.offset <= record.len() as u64);
    }
}

fuzz_target!(|record: &[u8]| {
    let feature = |name: &str, kind, values| Feature { name: name.to_owned(), kind, values };
    let fixed = |count, value_bytes| Values::Fixed { count, value_bytes };
    for complete in [false, true] {
        let schema = ExampleSchema {
            features: vec![
                feature("a", FeatureKind::Bytes, fixed(1, 4)),
                feature("b", FeatureKind::Bytes, Values::Varying),
                feature("c", FeatureKind::Float, fixed(2, 4)),
                feature("d", FeatureKind::Float, Values::Varying),
                feature("e", FeatureKind::Int64, fixed(3, 8)),
                feature("f", FeatureKind::Int64, Values::Varying),
            ],
            complete,
        };
        decode(&Schema::TfExample(schema), record);
    }
    for labels in [Labels::One, Labels::Fixed(2), Labels::Varying] {
        for image_bytes in [None, Some(7)] {
            decode(&Schema::ImageRecord(ImageRecordSchema { labels, image_bytes }), record);
        }
    }
});
