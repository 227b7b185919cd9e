//! Schemas: how the bytes of a record become fields.
//!
//! A schema is found once, when the index is built ([`detect`](datum::detect) looks at a few records), and kept in the
//! sidecar. Decoding is a pure function of the record's bytes; it copies pixels once and allocates nothing.

pub(crate) mod datum;
mod wire;

use std::str::FromStr;

use forebay_types::{Dtype, Field, Layout};
use serde::{Deserialize, Serialize};

pub use datum::{DatumSchema, Pixels};

use crate::{Error, Summary};

/// Which schema the caller wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchemaChoice {
    /// The one that fits: `CaffeDatum` if records parse as such, else `Raw`.
    #[default]
    Auto,
    /// Records as they are.
    Raw,
    /// Records are Caffe's `Datum` messages.
    CaffeDatum,
}

impl SchemaChoice {
    /// All choices and their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("auto", Self::Auto), ("raw", Self::Raw), ("caffe-datum", Self::CaffeDatum)];

    /// The name, as in `schema="caffe-datum"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Raw => "raw",
            Self::CaffeDatum => "caffe-datum",
        }
    }
}

impl FromStr for SchemaChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, choice)| *choice).ok_or_else(|| {
            Error::Usage {
                message: format!("there is no schema {name:?}"),
                hint: format!("schemas: {}", Self::ALL.map(|(known, _)| known).join(", ")),
            }
        })
    }
}

/// How the bytes of a record become fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schema {
    /// One field `data`: the record's bytes.
    Raw,
    /// Fields `image` and `label` of Caffe's `Datum` message.
    CaffeDatum(DatumSchema),
}

/// Where a decoded field goes.
pub enum FieldOut<'a> {
    /// The sample's place in a batch of equal samples, exactly as long as the field says.
    Dense(&'a mut [u8]),
    /// Takes the bytes of a field whose length varies; called once.
    Ragged(&'a mut dyn FnMut(&[u8])),
}

/// A record that does not fit its schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset} of the record: expected {expected}, found {found}")]
pub struct SchemaError {
    /// Which thing is wrong.
    pub what: String,
    /// Where in the record \[bytes\].
    pub offset: u64,
    /// What the schema has there.
    pub expected: String,
    /// What the record has there.
    pub found: String,
}

impl SchemaError {
    #[allow(clippy::needless_pass_by_value, reason = "callers pass numbers and texts alike")]
    pub(crate) fn new(
        what: impl Into<String>,
        offset: u64,
        expected: impl ToString,
        found: impl ToString,
    ) -> Self {
        Self { what: what.into(), offset, expected: expected.to_string(), found: found.to_string() }
    }
}

impl Schema {
    /// The name, as in [`SchemaChoice::name`].
    pub fn name(&self) -> &'static str {
        match self {
            Self::Raw => SchemaChoice::Raw.name(),
            Self::CaffeDatum(_) => SchemaChoice::CaffeDatum.name(),
        }
    }

    /// Whether the bytes of the columns are the bytes of the fields, so that [`Schema::decode`] only copies.
    pub fn is_identity(&self) -> bool {
        matches!(self, Self::Raw)
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
                vec![Field { name: "data".into(), dtype: Dtype::Uint8, layout }]
            }
            Self::CaffeDatum(datum) => datum.fields(),
        }
    }

    /// Decodes one sample. `columns` and `out` have one element per column and per field, in order.
    pub fn decode(&self, columns: &[&[u8]], out: &mut [FieldOut<'_>]) -> Result<(), SchemaError> {
        match (self, columns, out) {
            (Self::Raw, [record], [field]) => match field {
                FieldOut::Dense(out) if out.len() == record.len() => out.copy_from_slice(record),
                FieldOut::Dense(out) => {
                    return Err(SchemaError::new("length", 0, format!("{} bytes", out.len()), record.len()));
                }
                FieldOut::Ragged(take) => take(record),
            },
            (Self::CaffeDatum(datum), [record], [image, label]) => datum.decode(record, image, label)?,
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

    /// Says what is wrong with a schema that a file claims.
    pub(crate) fn check(&self, summary: &Summary) -> Result<(), String> {
        match self {
            Self::Raw => Ok(()),
            Self::CaffeDatum(datum) => datum.check(summary.longest_record_bytes),
        }
    }
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
        assert_eq!(error.hint(), Some("schemas: auto, raw, caffe-datum"));
    }
}
