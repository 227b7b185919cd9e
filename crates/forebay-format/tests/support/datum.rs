//! Writes `Datum` messages as protobuf would, and as it might.

#![allow(dead_code, reason = "not every test file needs all of it")]

/// A tag.
pub fn tag(number: u64, kind: u64) -> Vec<u8> {
    varint(number << 3 | kind)
}

/// A number, seven bits per byte; negative ones take ten bytes.
pub fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

pub fn number(field: u64, value: i64) -> Vec<u8> {
    [tag(field, 0), varint(value as u64)].concat()
}

pub fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [tag(field, 2), varint(value.len() as u64), value.to_vec()].concat()
}

pub fn shape(channels: i64, height: i64, width: i64) -> Vec<u8> {
    [number(1, channels), number(2, height), number(3, width)].concat()
}

/// An image of bytes with a label, as Caffe's tools write it.
pub fn image(extents: [i64; 3], data: &[u8], label: i64) -> Vec<u8> {
    let [channels, height, width] = extents;
    [shape(channels, height, width), bytes(4, data), number(5, label)].concat()
}

/// An image file with a label.
pub fn encoded(extents: [i64; 3], data: &[u8], label: i64) -> Vec<u8> {
    [image(extents, data, label), number(7, 1)].concat()
}

/// An image of floats, each with a tag of its own.
pub fn floats(extents: [i64; 3], values: &[f32], label: i64) -> Vec<u8> {
    let [channels, height, width] = extents;
    let values = values.iter().map(|value| [tag(6, 5), value.to_le_bytes().to_vec()].concat());
    [shape(channels, height, width), number(5, label), values.collect::<Vec<_>>().concat()].concat()
}

/// An image of floats under one tag.
pub fn packed_floats(extents: [i64; 3], values: &[f32], label: i64) -> Vec<u8> {
    let [channels, height, width] = extents;
    let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    [shape(channels, height, width), bytes(6, &values), number(5, label)].concat()
}
