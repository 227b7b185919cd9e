//! Infers what the features of records are, by probing some of them.
//!
//! A feature with the same number of values in every probed record is taken for an array of that
//! shape. A record with another number is then an error that names it, never other values. Byte
//! strings are taken for arrays only where that is likely, since ragged fields are always right.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::super::wire::{Message, ReadRecord, Unknown, Windowed};
use super::super::{MIN_ARRAY_BYTES, Misfit};
use super::{
    ExampleSchema, Feature, FeatureKind, MAX_FEATURES, Span, ValueRun, Values, entries, list_of, runs,
};
use crate::{Error, SchemaError};

/// What probing some records gave.
#[derive(Debug, Default)]
pub(crate) struct Inference {
    records: u64,
    features: BTreeMap<String, Seen>,
}

/// What was seen of a feature.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Unknown while all that was seen was empty.
    kind: Option<FeatureKind>,
    /// Records that have the feature.
    records: u64,
    /// Fewest and most values.
    count: (u64, u64),
    /// Shortest and longest value \[bytes\]; of numbers their decoded length.
    value_bytes: (u64, u64),
}

impl Seen {
    const NOTHING: Self = Self { kind: None, records: 1, count: (0, 0), value_bytes: (u64::MAX, 0) };

    /// Adds values of `bytes` bytes each.
    fn add(&mut self, values: u64, bytes: u64) {
        if values > 0 {
            self.count = (self.count.0 + values, self.count.1 + values);
            self.value_bytes = (self.value_bytes.0.min(bytes), self.value_bytes.1.max(bytes));
        }
    }

    /// Adds what was seen in another record.
    fn merge(&mut self, name: &str, other: &Self) -> Result<(), SchemaError> {
        match (self.kind, other.kind) {
            (Some(kind), Some(found)) if kind != found => {
                return Err(SchemaError::new(
                    format!("feature {name:?}"),
                    0,
                    format!("a list of {}", kind.name()),
                    format!("a list of {}", found.name()),
                ));
            }
            (None, found) => self.kind = found,
            _ => {}
        }
        self.records += other.records;
        self.count = (self.count.0.min(other.count.0), self.count.1.max(other.count.1));
        let (shortest, longest) = other.value_bytes;
        self.value_bytes = (self.value_bytes.0.min(shortest), self.value_bytes.1.max(longest));
        Ok(())
    }

    /// The number of values of a feature that was seen like this in `records` records.
    fn values(&self, records: u64) -> Option<Values> {
        let fixed = self.records == records && self.count.0 == self.count.1 && self.count.0 > 0;
        let equal = self.value_bytes.0 == self.value_bytes.1;
        let values = Values::Fixed { count: self.count.0, value_bytes: self.value_bytes.0 };
        match self.kind {
            Some(FeatureKind::Float | FeatureKind::Int64) if fixed => Some(values),
            Some(FeatureKind::Float | FeatureKind::Int64) => Some(Values::Varying),
            _ if fixed && equal && self.count.0 * self.value_bytes.0 >= MIN_ARRAY_BYTES => Some(values),
            _ if self.count.1 <= 1 => Some(Values::Varying),
            // Several strings of no bytes have no array either.
            _ if fixed && equal && self.value_bytes.0 > 0 => Some(values),
            _ => None,
        }
    }
}

impl Inference {
    /// Probes a record of `bytes` bytes; reads no more than the heads of its byte strings.
    pub(crate) fn probe(&mut self, bytes: u64, read: ReadRecord<'_>) -> Result<Result<(), Misfit>, Error> {
        let mut message = Windowed::new(bytes, read);
        let mut seen = parse(&mut message, &Unknown::Refuse).map_err(Misfit::Other);
        if seen.is_err() {
            // Would it fit if content without a place in the schema were ignored?
            let extension = RefCell::new(None);
            let lenient = parse(&mut message, &Unknown::Note(&extension));
            if let (Ok(_), Some(error)) = (lenient, extension.into_inner()) {
                seen = Err(Misfit::Extended(error));
            }
        }
        if let Some(failure) = message.failure {
            return Err(failure);
        }
        Ok(seen.and_then(|seen| self.add(seen).map_err(Misfit::Other)))
    }

    fn add(&mut self, seen: BTreeMap<String, Seen>) -> Result<(), SchemaError> {
        self.records += 1;
        for (name, other) in seen {
            match self.features.get_mut(&name) {
                Some(seen) => seen.merge(&name, &other)?,
                None => {
                    self.features.insert(name, other);
                }
            }
        }
        if self.features.len() > MAX_FEATURES {
            let expected = format!("at most {MAX_FEATURES}");
            return Err(SchemaError::new("Example: features", 0, expected, self.features.len()));
        }
        Ok(())
    }

    /// Whether all records have the same features.
    pub(crate) fn is_uniform(&self) -> bool {
        self.features.values().all(|seen| seen.records == self.records)
    }

