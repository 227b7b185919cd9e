//! Integers of variable length: little-endian base 128, zigzag for signed ones, and byte planes.
//!
//! Lengths are untrusted: every function returns `None` where the bytes end or a number does not
//! fit.

/// Longest varint of 64 bits \[bytes\].
const MAX_VARINT_BYTES: usize = 10;

/// Appends `value`, seven bits per byte, least significant first.
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The number at the start of `bytes`, and its length \[bytes\]. Drops bits beyond the 64th, as
/// protobuf does.
#[inline]
pub fn decode(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(MAX_VARINT_BYTES).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

/// Maps small numbers of either sign to small unsigned ones.
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Number of bytes that hold `value`; 0 for 0.
pub fn width(value: u64) -> usize {
    (64 - value.leading_zeros() as usize).div_ceil(8)
}

/// Appends the bytes of all `values` plane by plane: first the lowest byte of each, then the next.
pub fn put_planes(out: &mut Vec<u8>, values: &[u64], width: usize) {
    for plane in 0..width {
        out.extend(values.iter().map(|value| (value >> (8 * plane)) as u8));
    }
}

/// Reads from untrusted bytes.
#[derive(Clone)]
pub struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Number of bytes that are left.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `length` bytes.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    pub fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    pub fn varint(&mut self) -> Option<u64> {
        let (value, length) = decode(self.rest)?;
        let read = self.take(length)?;
        // Of the tenth byte one bit has room.
        (length < MAX_VARINT_BYTES || read[MAX_VARINT_BYTES - 1] <= 1).then_some(value)
    }

    /// The next byte, which stays.
    pub fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }
}

/// Hands what [`put_planes`] wrote for `count` values to `each`, with the index of each value.
pub fn for_planes(planes: &[u8], count: usize, width: usize, mut each: impl FnMut(usize, u64)) {
    match width {
        0 => {}
        1 => (0..count).for_each(|index| each(index, u64::from(planes[index]))),
        2 => {
            let (low, high) = planes.split_at(count);
            for (index, (low, high)) in low.iter().zip(high).enumerate() {
                each(index, u64::from(*low) | u64::from(*high) << 8);
            }
        }
        3 => {
            let (low, rest) = planes.split_at(count);
            let (middle, high) = rest.split_at(count);
            for (index, ((low, middle), high)) in low.iter().zip(middle).zip(high).enumerate() {
                each(index, u64::from(*low) | u64::from(*middle) << 8 | u64::from(*high) << 16);
            }
        }
        _ => {
            for index in 0..count {
                let byte = |plane: usize| u64::from(planes[plane * count + index]) << (8 * plane);
                each(index, (0..width).fold(0, |value, plane| value | byte(plane)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_and_cut_ones_are_noticed() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(Bytes::new(&bytes).varint(), Some(value));
            assert_eq!(Bytes::new(&bytes[..bytes.len() - 1]).varint(), None);
        }
        assert_eq!(Bytes::new(&[0xff; 11]).varint(), None);
        let too_large = [&[0xff; 9][..], &[0x02]].concat();
        assert_eq!(Bytes::new(&too_large).varint(), None, "a bit has no room");
        assert_eq!(decode(&too_large), Some((u64::MAX >> 1, 10)), "as protobuf reads it");
        for value in [0, -1, 1, i64::MIN, i64::MAX] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
    }

    #[test]
    fn planes_come_back() {
        for largest in [0, 200, 70_000 >> 8, 70_000, u64::from(u32::MAX), u64::MAX] {
            let values = [0, 1 & largest, 256 & largest, largest, 3 & largest];
            let mut bytes = Vec::new();
            put_planes(&mut bytes, &values, width(largest));
            assert_eq!(bytes.len(), 5 * width(largest));
            let mut found = vec![0; 5];
            for_planes(&bytes, 5, width(largest), |index, value| found[index] = value);
            assert_eq!(found, values);
        }
    }
}
