//! Decoders of fields: what `forebay.open(decode=)` names, applied to the fields of a dataset.
//!
//! A decoder takes the bytes of a field as the schema yields them, and writes another field:
//! pixels, a number, an array of fixed shape, or the same bytes once they were checked. Index and
//! fingerprint do not depend on it, so orders and states do not either.

use std::collections::BTreeMap;

use forebay_format::{FieldOut, Schema, SchemaError};
use forebay_image::{ImageDecoder, ImageSpec, PixelType, SampleKey};
use forebay_types::{Dtype, Field, Layout};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// What becomes of the bytes of a field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum FieldDecoder {
    /// Pixels of a JPEG or PNG.
    Image(ImageSpec),
    /// Values of a fixed shape, in the byte order of the machine.
    Array {
        /// Type of an element.
        dtype: Dtype,
        /// Shape of a sample.
        shape: Vec<u64>,
    },
    /// A decimal integer.
    Int,
    /// A string of UTF-8; Python gets a `str`.
    Text,
    /// JSON; Python gets what its `json` makes of it.
    Json,
}

/// Threads of a rank that decode images, at most: each works on a batch of its own.
const MAX_DECODE_THREADS: usize = 16;

/// Threads of a rank that decode images: as many as it has cores; 0 where nothing is decoded.
pub(crate) fn decode_threads(decoders: &FieldDecoders, cores: usize) -> usize {
    if !decoders.values().any(|decoder| matches!(decoder, FieldDecoder::Image(_))) {
        return 0;
    }
    cores.clamp(1, MAX_DECODE_THREADS)
}

/// The decoders that a user asked for, by field.
pub type FieldDecoders = BTreeMap<String, FieldDecoder>;

/// What Python gets of the values of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Arrays.
    Array,
    /// A `str` for each sample.
    Text,
    /// What `json` makes of each sample.
    Json,
}

impl FieldDecoder {
    /// Checks the values.
    ///
    /// # Errors
    /// What was expected, and what was found.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Image(spec) => spec.check(),
            Self::Array { .. } if self.decoded("").sample_bytes().is_none_or(|bytes| bytes == 0) => {
                Err("shape=: expected 1 element or more, and fewer than 64 bits count".into())
            }
            Self::Array { .. } | Self::Int | Self::Text | Self::Json => Ok(()),
        }
    }

    /// The field that it writes.
    fn decoded(&self, name: &str) -> Field {
        match self {
            Self::Image(spec) => Field::new(name, image_dtype(spec), Layout::Dense(spec.shape().to_vec())),
            Self::Array { dtype, shape } => Field::new(name, *dtype, Layout::Dense(shape.clone())),
            Self::Int => Field::new(name, Dtype::Int64, Layout::Dense(Vec::new())),
            Self::Text | Self::Json => Field::new(name, Dtype::Uint8, Layout::Ragged),
        }
    }

    fn delivery(&self) -> Delivery {
        match self {
            Self::Text => Delivery::Text,
            Self::Json => Delivery::Json,
            _ => Delivery::Array,
        }
    }

    /// Decodes the bytes of a field.
    fn decode(
        &self,
        bytes: &[u8],
        key: SampleKey,
        images: &mut ImageDecoder,
        out: &mut FieldOut<'_>,
    ) -> Result<(), SchemaError> {
        let wrong = |what: &str, offset: usize, expected: &str, found: String| {
            let (what, expected) = (what.into(), expected.into());
            Err(SchemaError { what, offset: offset as u64, expected, found })
        };
        match (self, out) {
            (Self::Image(spec), FieldOut::Dense(out)) => {
                images.decode(bytes, spec, key, out).map_err(|error| SchemaError {
                    what: error.what,
                    offset: error.offset,
                    expected: error.expected,
                    found: error.found,
                })
            }
            (Self::Array { .. }, FieldOut::Dense(out)) => {
                if bytes.len() != out.len() {
                    let expected = format!("{} bytes", out.len());
                    return wrong("length of an array", 0, &expected, format!("{} bytes", bytes.len()));
                }
                out.copy_from_slice(bytes);
                Ok(())
            }
            (Self::Int, FieldOut::Dense(out)) => {
                let number = std::str::from_utf8(bytes).ok().and_then(|text| text.trim().parse::<i64>().ok());
                let Some(number) = number else {
                    return wrong("number", 0, "a decimal integer of 64 bits", shown(bytes));
                };
                out.copy_from_slice(&number.to_ne_bytes());
                Ok(())
            }
            (Self::Text, FieldOut::Ragged(append)) => {
                if let Err(error) = std::str::from_utf8(bytes) {
                    let at = error.valid_up_to();
                    return wrong("text", at, "UTF-8", shown(&bytes[at..]));
                }
                append(bytes);
                Ok(())
            }
            (Self::Json, FieldOut::Ragged(append)) => {
                if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
                    return wrong("JSON", 0, "a value (RFC 8259)", error.to_string());
                }
                if let Some((at, expected, found)) = beyond_python(bytes) {
                    return wrong("JSON", at, expected, found.to_owned());
                }
                append(bytes);
                Ok(())
            }
            _ => panic!("a decoder and the layout that it declares"),
        }
    }
}