    /// The schema of the features in `wanted`, in this order; of all features, sorted by name, if
    /// it is empty.
    pub(crate) fn schema(&self, wanted: &[String]) -> Result<ExampleSchema, Error> {
        let names: Vec<&str> = self.features.keys().map(String::as_str).collect();
        let mut features = Vec::new();
        let all = || self.features.keys().collect();
        let complete = wanted.is_empty();
        let wanted: Vec<&String> = if wanted.is_empty() { all() } else { wanted.iter().collect() };
        for name in wanted {
            let Some(seen) = self.features.get(name) else {
                return Err(Error::Usage {
                    message: format!("there is no feature {name:?} in the records that were probed"),
                    hint: format!("features: {}", names.join(", ")),
                });
            };
            if features.iter().any(|feature: &Feature| feature.name == *name) {
                return Err(Error::Usage {
                    message: format!("feature {name:?} is named twice in fields="),
                    hint: String::new(),
                });
            }
            let kind = seen.kind.unwrap_or(FeatureKind::Bytes);
            let Some(values) = seen.values(self.records) else {
                return Err(Error::Usage {
                    message: format!(
                        "feature {name:?} holds {} to {} byte strings of {} to {} bytes, which are no array",
                        seen.count.0, seen.count.1, seen.value_bytes.0, seen.value_bytes.1
                    ),
                    hint: format!(
                        "name the features to read, fields=[...], out of {}; or read the records as they are with \
                         schema=\"raw\"",
                        names.join(", ")
                    ),
                });
            };
            features.push(Feature { name: name.clone(), kind, values });
        }
        Ok(ExampleSchema { features, complete })
    }
}

/// Parses one message.
fn parse(message: &mut impl Message, unknown: &Unknown<'_>) -> Result<BTreeMap<String, Seen>, SchemaError> {
    let mut all = BTreeMap::new();
    let is_sequence = entries(message, unknown, |message, key, value| {
        let name = String::from_utf8(key.read(message)?)
            .map_err(|error| SchemaError::new("Example: name of a feature", key.at, "UTF-8", error))?;
        let mut seen = Seen::NOTHING;
        if let Some(value) = value
            && let Some((kind, list)) = list_of(message, value, unknown)?
        {
            seen.kind = Some(kind);
            runs(message, kind, list, unknown, |message, run| {
                match run {
                    ValueRun::Bytes(bytes) => seen.add(1, bytes.length),
                    ValueRun::Floats(floats) => seen.add(floats.length / 4, 4),
                    ValueRun::Packed(packed) => seen.add(count_packed(message, packed)?, 8),
                    ValueRun::Int(_) => seen.add(1, 8),
                }
                Ok(())
            })?;
        }
        all.insert(name, seen);
        Ok(())
    })?;
    // A record whose features are all in lists has an empty context.
    if all.is_empty() && !is_sequence {
        return Err(SchemaError::new("Example: features", 0, "at least one", "none"));
    }
    Ok(all)
}

