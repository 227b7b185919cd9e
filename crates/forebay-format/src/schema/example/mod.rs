//! `TensorFlow`'s `tf.train.Example`: features by name, each a list of byte strings, of floats or
//! of integers.
//!
//! Example: field 1 is a message whose field 1 is repeated, once per feature: key 1 is the name,
//! value 2 a message with one list, of bytes (1), floats (2) or integers (3), whose values are
//! field 1. Numbers may be packed or not, and the value may come before the key. If a feature
//! occurs twice, the last one counts. Non-empty fields that are not part of the messages are an
//! error: those of `tf.train.SequenceExample`, whose first field is the same and whose second one
//! holds lists of features ([`sequence`]), and any others. The inference probes some records for
//! the kind of each feature, and for its number of values if that is equal in all ([`Inference`]).
//! The rules are in `docs/formats/tfrecord.md`. Source: tensorflow's `example.proto` and
//! `feature.proto`.

mod infer;
mod sequence;

use std::collections::BTreeSet;

use forebay_types::{Dtype, Field, Layout};
use serde::{Deserialize, Serialize};

pub(crate) use infer::Inference;

use super::FieldOut;
use super::wire::{self, Fields, Message, Piece, Unknown};
use crate::SchemaError;

/// Most features of a record: far more than are in use; bounds the description in a sidecar.
const MAX_FEATURES: usize = 1024;

/// The features that are read of the records of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExampleSchema {
    /// In the order of the fields; all names differ.
    pub features: Vec<Feature>,
    /// Whether these are all features of a record, as the caller chose none: another one that holds
    /// values is an error.
    #[serde(default)]
    pub complete: bool,
}

/// One feature.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Feature {
    /// Its name, which is that of the field.
    pub name: String,
    /// What its values are.
    pub kind: FeatureKind,
    /// How many values there are in a record.
    pub values: Values,
}

/// Type of the values of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureKind {
    /// Byte strings.
    Bytes,
    /// Floats of 32 bits.
    Float,
    /// Integers of 64 bits with a sign.
    Int64,
}

/// How many values a feature has in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Values {
    /// Always this many.
    Fixed {
        /// Values in a record.
        count: u64,
        /// Decoded length of each \[bytes\].
        value_bytes: u64,
    },
    /// As many as there are; of byte strings one at most.
    Varying,
}

/// A stretch of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    at: u64,
    length: u64,
}

impl Span {
    const NONE: Self = Self { at: 0, length: 0 };

    /// The stretch that a field holds, which was expected to be `what`.
    fn of(piece: Piece, at: u64, what: &str) -> Result<Self, SchemaError> {
        match piece {
            Piece::Bytes { at, length } => Ok(Self { at, length }),
            _ => Err(SchemaError::new(what, at, "a field with a length", "a number")),
        }
    }

    fn fields(self) -> Fields {
        Fields::new(self.at, self.length)
    }

    /// Its bytes.
    fn read(self, message: &mut impl Message) -> Result<Vec<u8>, SchemaError> {
        let Self { mut at, length } = self;
        let end = at + length;
        let mut bytes = Vec::new();
        while at < end {
            let window = message.window(at)?;
            let count = window.len().min((end - at) as usize);
            bytes.extend_from_slice(&window[..count]);
            at += count as u64;
        }
        Ok(bytes)
    }

    fn of_record(self, record: &[u8]) -> &[u8] {
        &record[self.at as usize..(self.at + self.length) as usize]
    }
}

/// Values that lie together in a list.
enum ValueRun {
    Bytes(Span),
    Floats(Span),
    Packed(Span),
    Int(u64),
}