fn image_dtype(spec: &ImageSpec) -> Dtype {
    match spec.dtype {
        PixelType::Uint8 => Dtype::Uint8,
        PixelType::Float16 => Dtype::Float16,
        PixelType::Float32 => Dtype::Float32,
    }
}

/// Where valid JSON is more than Python's `json` takes, what it takes, and what there is.
fn beyond_python(bytes: &[u8]) -> Option<(usize, &'static str, &'static str)> {
    const DEPTH: usize = 500;
    // `sys.get_int_max_str_digits()`
    const DIGITS: usize = 4300;
    let (mut depth, mut digits, mut in_string, mut is_escaped) = (0, 0, false, false);
    for (at, byte) in bytes.iter().enumerate() {
        if in_string {
            in_string = is_escaped || *byte != b'"';
            is_escaped = !is_escaped && *byte == b'\\';
            continue;
        }
        in_string = *byte == b'"';
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth > DEPTH {
            return Some((at, "lists and objects in at most 500 levels", "more levels"));
        }
        if digits > DIGITS {
            return Some((at, "numbers of at most 4,300 digits", "more digits"));
        }
    }
    None
}

/// The first bytes of a value, for messages.
fn shown(bytes: &[u8]) -> String {
    const SHOWN: usize = 20;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned();
    format!("{text:?}{}", if bytes.len() > SHOWN { "..." } else { "" })
}

/// The fields of a dataset with their decoders.
#[derive(Clone, Debug)]
pub struct Decoding {
    sources: Vec<Field>,
    fields: Vec<Field>,
    decoders: Vec<Option<FieldDecoder>>,
}

impl Decoding {
    /// Finds the field of each decoder. The decoders are [checked](FieldDecoder::check).
    ///
    /// # Errors
    /// If there is no such field, or if it is not bytes.
    pub fn new(sources: &[Field], decoders: &FieldDecoders) -> Result<Self, Error> {
        let wrong = |name: &str, message: String, hint: String| {
            let message = format!("decode= of field {name:?}: {message}");
            Err(Error::Options { message, hint })
        };
        for name in decoders.keys() {
            let Some(field) = sources.iter().find(|field| field.name == *name) else {
                let names: Vec<&str> = sources.iter().map(|field| field.name.as_str()).collect();
                let message = format!("expected one of {}; found no such field", names.join(", "));
                let hint = "fields= and decode= name the same fields".to_owned();
                return wrong(name, message, hint);
            };
            if !is_bytes(field) {
                let shape = match &field.layout {
                    Layout::Dense(shape) => format!("shape {shape:?}"),
                    Layout::Ragged => "varying length".into(),
                };
                let dtype = field.numpy.as_deref().unwrap_or(field.dtype.name());
                let message = format!("expected bytes (uint8 of one axis), found {dtype}, {shape}");
                return wrong(name, message, "it is no encoded field; leave it out of decode=".into());
            }
        }
        let decoder_of = |field: &Field| decoders.get(&field.name).cloned();
        let decoders: Vec<Option<FieldDecoder>> = sources.iter().map(decoder_of).collect();
        let decoded = |(field, decoder): (&Field, &Option<FieldDecoder>)| match decoder {
            Some(decoder) => decoder.decoded(&field.name),
            None => field.clone(),
        };
        let fields = sources.iter().zip(&decoders).map(decoded).collect();
        Ok(Self { sources: sources.to_vec(), fields, decoders })
    }

