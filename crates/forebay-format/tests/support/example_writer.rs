//! Writes `tf.train.Example` as protobuf would, and as it might.

#![allow(dead_code, reason = "not every user needs all of it")]

use super::datum::{bytes, number, tag, varint};

/// A message with these features, each `key` and `value` as they are.
pub fn example(features: &[Vec<u8>]) -> Vec<u8> {
    bytes(1, &features.iter().flat_map(|feature| bytes(1, feature)).collect::<Vec<u8>>())
}

/// The lists of a `tf.train.SequenceExample`: each a name and its steps, which are values as they
/// are.
pub fn feature_lists(lists: &[(&str, &[Vec<u8>])]) -> Vec<u8> {
    let entry = |(name, steps): &(&str, &[Vec<u8>])| {
        // A step is the value of a feature, in a list of its own.
        let steps: Vec<u8> = steps.iter().flat_map(|step| [&[0x0a][..], &step[1..]].concat()).collect();
        bytes(1, &[key(name), bytes(2, &steps)].concat())
    };
    bytes(2, &lists.iter().flat_map(entry).collect::<Vec<u8>>())
}

pub fn key(name: &str) -> Vec<u8> {
    bytes(1, name.as_bytes())
}

pub fn value(list: u64, values: &[u8]) -> Vec<u8> {
    bytes(2, &bytes(list, values))
}

pub fn strings(values: &[&[u8]]) -> Vec<u8> {
    value(1, &values.iter().flat_map(|value| bytes(1, value)).collect::<Vec<u8>>())
}

pub fn packed_floats(values: &[f32]) -> Vec<u8> {
    value(2, &bytes(1, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()))
}

pub fn plain_floats(values: &[f32]) -> Vec<u8> {
    let one = |value: &f32| [tag(1, 5), value.to_le_bytes().to_vec()].concat();
    value(2, &values.iter().flat_map(one).collect::<Vec<u8>>())
}

pub fn packed_ints(values: &[i64]) -> Vec<u8> {
    value(3, &bytes(1, &values.iter().flat_map(|value| varint(*value as u64)).collect::<Vec<u8>>()))
}

pub fn plain_ints(values: &[i64]) -> Vec<u8> {
    value(3, &values.iter().flat_map(|value| number(1, *value)).collect::<Vec<u8>>())
}