/// Calls `each` with the name and the value of every feature, in the order of the message. Returns
/// whether there are also lists of features, if those are ignored.
fn entries<M: Message>(
    message: &mut M,
    unknown: &Unknown<'_>,
    mut each: impl FnMut(&mut M, Span, Option<Span>) -> Result<(), SchemaError>,
) -> Result<bool, SchemaError> {
    let mut example = Fields::new(0, message.bytes());
    let mut is_sequence = false;
    while let Some((number, piece)) = example.next(message)? {
        if number != 1 {
            match sequence::lists_of(message, number, piece) {
                Some(lists) => {
                    unknown.report(sequence::refusal(example.place(), &lists))?;
                    is_sequence = true;
                }
                None => unknown.meet("Example", number, piece, example.place())?,
            }
            continue;
        }
        let mut features = Span::of(piece, example.place(), "Example: features")?.fields();
        while let Some((number, piece)) = features.next(message)? {
            if number != 1 {
                unknown.meet("Example: features", number, piece, features.place())?;
                continue;
            }
            let mut entry = Span::of(piece, features.place(), "Example: feature")?.fields();
            let (mut key, mut value) = (Span::NONE, None);
            while let Some((number, piece)) = entry.next(message)? {
                match number {
                    1 => key = Span::of(piece, entry.place(), "Example: name of a feature")?,
                    2 => once(&mut value, piece, &entry, "Example: value of a feature")?,
                    _ => unknown.meet("Example: feature", number, piece, entry.place())?,
                }
            }
            each(message, key, value)?;
        }
    }
    Ok(is_sequence)
}

/// Records a message that may occur once. No writer repeats it and readers would merge the copies,
/// so repetition is refused.
fn once(place: &mut Option<Span>, piece: Piece, fields: &Fields, what: &str) -> Result<(), SchemaError> {
    if place.is_some() {
        return Err(SchemaError::new(what, fields.place(), "one", "another one"));
    }
    *place = Some(Span::of(piece, fields.place(), what)?);
    Ok(())
}

/// The list that the value of a feature holds, if it holds one.
fn list_of(
    message: &mut impl Message,
    value: Span,
    unknown: &Unknown<'_>,
) -> Result<Option<(FeatureKind, Span)>, SchemaError> {
    let (mut kind, mut list) = (FeatureKind::Bytes, None);
    let mut fields = value.fields();
    while let Some((number, piece)) = fields.next(message)? {
        kind = match number {
            1 => FeatureKind::Bytes,
            2 => FeatureKind::Float,
            3 => FeatureKind::Int64,
            _ => {
                unknown.meet("Example: value of a feature", number, piece, fields.place())?;
                continue;
            }
        };
        once(&mut list, piece, &fields, "Example: list of a feature")?;
    }
    Ok(list.map(|list| (kind, list)))
}

/// Calls `each` with the values of a list, in order.
fn runs<M: Message>(
    message: &mut M,
    kind: FeatureKind,
    list: Span,
    unknown: &Unknown<'_>,
    mut each: impl FnMut(&mut M, ValueRun) -> Result<(), SchemaError>,
) -> Result<(), SchemaError> {
    let mut fields = list.fields();
    while let Some((number, piece)) = fields.next(message)? {
        if number != 1 {
            unknown.meet("Example: list of a feature", number, piece, fields.place())?;
            continue;
        }
        let run = match (kind, piece) {
            (FeatureKind::Bytes, Piece::Bytes { at, length }) => ValueRun::Bytes(Span { at, length }),
            (FeatureKind::Float, Piece::Bytes { at, length }) if length % 4 == 0 => {
                ValueRun::Floats(Span { at, length })
            }
            (FeatureKind::Float, Piece::Fixed32 { at }) => ValueRun::Floats(Span { at, length: 4 }),
            (FeatureKind::Int64, Piece::Bytes { at, length }) => ValueRun::Packed(Span { at, length }),
            (FeatureKind::Int64, Piece::Varint(value)) => ValueRun::Int(value),
            (_, piece) => {
                let what = format!("Example: value of a {} list", kind.name());
                let found = format!("{piece:?}");
                return Err(SchemaError::new(what, fields.place(), kind.encoding(), found));
            }
        };
        each(message, run)?;
    }
    Ok(())
}

impl FeatureKind {
    fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Float => "float",
            Self::Int64 => "int64",
        }
    }

    /// How values are written.
    fn encoding(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Float => "4 bytes, or a multiple of 4",
            Self::Int64 => "a number, or several packed",
        }
    }

    fn dtype(self) -> Dtype {
        match self {
            Self::Bytes => Dtype::Uint8,
            Self::Float => Dtype::Float32,
            Self::Int64 => Dtype::Int64,
        }
    }
}