    /// The fields as they are delivered.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// What Python gets of each field.
    pub fn deliveries(&self) -> impl Iterator<Item = Delivery> {
        self.decoders.iter().map(|decoder| decoder.as_ref().map_or(Delivery::Array, FieldDecoder::delivery))
    }

    /// Whether no field has a decoder.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.decoders.iter().all(Option::is_none)
    }

    /// Decodes the records of a sample by `schema`, then each field by its decoder. `out` has one
    /// element per field, of the layout of [`Decoding::fields`].
    ///
    /// # Errors
    /// What is wrong, with the column that it is in.
    pub(crate) fn decode(
        &self,
        schema: &Schema,
        records: &[&[u8]],
        key: SampleKey,
        images: &mut ImageDecoder,
        out: &mut [FieldOut<'_>],
    ) -> Result<(), (usize, SchemaError)> {
        if schema.is_identity() {
            // The records are the fields, in place.
            return self.decode_columns(schema, records, key, images, out);
        }
        let mut encoded: Vec<Vec<u8>> = self
            .sources
            .iter()
            .zip(&self.decoders)
            .map(|(field, decoder)| match decoder {
                Some(_) => vec![0; field.sample_bytes().unwrap_or(0) as usize],
                None => Vec::new(),
            })
            .collect();
        {
            let mut appends: Vec<_> = Vec::with_capacity(out.len());
            let mut passed: Vec<Option<FieldOut<'_>>> = Vec::with_capacity(out.len());
            for (((field, decoder), encoded), out) in
                self.sources.iter().zip(&self.decoders).zip(&mut encoded).zip(&mut *out)
            {
                passed.push(match (decoder, &field.layout) {
                    (None, _) => Some(match out {
                        FieldOut::Dense(bytes) => FieldOut::Dense(bytes),
                        FieldOut::Ragged(append) => FieldOut::Ragged(append),
                    }),
                    (Some(_), Layout::Dense(_)) => Some(FieldOut::Dense(encoded)),
                    (Some(_), Layout::Ragged) => {
                        appends.push(|bytes: &[u8]| encoded.extend_from_slice(bytes));
                        None
                    }
                });
            }
            let mut appends = appends.iter_mut();
            let mut outs: Vec<FieldOut<'_>> = Vec::with_capacity(passed.len());
            for out in passed {
                match out {
                    Some(out) => outs.push(out),
                    None => outs.extend(appends.next().map(|append| FieldOut::Ragged(append))),
                }
            }
            schema.decode(records, &mut outs).map_err(|error| (0, error))?;
        }
        for (number, encoded) in encoded.iter().enumerate() {
            self.decode_field(number, encoded, key, images, &mut out[number]).map_err(|error| (0, error))?;
        }
        Ok(())
    }

    fn decode_columns(
        &self,
        schema: &Schema,
        records: &[&[u8]],
        key: SampleKey,
        images: &mut ImageDecoder,
        out: &mut [FieldOut<'_>],
    ) -> Result<(), (usize, SchemaError)> {
        for (number, (record, out)) in records.iter().zip(out).enumerate() {
            let decoded = if self.decoders[number].is_some() {
                self.decode_field(number, record, key, images, out)
            } else {
                schema.copy_column(number, record, out)
            };
            decoded.map_err(|error| (number, error))?;
        }
        Ok(())
    }

    fn decode_field(
        &self,
        number: usize,
        bytes: &[u8],
        key: SampleKey,
        images: &mut ImageDecoder,
        out: &mut FieldOut<'_>,
    ) -> Result<(), SchemaError> {
        let Some(decoder) = &self.decoders[number] else { return Ok(()) };
        decoder.decode(bytes, key, images, out).map_err(|error| {
            let what = format!("field {:?}: {}", self.fields[number].name, error.what);
            SchemaError { what, ..error }
        })
    }
}

/// Whether the values of a field are bytes.
fn is_bytes(field: &Field) -> bool {
    let is_plain = match &field.layout {
        Layout::Dense(shape) => shape.len() == 1,
        Layout::Ragged => true,
    };
    is_plain && field.dtype == Dtype::Uint8 && field.numpy.is_none()
}
