//! Schemas: how the bytes of a record become fields.
//!
//! A schema is inferred once, when the index is built ([`infer`] probes a few records), and kept in
//! the sidecar. Decoding is a pure function of the record's bytes; it copies pixels once and
//! allocates nothing.

pub(crate) mod datum;
pub(crate) mod example;
pub(crate) mod image_record;
pub(crate) mod infer;
mod wire;

use forebay_types::{Dtype, Field, Layout};
use serde::{Deserialize, Serialize};

pub(crate) use wire::ReadRecord;

pub use datum::{DatumSchema, Pixels};
pub use example::{ExampleSchema, Feature, FeatureKind, Values};
pub use image_record::{ImageRecordSchema, Labels};

use crate::{SchemaChoice, SchemaError, Summary};

/// Least length from which on byte strings of equal length are taken for arrays \[bytes\].
///
/// Names and paths are shorter, and of equal length by accident; encoded images differ in length.
/// Values that are not taken for an array are a ragged field, which is never wrong.
const MIN_ARRAY_BYTES: u64 = 256;

/// How the bytes of a record become fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schema {
    /// One field `data`: the record's bytes.
    Raw,
    /// Fields `image` and `label` of Caffe's `Datum` message.
    CaffeDatum(DatumSchema),
    /// Each column is a field; its bytes are the field's.
    Fields(Vec<Field>),
    /// One field per feature of `tf.train.Example`.
    TfExample(ExampleSchema),
    /// Fields `label`, `id` and `data` of an image record.
    ImageRecord(ImageRecordSchema),
}

/// Where a decoded field goes.
pub enum FieldOut<'a> {
    /// The sample's place in a batch of equal samples, exactly as long as the field.
    Dense(&'a mut [u8]),
    /// Takes the bytes of a field whose length varies; called once.
    Ragged(&'a mut dyn FnMut(&[u8])),
}

/// The field of records that are opaque.
pub(crate) fn opaque_field() -> Field {
    Field::new("data", Dtype::Uint8, Layout::Ragged)
}

/// Why a probed record is not of a schema.
#[derive(Debug)]
pub(crate) enum Misfit {
    /// It is something else.
    Other(SchemaError),
    /// It is of the schema, and holds more than the schema has: decoding would drop that, and bytes
    /// are not what was written.
    Extended(SchemaError),
}

impl Misfit {
    /// What does not fit.
    pub(crate) fn into_error(self) -> SchemaError {
        match self {
            Self::Other(error) | Self::Extended(error) => error,
        }
    }
}

impl Schema {
    /// The name, as in [`SchemaChoice::name`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::Raw => SchemaChoice::Raw.name(),
            Self::CaffeDatum(_) => SchemaChoice::CaffeDatum.name(),
            Self::Fields(_) => "fields",
            Self::TfExample(_) => SchemaChoice::TfExample.name(),
            Self::ImageRecord(_) => SchemaChoice::ImageRecord.name(),
        }
    }

    /// Whether the columns are the fields byte for byte, so that [`Schema::decode`] only copies.
    pub fn is_identity(&self) -> bool {
        matches!(self, Self::Raw | Self::Fields(_))
    }

    /// The fields of a sample of a dataset with this summary.
    pub fn fields(&self, summary: &Summary) -> Vec<Field> {
        match self {
            Self::Raw => {
                let Summary { shortest_record_bytes, longest_record_bytes, .. } = *summary;
                let layout = if shortest_record_bytes == longest_record_bytes && longest_record_bytes > 0 {
                    Layout::Dense(vec![longest_record_bytes])
                } else {
                    Layout::Ragged
                };
                vec![Field::new("data", Dtype::Uint8, layout)]
            }
            Self::CaffeDatum(datum) => datum.fields(),
            Self::Fields(fields) => fields.clone(),
            Self::TfExample(example) => example.fields(),
            Self::ImageRecord(image) => image.fields(),
        }
    }

    /// Decodes one sample. `columns` and `out` have one element per column and per field, in order.
    pub fn decode(&self, columns: &[&[u8]], out: &mut [FieldOut<'_>]) -> Result<(), SchemaError> {
        match (self, columns, out) {
            (Self::Raw, [record], [field]) => self.copy_column(0, record, field)?,
            (Self::Fields(fields), columns, out)
                if fields.len() == columns.len() && columns.len() == out.len() =>
            {
                for (number, (column, field)) in columns.iter().zip(out).enumerate() {
                    self.copy_column(number, column, field)?;
                }
            }
            (Self::CaffeDatum(datum), [record], [image, label]) => datum.decode(record, image, label)?,
            (Self::TfExample(example), [record], out) if out.len() == example.features.len() => {
                example.decode(record, out)?;
            }
            (Self::ImageRecord(image), [record], [label, id, data]) => {
                image.decode(record, label, id, data)?;
            }
            (_, columns, out) => {
                panic!(
                    "{} has one column and its fields, not {} and {}",
                    self.name(),
                    columns.len(),
                    out.len()
                )
            }
        }
        Ok(())
    }

    /// Copies the record of one column to its field, where the columns are the fields
    /// ([`Schema::is_identity`]).
    ///
    /// # Panics
    /// If the columns are not the fields.
    pub fn copy_column(
        &self,
        column: usize,
        record: &[u8],
        field: &mut FieldOut<'_>,
    ) -> Result<(), SchemaError> {
        match self {
            Self::Raw => copy(record, field, "length"),
            Self::Fields(fields) => {
                copy(record, field, &format!("length of field {:?}", fields[column].name))
            }
            _ => panic!("the columns of {} are not its fields", self.name()),
        }
    }

    /// Checks a schema that a file with this many columns claims.
    pub(crate) fn check(&self, summary: &Summary, columns: usize) -> Result<(), String> {
        let expected = if let Self::Fields(fields) = self { fields.len() } else { 1 };
        if columns != expected {
            return Err(format!("{columns} columns for a schema of {expected}"));
        }
        match self {
            Self::Raw => Ok(()),
            Self::CaffeDatum(datum) => datum.check(summary.longest_record_bytes),
            Self::Fields(fields) => check_fields(fields, summary.longest_record_bytes),
            Self::TfExample(example) => example.check(summary.longest_record_bytes),
            Self::ImageRecord(image) => image.check(summary.longest_record_bytes),
        }
    }
}