/// Number of packed integers: each ends with a byte whose highest bit is clear.
fn count_packed(message: &mut impl Message, Span { mut at, length }: Span) -> Result<u64, SchemaError> {
    let end = at + length;
    let mut values = 0;
    while at < end {
        let window = message.window(at)?;
        let count = window.len().min((end - at) as usize);
        values += window[..count].iter().filter(|byte| **byte & 0x80 == 0).count() as u64;
        at += count as u64;
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field with a length.
    fn bytes(number: u8, value: &[u8]) -> Vec<u8> {
        assert!(value.len() < 1 << 14);
        let length = [value.len() as u8 | 0x80, (value.len() >> 7) as u8];
        [&[number << 3 | 2][..], &length, value].concat()
    }

    fn feature(name: &str, list: u8, values: &[u8]) -> Vec<u8> {
        bytes(1, &[bytes(1, name.as_bytes()), bytes(2, &bytes(list, values))].concat())
    }

    fn strings(name: &str, values: &[&[u8]]) -> Vec<u8> {
        feature(name, 1, &values.iter().flat_map(|value| bytes(1, value)).collect::<Vec<u8>>())
    }

    fn ints(name: &str, values: &[u8]) -> Vec<u8> {
        feature(name, 3, &bytes(1, values))
    }

    /// What is found in these records, each the features of one.
    fn inference(records: &[Vec<u8>]) -> Result<Inference, String> {
        let mut inference = Inference::default();
        for record in records {
            let record = bytes(1, record);
            let mut read = |at: u64, into: &mut [u8]| {
                into.copy_from_slice(&record[at as usize..at as usize + into.len()]);
                Ok(())
            };
            inference
                .probe(record.len() as u64, &mut read)
                .expect("reads do not fail")
                .map_err(|error| error.into_error().to_string())?;
        }
        Ok(inference)
    }

    fn values(records: &[Vec<u8>]) -> Vec<Values> {
        let schema = inference(records).expect("examples").schema(&[]).expect("fields");
        assert_eq!(schema.check(1 << 20), Ok(()));
        schema.features.iter().map(|feature| feature.values).collect()
    }

    #[test]
    fn numbers_of_equal_count_are_arrays_and_others_ragged() {
        let fixed = |count, value_bytes| Values::Fixed { count, value_bytes };
        assert_eq!(values(&[ints("a", &[1, 2]), ints("a", &[0x80, 1, 7])]), [fixed(2, 8)]);
        assert_eq!(values(&[ints("a", &[1, 2]), ints("a", &[7])]), [Values::Varying]);
        assert_eq!(values(&[ints("a", &[1]), ints("b", &[7])]), [Values::Varying; 2], "absent in some");
        assert_eq!(values(&[ints("a", &[]), ints("a", &[])]), [Values::Varying], "never any");
        let floats = |count: usize| feature("f", 2, &bytes(1, &vec![0; 4 * count]));
        assert_eq!(values(&[floats(3), floats(3)]), [fixed(3, 4)]);
    }

    #[test]
    fn strings_are_arrays_only_where_that_is_likely() {
        let fixed = |count, value_bytes| Values::Fixed { count, value_bytes };
        let (short, long, longer) = ([1; 20], [2; 300], [3; 301]);
        assert_eq!(values(&[strings("a", &[&long]), strings("a", &[&long])]), [fixed(1, 300)]);
        assert_eq!(values(&[strings("a", &[&long]), strings("a", &[&longer])]), [Values::Varying]);
        assert_eq!(values(&[strings("a", &[&short]), strings("a", &[&short])]), [Values::Varying]);
        assert_eq!(values(&[strings("a", &[&short, &short])]), [fixed(2, 20)]);
        assert_eq!(values(&[strings("a", &[]), strings("a", &[&long])]), [Values::Varying]);
    }

    #[test]
    fn lists_of_strings_that_are_no_array_are_refused_unless_they_are_left_out() {
        let records = [[strings("a", &[b"x", b"yz"]), ints("b", &[1])].concat()];
        let inference = inference(&records).expect("an example");
        let error = inference.schema(&[]).expect_err("no array");
        assert_eq!(
            error.to_string(),
            "feature \"a\" holds 2 to 2 byte strings of 1 to 2 bytes, which are no array"
        );
        assert!(error.hint().is_some_and(|hint| hint.contains("out of a, b;")), "{error}");
        let schema = inference.schema(&["b".to_owned()]).expect("the other one");
        assert_eq!(schema.features.len(), 1);
        let error = inference.schema(&["c".to_owned()]).expect_err("unknown").to_string();
        assert_eq!(error, "there is no feature \"c\" in the records that were probed");
        let error = inference.schema(&["b".to_owned(), "b".to_owned()]).expect_err("twice").to_string();
        assert_eq!(error, "feature \"b\" is named twice in fields=");
    }

    #[test]
    fn records_with_other_features_are_noticed() {
        let of = |records: &[Vec<u8>]| inference(records).map(|inference| inference.is_uniform());
        assert_eq!(of(&[ints("a", &[1]), ints("a", &[2])]), Ok(true));
        assert_eq!(of(&[ints("a", &[1]), ints("b", &[2])]), Ok(false));
        let error = of(&[ints("a", &[1]), strings("a", &[b"x"])]).expect_err("another kind");
        assert!(error.contains("feature \"a\"") && error.contains("found a list of bytes"), "{error}");
        let error = of(&[vec![]]).expect_err("nothing");
        assert!(error.contains("expected at least one"), "{error}");
        let error = of(&[feature("\u{fffd}", 1, b"")].map(|mut bytes| {
            let at = bytes.iter().position(|byte| *byte == 0xef).expect("the name");
            bytes[at] = 0xff;
            bytes
        }))
        .expect_err("a name that is not UTF-8");
        assert!(error.contains("expected UTF-8"), "{error}");
    }

    #[test]
    fn a_look_at_a_large_record_reads_little() {
        let image = vec![7; 10_000];
        let record = bytes(1, &[strings("image", &[&image]), ints("label", &[3])].concat());
        let mut read_bytes = 0;
        let mut inference = Inference::default();
        let mut read = |at: u64, into: &mut [u8]| {
            read_bytes += into.len();
            into.copy_from_slice(&record[at as usize..at as usize + into.len()]);
            Ok(())
        };
        inference.probe(record.len() as u64, &mut read).expect("no failure").expect("an example");
        assert!(read_bytes <= 512, "{read_bytes}");
    }

    #[test]
    fn a_failing_read_is_not_taken_for_another_format() {
        let mut read = |_: u64, _: &mut [u8]| {
            Err(Error::Usage { message: "a failing read".to_owned(), hint: String::new() })
        };
        let error = Inference::default().probe(100, &mut read).map(|_| ()).expect_err("failed");
        assert_eq!(error.to_string(), "a failing read");
    }
}
