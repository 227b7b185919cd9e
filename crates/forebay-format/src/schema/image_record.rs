//! `MXNet`'s image records: a header with label and id before the image, as `im2rec` and
//! `recordio.pack` write them.
//!
//! The header is `u32 flag`, `f32 label`, `u64 id`, `u64 id2`, little-endian. With flag 0 the label
//! is that of the header; with flag *n* it is ignored and *n* labels (`f32`) follow. The image
//! comes last and is delivered unchanged. Fields: `label`, `id`, `data`. A record whose `id2` is
//! not 0 is refused, since no field would hold it. Source: `mxnet/recordio.py`, and observation of
//! its output.

use forebay_types::{Dtype, Field, Layout};
use serde::{Deserialize, Serialize};

use super::wire::ReadRecord;
use super::{FieldOut, MIN_ARRAY_BYTES, Misfit};
use crate::{Error, SchemaError};

/// Length of the header \[bytes\].
const HEADER_BYTES: usize = 24;

/// Offset of the second id in a record \[bytes\].
const SECOND_ID_AT: u64 = 16;

/// Most labels that a guess believes in: boxes of a hundred objects are a few thousand numbers.
const MAX_LABELS: u32 = 1 << 16;

/// What all image records of a dataset have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageRecordSchema {
    /// The labels.
    pub labels: Labels,
    /// Length of the image \[bytes\]; `None` where it varies.
    pub image_bytes: Option<u64>,
}

/// The labels of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Labels {
    /// One, in the header.
    One,
    /// A list of this many labels.
    Fixed(u32),
    /// A list whose length varies.
    Varying,
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RecordHeader {
    flag: u32,
    label: f32,
    id: u64,
    id2: u64,
}

impl RecordHeader {
    fn parse(head: &[u8; HEADER_BYTES]) -> Self {
        let u32_at = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Self { flag: u32_at(0), label: f32::from_bits(u32_at(4)), id: u64_at(8), id2: u64_at(16) }
    }

    /// Refuses a second id, which no field has: writers leave it 0.
    fn check_second_id(&self) -> Result<(), SchemaError> {
        if self.id2 == 0 {
            return Ok(());
        }
        Err(SchemaError::new("IRHeader: id2", SECOND_ID_AT, "0, as the schema has no such field", self.id2))
    }

    /// Number of bytes before the image, in a record of `bytes` bytes.
    fn head_bytes(&self, bytes: u64) -> Result<u64, SchemaError> {
        let head_bytes = HEADER_BYTES as u64 + 4 * u64::from(self.flag);
        if head_bytes <= bytes {
            return Ok(head_bytes);
        }
        let most = (bytes - HEADER_BYTES as u64) / 4;
        Err(SchemaError::new("IRHeader: number of labels", 0, format!("at most {most}"), self.flag))
    }
}

/// The error of a record that is too short.
fn too_short(bytes: u64) -> SchemaError {
    SchemaError::new("IRHeader", 0, format!("{HEADER_BYTES} bytes"), format!("{bytes} bytes"))
}

impl ImageRecordSchema {
    /// The fields `label`, `id` and `data`.
    pub(super) fn fields(&self) -> Vec<Field> {
        let labels = match self.labels {
            Labels::One => Layout::Dense(vec![]),
            Labels::Fixed(count) => Layout::Dense(vec![u64::from(count)]),
            Labels::Varying => Layout::Ragged,
        };
        let image = self.image_bytes.map_or(Layout::Ragged, |bytes| Layout::Dense(vec![bytes]));
        vec![
            Field::new("label", Dtype::Float32, labels),
            Field::new("id", Dtype::Uint64, Layout::Dense(vec![])),
            Field::new("data", Dtype::Uint8, image),
        ]
    }

    /// Checks a schema that a file claims for records of at most this many bytes.
    pub(super) fn check(&self, longest_record_bytes: u64) -> Result<(), String> {
        let labels_bytes = match self.labels {
            Labels::One | Labels::Varying => 0,
            Labels::Fixed(count) => 4 * u64::from(count),
        };
        let bytes = self.image_bytes.unwrap_or(0).checked_add(HEADER_BYTES as u64 + labels_bytes);
        let sound = self.labels != Labels::Fixed(0)
            && self.image_bytes != Some(0)
            && bytes.is_some_and(|bytes| bytes <= longest_record_bytes);
        if sound { Ok(()) } else { Err(format!("{self:?}")) }
    }

