//! The lengths of many keys or values: one number, a few runs, or a list that is kept packed.
//!
//! A list is cut into stretches of [`STRETCH`] numbers, each written as byte planes and compressed
//! alone, so that it is read from front to back with one stretch in memory. It is named by its
//! digest, since a recipe must not be used with another one's list.

use std::sync::Arc;

use forebay_format::sidecar::{pack, unpack};
use forebay_format::varint::{Bytes, for_planes, put, put_planes, width};
use xxhash_rust::xxh3::xxh3_128;

/// Numbers of a list that are compressed together: 16 KiB, a good stretch for zstd.
const STRETCH: usize = 4096;

/// Compression level of lists; what is left is the entropy of the numbers.
const LEVEL: i32 = 9;

/// Most runs in a recipe itself.
pub(crate) const MAX_RUNS: usize = 16;

/// Lengths of all keys or all values, in key order \[bytes\].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// All the same.
    Constant(u32),
    /// Runs of equal lengths: length, and how many.
    Runs(Vec<(u32, u64)>),
    /// A list that is kept beside the recipe.
    List(Arc<LengthList>),
}

/// A packed list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LengthList {
    count: u64,
    bytes: Vec<u8>,
}

impl LengthList {
    /// The list as bytes that a file or another process can be given.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The list in these bytes; its stretches are checked when they are read.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Self, String> {
        let count = Bytes::new(&bytes).varint().ok_or("a list of lengths without a count")?;
        // A stretch takes two bytes or more, so the count is bounded by what is there.
        if count.div_ceil(STRETCH as u64) > bytes.len() as u64 {
            return Err(format!("a list of {count} lengths in {} bytes", bytes.len()));
        }
        Ok(Self { count, bytes })
    }

    /// Identifies the list.
    pub(crate) fn digest(&self) -> u128 {
        xxh3_128(&self.bytes)
    }
}

impl Lengths {
    /// The number of lengths, if it is fixed.
    pub(crate) fn count(&self) -> Option<u64> {
        match self {
            Self::Constant(_) => None,
            Self::Runs(runs) => runs.iter().try_fold(0_u64, |sum, (_, count)| sum.checked_add(*count)),
            Self::List(list) => Some(list.count),
        }
    }

    /// Reads from the first one on.
    pub(crate) fn reader(&self) -> LengthReader<'_> {
        let (value, left) = if let Self::Constant(value) = self { (*value, u64::MAX) } else { (0, 0) };
        let rest = match self {
            Self::List(list) => {
                let mut bytes = Bytes::new(&list.bytes);
                bytes.varint();
                Rest::List { bytes, count: list.count, stretch: Vec::new(), at: 0 }
            }
            Self::Runs(runs) => Rest::Runs(runs),
            Self::Constant(_) => Rest::Runs(&[]),
        };
        LengthReader { value, left, rest }
    }
}

/// Reads lengths from front to back.
#[derive(Clone)]
pub(crate) struct LengthReader<'a> {
    value: u32,
    left: u64,
    rest: Rest<'a>,
}

#[derive(Clone)]
enum Rest<'a> {
    Runs(&'a [(u32, u64)]),
    List { bytes: Bytes<'a>, count: u64, stretch: Vec<u32>, at: usize },
}

impl LengthReader<'_> {
    /// The next length.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<u32, String> {
        if self.left > 0 {
            self.left -= 1;
            return Ok(self.value);
        }
        self.more()
    }

    fn more(&mut self) -> Result<u32, String> {
        match &mut self.rest {
            Rest::Runs(runs) => {
                while let Some(((value, count), rest)) = runs.split_first() {
                    *runs = rest;
                    if *count > 0 {
                        (self.value, self.left) = (*value, count - 1);
                        return Ok(*value);
                    }
                }
                Err("the lengths end before the records".to_owned())
            }
            Rest::List { bytes, count, stretch, at } => {
                if *at == stretch.len() {
                    let numbers = (*count).min(STRETCH as u64) as usize;
                    if numbers == 0 {
                        return Err("the lengths end before the records".to_owned());
                    }
                    *count -= numbers as u64;
                    unpack_stretch(bytes, numbers, stretch)?;
                    *at = 0;
                }
                *at += 1;
                Ok(stretch[*at - 1])
            }
        }
    }
}