impl Feature {
    /// The field that this feature becomes.
    fn field(&self) -> Field {
        let layout = match (self.values, self.kind) {
            (Values::Varying, _) => Layout::Ragged,
            (Values::Fixed { count: 1, value_bytes }, FeatureKind::Bytes) => Layout::Dense(vec![value_bytes]),
            (Values::Fixed { count, value_bytes }, FeatureKind::Bytes) => {
                Layout::Dense(vec![count, value_bytes])
            }
            (Values::Fixed { count: 1, .. }, _) => Layout::Dense(vec![]),
            (Values::Fixed { count, .. }, _) => Layout::Dense(vec![count]),
        };
        Field::new(self.name.clone(), self.kind.dtype(), layout)
    }

    /// Whether records of at most this many bytes can hold it.
    fn is_sound(&self, longest_record_bytes: u64) -> bool {
        let Values::Fixed { count, value_bytes } = self.values else { return true };
        // A number of 64 bits takes at least one byte in a record.
        let (item_bytes, least_bytes) = match self.kind {
            FeatureKind::Bytes => (value_bytes, value_bytes),
            FeatureKind::Float => (4, 4),
            FeatureKind::Int64 => (8, 1),
        };
        let bytes = count.checked_mul(least_bytes);
        count > 0
            && value_bytes > 0
            && value_bytes == item_bytes
            && bytes.is_some_and(|bytes| bytes <= longest_record_bytes)
    }

    fn error(&self, at: u64, expected: impl ToString, found: impl ToString) -> SchemaError {
        SchemaError::new(format!("feature {:?}", self.name), at, expected, found)
    }

    /// Decodes the feature, whose list lies there in the record, if the record has one.
    fn decode(
        &self,
        record: &[u8],
        found: Option<(FeatureKind, Span)>,
        out: &mut FieldOut<'_>,
    ) -> Result<(), SchemaError> {
        let list = match found {
            None => Span::NONE,
            Some((kind, list)) if kind == self.kind => list,
            Some((kind, list)) => {
                let list_of = |kind: FeatureKind| format!("a list of {}", kind.name());
                return Err(self.error(list.at, list_of(self.kind), list_of(kind)));
            }
        };
        match (out, self.values) {
            (FieldOut::Dense(out), Values::Fixed { count, value_bytes })
                if Some(out.len() as u64) == count.checked_mul(value_bytes) =>
            {
                self.decode_fixed(record, list, out, count, value_bytes)
            }
            (FieldOut::Ragged(take), Values::Varying) if self.kind == FeatureKind::Bytes => {
                let mut value: Option<Span> = None;
                runs(&mut &record[..], self.kind, list, &Unknown::Refuse, |_, run| match (run, value) {
                    (ValueRun::Bytes(bytes), None) => {
                        value = Some(bytes);
                        Ok(())
                    }
                    _ => Err(self.error(list.at, "one value", "several")),
                })?;
                take(value.unwrap_or(Span::NONE).of_record(record));
                Ok(())
            }
            (FieldOut::Ragged(take), Values::Varying) => {
                let mut bytes = Vec::new();
                numbers(record, self.kind, list, |values| bytes.extend_from_slice(values))?;
                take(&bytes);
                Ok(())
            }
            (FieldOut::Dense(out), values) => {
                Err(self.error(list.at, format!("room for {values:?}"), format!("{} bytes", out.len())))
            }
            (FieldOut::Ragged(_), values) => {
                Err(self.error(list.at, format!("{values:?}"), "a ragged field"))
            }
        }
    }

    /// Decodes `count` values, which fill `out`.
    fn decode_fixed(
        &self,
        record: &[u8],
        list: Span,
        out: &mut [u8],
        count: u64,
        value_bytes: u64,
    ) -> Result<(), SchemaError> {
        let mut filled = 0;
        // The final count shows whether there are too many.
        let mut put = |bytes: &[u8]| {
            if let Some(out) = out.get_mut(filled..filled + bytes.len()) {
                out.copy_from_slice(bytes);
            }
            filled += bytes.len();
        };
        if self.kind == FeatureKind::Bytes {
            let mut values = 0;
            runs(&mut &record[..], self.kind, list, &Unknown::Refuse, |_, run| {
                let ValueRun::Bytes(bytes) = run else { return Ok(()) };
                if bytes.length != value_bytes {
                    let found = format!("{} bytes", bytes.length);
                    return Err(self.error(bytes.at, format!("{value_bytes} bytes"), found));
                }
                values += 1;
                put(bytes.of_record(record));
                Ok(())
            })?;
            return if values == count { Ok(()) } else { Err(self.miscount(list, count, values)) };
        }
        numbers(record, self.kind, list, put)?;
        let values = filled as u64 / value_bytes;
        if values == count { Ok(()) } else { Err(self.miscount(list, count, values)) }
    }