    /// Decodes a record.
    pub(super) fn decode(
        &self,
        record: &[u8],
        label: &mut FieldOut<'_>,
        id: &mut FieldOut<'_>,
        image: &mut FieldOut<'_>,
    ) -> Result<(), SchemaError> {
        let Some(head) = record.first_chunk() else { return Err(too_short(record.len() as u64)) };
        let header = RecordHeader::parse(head);
        header.check_second_id()?;
        let (head, data) = record.split_at(header.head_bytes(record.len() as u64)? as usize);
        let count = if self.labels == Labels::One { 0 } else { header.flag };
        if header.flag != count || matches!(self.labels, Labels::Fixed(fixed) if fixed != count) {
            let expected = match self.labels {
                Labels::Fixed(fixed) => fixed,
                Labels::One | Labels::Varying => 0,
            };
            return Err(SchemaError::new("IRHeader: number of labels", 0, expected, header.flag));
        }
        // Of a list that varies, a record with the label in its header has one.
        if header.flag == 0 {
            put("label", 4, &header.label.to_ne_bytes(), label)?;
        } else if cfg!(target_endian = "little") {
            put("label", HEADER_BYTES, &head[HEADER_BYTES..], label)?;
        } else {
            let swapped: Vec<u8> = head[HEADER_BYTES..]
                .chunks_exact(4)
                .flat_map(|float| u32::from_le_bytes([float[0], float[1], float[2], float[3]]).to_ne_bytes())
                .collect();
            put("label", HEADER_BYTES, &swapped, label)?;
        }
        put("id", 8, &header.id.to_ne_bytes(), id)?;
        put("data", head.len(), data, image)
    }
}

/// Hands the bytes of a field over.
fn put(name: &str, at: usize, bytes: &[u8], out: &mut FieldOut<'_>) -> Result<(), SchemaError> {
    match out {
        FieldOut::Dense(out) if out.len() == bytes.len() => out.copy_from_slice(bytes),
        FieldOut::Dense(out) => {
            let (expected, found) = (format!("{} bytes", out.len()), format!("{} bytes", bytes.len()));
            return Err(SchemaError::new(format!("image record: {name}"), at as u64, expected, found));
        }
        FieldOut::Ragged(take) => take(bytes),
    }
    Ok(())
}

/// What probing some records gave.
#[derive(Debug, Default)]
pub(crate) struct Inference {
    /// Least and greatest number of labels, and length of the image \[bytes\].
    seen: Option<((u32, u32), (u64, u64))>,
}

impl Inference {
    /// Probes a record of `bytes` bytes; reads its header. With `doubt`, refuses headers that are
    /// possible but were never seen.
    pub(crate) fn probe(
        &mut self,
        bytes: u64,
        doubt: bool,
        read: ReadRecord<'_>,
    ) -> Result<Result<(), Misfit>, Error> {
        if bytes < HEADER_BYTES as u64 {
            return Ok(Err(Misfit::Other(too_short(bytes))));
        }
        let mut head = [0; HEADER_BYTES];
        read(0, &mut head)?;
        let header = RecordHeader::parse(&head);
        let image_bytes = match header.head_bytes(bytes) {
            Ok(head_bytes) => bytes - head_bytes,
            Err(error) => return Ok(Err(Misfit::Other(error))),
        };
        let likely = header.flag <= MAX_LABELS
            && header.label.is_finite()
            && (header.flag == 0 || header.label == 0.0);
        if doubt && !likely {
            return Ok(Err(Misfit::Other(SchemaError::new(
                "IRHeader",
                0,
                "a likely one",
                format!("{header:?}"),
            ))));
        }
        if let Err(error) = header.check_second_id() {
            return Ok(Err(Misfit::Other(error)));
        }
        let ((fewest, most), (shortest, longest)) =
            self.seen.unwrap_or(((header.flag, header.flag), (image_bytes, image_bytes)));
        self.seen = Some((
            (fewest.min(header.flag), most.max(header.flag)),
            (shortest.min(image_bytes), longest.max(image_bytes)),
        ));
        Ok(Ok(()))
    }

    /// The schema, if any record was probed.
    pub(crate) fn schema(&self) -> Option<ImageRecordSchema> {
        let ((fewest, most), (shortest, longest)) = self.seen?;
        let labels = match (fewest, most) {
            (0, 0) => Labels::One,
            (fewest, most) if fewest == most => Labels::Fixed(most),
            _ => Labels::Varying,
        };
        // Images that are files differ in length.
        let equal = shortest == longest && longest >= MIN_ARRAY_BYTES;
        Some(ImageRecordSchema { labels, image_bytes: equal.then_some(longest) })
    }
}