fn unpack_stretch(bytes: &mut Bytes<'_>, numbers: usize, stretch: &mut Vec<u32>) -> Result<(), String> {
    let short = || "a truncated list of lengths".to_owned();
    let planes = usize::from(bytes.byte().filter(|planes| *planes <= 4).ok_or_else(short)?);
    let packed_bytes = bytes.varint().ok_or_else(short)?;
    let packed = usize::try_from(packed_bytes).ok().and_then(|count| bytes.take(count)).ok_or_else(short)?;
    stretch.clear();
    stretch.resize(numbers, 0);
    if planes > 0 {
        let body = unpack(packed, numbers * planes).map_err(|found| format!("a list of lengths: {found}"))?;
        for_planes(&body, numbers, planes, |index, value| stretch[index] |= value as u32);
    }
    Ok(())
}

/// Takes lengths one by one and finds their shortest encoding.
#[derive(Debug, Default)]
pub(crate) struct LengthsBuilder {
    /// While there are few.
    runs: Vec<(u32, u64)>,
    /// Packed stretches, once there are too many runs.
    packed: Option<Vec<u8>>,
    pending: Vec<u64>,
    count: u64,
}

impl LengthsBuilder {
    /// Takes the next length.
    pub(crate) fn push(&mut self, value: u32) {
        self.count += 1;
        if self.packed.is_none() {
            match self.runs.last_mut() {
                Some((last, count)) if *last == value => *count += 1,
                _ => self.runs.push((value, 1)),
            }
            if self.runs.len() > MAX_RUNS {
                self.packed = Some(Vec::new());
                for (value, count) in std::mem::take(&mut self.runs) {
                    for _ in 0..count {
                        self.pend(value);
                    }
                }
            }
        } else {
            self.pend(value);
        }
    }

    fn pend(&mut self, value: u32) {
        self.pending.push(u64::from(value));
        if self.pending.len() == STRETCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let planes = width(self.pending.iter().fold(0, |all, value| all | value));
        let mut body = Vec::new();
        put_planes(&mut body, &self.pending, planes);
        let out = self.packed.get_or_insert_default();
        let packed = if planes == 0 { Vec::new() } else { pack(&body, LEVEL) };
        out.push(planes as u8);
        put(out, packed.len() as u64);
        out.extend(packed);
        self.pending.clear();
    }

    /// The lengths.
    pub(crate) fn finish(mut self) -> Lengths {
        if self.packed.is_none() {
            return match self.runs[..] {
                [(value, _)] => Lengths::Constant(value),
                _ => Lengths::Runs(self.runs),
            };
        }
        if !self.pending.is_empty() {
            self.flush();
        }
        let mut bytes = Vec::new();
        put(&mut bytes, self.count);
        bytes.extend(self.packed.unwrap_or_default());
        Lengths::List(Arc::new(LengthList { count: self.count, bytes }))
    }
}

impl FromIterator<u32> for Lengths {
    fn from_iter<I: IntoIterator<Item = u32>>(values: I) -> Self {
        let mut builder = LengthsBuilder::default();
        values.into_iter().for_each(|value| builder.push(value));
        builder.finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(lengths: &Lengths, count: usize) -> Vec<u32> {
        let mut reader = lengths.reader();
        (0..count).map(|_| reader.next().expect("as many as were put in")).collect()
    }

    proptest! {
        #[test]
        fn lengths_come_back(
            runs in proptest::collection::vec((prop_oneof![Just(0), 1_u32..5, any::<u32>()], 1_usize..900), 1..40)
        ) {
            let values: Vec<u32> =
                runs.iter().flat_map(|(value, count)| std::iter::repeat_n(*value, *count)).collect();
            let lengths: Lengths = values.iter().copied().collect();
            prop_assert_eq!(read(&lengths, values.len()), values.clone());
            if let Lengths::List(list) = &lengths {
                prop_assert_eq!(lengths.count(), Some(values.len() as u64));
                prop_assert!(lengths.reader().next().is_ok());
                let again = LengthList::from_bytes(list.bytes().to_vec()).expect("its own bytes");
                prop_assert_eq!(again.digest(), list.digest());
                prop_assert_eq!(read(&Lengths::List(Arc::new(again)), values.len()), values);
            }
        }

        #[test]
        fn a_list_of_any_bytes_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(list) = LengthList::from_bytes(bytes) {
                let lengths = Lengths::List(Arc::new(list));
                let mut reader = lengths.reader();
                let count = lengths.count().unwrap_or(0);
                prop_assert!(count <= 200 * STRETCH as u64);
                for _ in 0..=count {
                    if reader.next().is_err() {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn the_end_of_the_lengths_is_noticed() {
        for lengths in [Lengths::Runs(vec![(5, 0), (7, 2)]), (0..40).collect()] {
            let count = lengths.count().expect("a number") as usize;
            let mut reader = lengths.reader();
            assert!((0..count).all(|_| reader.next().is_ok()));
            assert!(reader.next().is_err());
        }
    }
}
