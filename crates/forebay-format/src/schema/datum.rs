//! Caffe's `Datum` message: an image of channels x height x width, and a label.
//!
//! Fields of the message: 1 channels, 2 height, 3 width (varints), 4 data (bytes), 5 label (varint;
//! a negative one takes ten bytes), 6 `float_data` (packed or not), 7 encoded (the data are an
//! image file). Of a field that occurs twice the last one counts; one that is absent is zero; one
//! that is none of these, or of another type, is refused if it holds something. Source: observation
//! of files written by protobuf.

use std::cell::RefCell;

use forebay_types::{Dtype, Field, Layout};
use serde::{Deserialize, Serialize};

use super::wire::{self, Message, Piece, ReadRecord, Unknown, Windowed};
use super::{FieldOut, Misfit};
use crate::SchemaError;

/// Most elements of an image.
const MAX_ELEMENTS: u64 = 1 << 32;

/// What all records of a dataset of `Datum` messages have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DatumSchema {
    /// Encoding of the pixels.
    pub pixels: Pixels,
    /// Channels, height and width; zero where the pixels are encoded.
    pub shape: [u32; 3],
}

/// Encoding of the pixels of a `Datum`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pixels {
    /// One byte per element, in `data`.
    Uint8,
    /// `float_data`.
    Float32,
    /// An image file, in `data`.
    Encoded,
}

/// The fields of a `Datum`, without its pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Datum {
    shape: [u64; 3],
    /// Where `data` lies in the message \[bytes\].
    data_at: u64,
    data_bytes: u64,
    floats: u64,
    label: i64,
    encoded: bool,
}

impl Datum {
    /// Parses a message. Calls `float` with the range of each run of floats \[bytes\] and their
    /// number.
    fn parse(
        message: &mut impl Message,
        unknown: &Unknown<'_>,
        mut float: impl FnMut(u64, u64) -> Result<(), SchemaError>,
    ) -> Result<Self, SchemaError> {
        let mut datum = Self::default();
        wire::walk(message, |number, piece, at| {
            match (number, piece) {
                (1..=3, Piece::Varint(extent)) => datum.shape[number as usize - 1] = extent,
                (4, Piece::Bytes { at, length }) => (datum.data_at, datum.data_bytes) = (at, length),
                // The label is an int32 in the file: what is above the low 32 bits is its sign.
                (5, Piece::Varint(label)) => datum.label = i64::from(label as i32),
                (6, Piece::Fixed32 { at }) => {
                    float(at, 1)?;
                    datum.floats += 1;
                }
                (6, Piece::Bytes { at, length }) => {
                    if length % 4 != 0 {
                        return Err(SchemaError::new("float_data", at, "a multiple of 4 bytes", length));
                    }
                    float(at, length / 4)?;
                    datum.floats += length / 4;
                }
                (7, Piece::Varint(encoded)) => datum.encoded = encoded != 0,
                _ => unknown.meet("Datum", number, piece, at)?,
            }
            Ok(())
        })?;
        Ok(datum)
    }

    /// The schema that this message fits, if it is plausible at all.
    fn schema(&self) -> Result<DatumSchema, SchemaError> {
        if self.encoded {
            return if self.data_bytes > 0 {
                Ok(DatumSchema { pixels: Pixels::Encoded, shape: [0; 3] })
            } else {
                Err(SchemaError::new("Datum: data", 0, "an encoded image", "0 bytes"))
            };
        }
        let [channels, height, width] = self.shape;
        let elements = channels.checked_mul(height).and_then(|plane| plane.checked_mul(width));
        let elements =
            elements.filter(|elements| (1..=MAX_ELEMENTS).contains(elements)).ok_or_else(|| {
                let found = format!("{channels} x {height} x {width}");
                SchemaError::new(
                    "Datum: shape",
                    0,
                    format!("channels x height x width of 1 to {MAX_ELEMENTS}"),
                    found,
                )
            })?;
        let pixels = match (self.data_bytes, self.floats) {
            (bytes, 0) if bytes == elements => Pixels::Uint8,
            (0, floats) if floats == elements => Pixels::Float32,
            (bytes, floats) => {
                let expected = format!("{elements} for {channels} x {height} x {width}");
                let found = format!("{bytes} bytes in data and {floats} in float_data");
                return Err(SchemaError::new("Datum: elements", self.data_at, expected, found));
            }
        };
        Ok(DatumSchema { pixels, shape: self.shape.map(|extent| extent as u32) })
    }

    /// The part of the message that does not fit `schema`, if there is one.
    #[inline]
    fn check(&self, schema: &DatumSchema) -> Result<(), SchemaError> {
        let encoded = schema.pixels == Pixels::Encoded;
        if self.encoded != encoded {
            let kind = |encoded| if encoded { "an encoded image" } else { "plain elements" };
            return Err(SchemaError::new("Datum: encoded", 0, kind(encoded), kind(self.encoded)));
        }
        if encoded {
            return Ok(());
        }
        if self.shape != schema.shape.map(u64::from) {
            let text = |[channels, height, width]: [u64; 3]| format!("{channels} x {height} x {width}");
            let (expected, found) = (text(schema.shape.map(u64::from)), text(self.shape));
            return Err(SchemaError::new("Datum: shape", 0, expected, found));
        }
        let wanted = match schema.pixels {
            Pixels::Float32 => (0, schema.elements()),
            Pixels::Uint8 | Pixels::Encoded => (schema.elements(), 0),
        };
        let found = (self.data_bytes, self.floats);
        if found != wanted {
            let text =
                |(bytes, floats): (u64, u64)| format!("{bytes} bytes in data and {floats} in float_data");
            return Err(SchemaError::new("Datum: elements", self.data_at, text(wanted), text(found)));
        }
        Ok(())
    }
}