    fn miscount(&self, list: Span, count: u64, found: u64) -> SchemaError {
        self.error(list.at, format!("{count} values"), found)
    }
}

/// Calls `put` with the numbers of a list, as they lie in memory.
fn numbers(
    record: &[u8],
    kind: FeatureKind,
    list: Span,
    mut put: impl FnMut(&[u8]),
) -> Result<(), SchemaError> {
    runs(&mut &record[..], kind, list, &Unknown::Refuse, |_, run| {
        match run {
            ValueRun::Floats(floats) if cfg!(target_endian = "little") => put(floats.of_record(record)),
            ValueRun::Floats(floats) => {
                for float in floats.of_record(record).chunks_exact(4) {
                    put(&u32::from_le_bytes([float[0], float[1], float[2], float[3]]).to_ne_bytes());
                }
            }
            ValueRun::Packed(Span { mut at, length }) => {
                let mut rest = Span { at, length }.of_record(record);
                while !rest.is_empty() {
                    let (value, bytes) = wire::varint(rest, at)?;
                    put(&value.to_ne_bytes());
                    rest = &rest[bytes..];
                    at += bytes as u64;
                }
            }
            ValueRun::Int(value) => put(&value.to_ne_bytes()),
            ValueRun::Bytes(_) => {}
        }
        Ok(())
    })
}

impl ExampleSchema {
    /// One field per feature.
    pub(super) fn fields(&self) -> Vec<Field> {
        self.features.iter().map(Feature::field).collect()
    }

    /// Checks a schema that a file claims for records of at most this many bytes.
    pub(super) fn check(&self, longest_record_bytes: u64) -> Result<(), String> {
        let names: BTreeSet<&str> = self.features.iter().map(|feature| feature.name.as_str()).collect();
        let number = (1..=MAX_FEATURES).contains(&self.features.len());
        if names.len() != self.features.len() || !number {
            return Err(format!("{} features of {} names", self.features.len(), names.len()));
        }
        let unsound = self.features.iter().find(|feature| !feature.is_sound(longest_record_bytes));
        unsound.map_or(Ok(()), |feature| Err(format!("{feature:?}")))
    }

    /// The number of the feature of this name; the search begins at a guess.
    #[inline]
    fn number_of(&self, name: &[u8], guess: usize) -> Option<usize> {
        let is_it = |feature: &Feature| feature.name.as_bytes() == name;
        let (before, behind) = self.features.split_at(guess);
        behind.iter().position(is_it).map(|number| guess + number).or_else(|| before.iter().position(is_it))
    }

    /// Decodes a message; `out` has one element per feature.
    pub(super) fn decode(&self, record: &[u8], out: &mut [FieldOut<'_>]) -> Result<(), SchemaError> {
        let mut found = vec![None; self.features.len()];
        let mut guess = 0;
        entries(&mut &record[..], &Unknown::Refuse, |message, key, value| {
            let known = self.number_of(key.of_record(record), guess);
            if known.is_none() && !self.complete {
                return Ok(());
            }
            let list = value.map_or(Ok(None), |value| list_of(message, value, &Unknown::Refuse))?;
            match (known, list) {
                (Some(number), list) => {
                    guess = number + 1;
                    found[number] = list;
                }
                // None of the probed records had it.
                (None, Some((kind, list))) if list.length > 0 => {
                    let name = String::from_utf8_lossy(key.of_record(record)).into_owned();
                    let expected = "the features of the probed records; fields= chooses among all";
                    let found = format!("another one, a list of {}", kind.name());
                    return Err(SchemaError::new(format!("feature {name:?}"), key.at, expected, found));
                }
                (None, _) => {}
            }
            Ok(())
        })?;
        for ((feature, found), out) in self.features.iter().zip(found).zip(out) {
            feature.decode(record, found, out)?;
        }
        Ok(())
    }
}