/// Copies a column unchanged.
fn copy(column: &[u8], field: &mut FieldOut<'_>, what: &str) -> Result<(), SchemaError> {
    match field {
        FieldOut::Dense(out) if out.len() == column.len() => out.copy_from_slice(column),
        FieldOut::Dense(out) => {
            return Err(SchemaError::new(what, 0, format!("{} bytes", out.len()), column.len()));
        }
        FieldOut::Ragged(take) => take(column),
    }
    Ok(())
}

/// Checks fields that a file claims, whose longest column has this many bytes.
fn check_fields(fields: &[Field], longest_bytes: u64) -> Result<(), String> {
    for (number, field) in fields.iter().enumerate() {
        let too_long = match field.layout {
            Layout::Ragged => false,
            Layout::Dense(_) => field.sample_bytes().is_none_or(|bytes| bytes > longest_bytes),
        };
        let repeated = fields[..number].iter().any(|other| other.name == field.name);
        // An element of another type of numpy's is a row of bytes.
        let rows = match &field.layout {
            Layout::Dense(shape) => shape.last().is_some_and(|bytes| *bytes > 0),
            Layout::Ragged => false,
        };
        let odd = field.numpy.is_some() && (field.dtype != Dtype::Uint8 || !rows);
        if too_long || repeated || odd {
            return Err(format!("field {field:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_records_of_one_size_are_dense_and_others_ragged() {
        let summary = |shortest_record_bytes, longest_record_bytes| Summary {
            shortest_record_bytes,
            longest_record_bytes,
            ..Summary::default()
        };
        assert_eq!(Schema::Raw.fields(&summary(7, 7))[0].layout, Layout::Dense(vec![7]));
        assert_eq!(Schema::Raw.fields(&summary(7, 8))[0].layout, Layout::Ragged);
        assert_eq!(Schema::Raw.fields(&summary(0, 0))[0].layout, Layout::Ragged, "samples of no bytes");
    }

    #[test]
    fn raw_decoding_copies_and_notices_other_lengths() {
        let mut out = [0; 3];
        Schema::Raw.decode(&[&[1, 2, 3]], &mut [FieldOut::Dense(&mut out)]).expect("the right length");
        assert_eq!(out, [1, 2, 3]);
        let error = Schema::Raw.decode(&[&[1, 2]], &mut [FieldOut::Dense(&mut out)]).expect_err("too short");
        assert_eq!(error.to_string(), "length at byte 0 of the record: expected 3 bytes, found 2");
        let mut taken = Vec::new();
        Schema::Raw
            .decode(&[&[]], &mut [FieldOut::Ragged(&mut |bytes| taken.push(bytes.len()))])
            .expect("any length");
        assert_eq!(taken, [0]);
    }

    #[test]
    fn schemas_are_known_by_name() {
        for (name, choice) in SchemaChoice::ALL {
            assert_eq!((name.parse::<SchemaChoice>().expect("known"), choice.name()), (choice, name));
        }
        let error = "caffe".parse::<SchemaChoice>().expect_err("unknown");
        assert_eq!(error.to_string(), "there is no schema \"caffe\"");
        assert_eq!(error.hint(), Some("schemas: auto, raw, caffe-datum, tf-example, image-record"));
    }
}