impl DatumSchema {
    /// Number of elements of an image; 0 where the pixels are encoded.
    fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, extent| product.saturating_mul(u64::from(*extent)))
    }

    /// The fields `image` and `label`.
    pub(super) fn fields(&self) -> Vec<Field> {
        let shape = self.shape.map(u64::from).to_vec();
        let (dtype, layout) = match self.pixels {
            Pixels::Uint8 => (Dtype::Uint8, Layout::Dense(shape)),
            Pixels::Float32 => (Dtype::Float32, Layout::Dense(shape)),
            Pixels::Encoded => (Dtype::Uint8, Layout::Ragged),
        };
        vec![Field::new("image", dtype, layout), Field::new("label", Dtype::Int64, Layout::Dense(vec![]))]
    }

    /// Checks a schema that a file claims for records of at most this many bytes.
    pub(super) fn check(&self, longest_record_bytes: u64) -> Result<(), String> {
        let sound = match self.pixels {
            Pixels::Encoded => self.shape == [0; 3],
            Pixels::Uint8 => (1..=longest_record_bytes).contains(&self.elements()),
            Pixels::Float32 => (1..=longest_record_bytes / 4).contains(&self.elements()),
        };
        if sound { Ok(()) } else { Err(format!("{self:?}")) }
    }

    /// Decodes a message.
    pub(super) fn decode(
        &self,
        mut record: &[u8],
        image: &mut FieldOut<'_>,
        label: &mut FieldOut<'_>,
    ) -> Result<(), SchemaError> {
        let message = record;
        let mut pixels = match image {
            FieldOut::Dense(pixels) => Some(&mut **pixels),
            FieldOut::Ragged(_) => None,
        };
        let mut filled = 0;
        let datum = Datum::parse(&mut record, &Unknown::Refuse, |at, count| {
            // Floats go straight to their destination; the final count shows whether there are too
            // many.
            let bytes = &message[at as usize..(at + 4 * count) as usize];
            if let Some(out) = pixels.as_deref_mut().and_then(|out| out.get_mut(filled..filled + bytes.len()))
            {
                for (out, float) in out.chunks_exact_mut(4).zip(bytes.chunks_exact(4)) {
                    let bits = u32::from_le_bytes([float[0], float[1], float[2], float[3]]);
                    out.copy_from_slice(&bits.to_ne_bytes());
                }
            }
            filled += bytes.len();
            Ok(())
        })?;
        datum.check(self)?;
        let data = &message[datum.data_at as usize..(datum.data_at + datum.data_bytes) as usize];
        let image_bytes = if self.pixels == Pixels::Float32 { filled } else { data.len() };
        match image {
            FieldOut::Dense(out) if out.len() != image_bytes => {
                return Err(SchemaError::new("Datum: image", 0, format!("{} bytes", out.len()), image_bytes));
            }
            FieldOut::Dense(out) if self.pixels != Pixels::Float32 => out.copy_from_slice(data),
            FieldOut::Dense(_) => {}
            FieldOut::Ragged(take) => take(data),
        }
        let bytes = datum.label.to_ne_bytes();
        match label {
            FieldOut::Dense(out) if out.len() == bytes.len() => out.copy_from_slice(&bytes),
            FieldOut::Dense(out) => {
                return Err(SchemaError::new("Datum: label", 0, format!("{} bytes", out.len()), bytes.len()));
            }
            FieldOut::Ragged(take) => take(&bytes),
        }
        Ok(())
    }
}

/// Probes a record of `bytes` bytes without reading its pixels: the schema that it has.
pub(crate) fn probe(bytes: u64, read: ReadRecord<'_>) -> Result<Result<DatumSchema, Misfit>, crate::Error> {
    let mut windowed = Windowed::new(bytes, read);
    let extension = RefCell::new(None);
    let parsed = Datum::parse(&mut windowed, &Unknown::Note(&extension), |_, _| Ok(()));
    let found = parsed.and_then(|datum| datum.schema());
    match (windowed.failure, found, extension.into_inner()) {
        (Some(failure), _, _) => Err(failure),
        (None, Ok(_), Some(error)) => Ok(Err(Misfit::Extended(error))),
        (None, Ok(schema), None) => Ok(Ok(schema)),
        (None, Err(error), _) => Ok(Err(Misfit::Other(error))),
    }
}

/// Why a record of schema `found` does not fit schema `wanted`.
pub(crate) fn difference(wanted: &DatumSchema, found: &DatumSchema) -> SchemaError {
    let text = |schema: &DatumSchema| {
        let [channels, height, width] = schema.shape;
        match schema.pixels {
            Pixels::Uint8 => format!("{channels} x {height} x {width} uint8"),
            Pixels::Float32 => format!("{channels} x {height} x {width} float32"),
            Pixels::Encoded => "an encoded image".to_owned(),
        }
    };
    SchemaError::new("Datum: image", 0, text(wanted), text(found))
}
