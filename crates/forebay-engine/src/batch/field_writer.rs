//! Writes the fields of one slot of a batch buffer.

use std::cell::RefCell;
use std::ops::Range;

use forebay_format::FieldOut;

use crate::batch::layout::{BatchLayout, ENTRY_BYTES, FieldPlacement};

/// A field's part of the buffer, for one sample.
enum Cut<'a> {
    Dense(&'a mut [u8]),
    Ragged { table: &'a mut [u8], item_bytes: u64 },
}

/// Appends the values of ragged fields, one after another.
struct Values<'a> {
    /// The rest of the buffer from `first` on.
    rest: &'a mut [u8],
    first: u64,
    end: u64,
}

impl Values<'_> {
    /// Appends a value and returns its range in the buffer, which may lie after the buffer's end.
    fn put(&mut self, value: &[u8], item_bytes: u64) -> Range<u64> {
        let start = self.end.next_multiple_of(item_bytes);
        self.end = start + value.len() as u64;
        if let Some(into) = self.rest.get_mut((start - self.first) as usize..(self.end - self.first) as usize)
        {
            into.copy_from_slice(value);
        }
        start..self.end
    }
}

/// Records the range of a slot's value in the table of a ragged field.
pub(crate) fn put_value(table: &mut [u8], slot: usize, value: Range<u64>) {
    let at = slot * ENTRY_BYTES as usize;
    table[at..at + 8].copy_from_slice(&value.start.to_ne_bytes());
    table[at + 8..at + 16].copy_from_slice(&value.end.to_ne_bytes());
}

/// Lets `decode` write the fields of `slot`. Takes and returns the end of the ragged values.
///
/// If the returned end is after the buffer's, the caller grows the buffer to it and decodes the
/// slot again.
pub(crate) fn decode_into<E>(
    buffer: &mut [u8],
    layout: &BatchLayout,
    slot: usize,
    end: u64,
    decode: impl FnOnce(&mut [FieldOut<'_>]) -> Result<(), E>,
) -> Result<u64, E> {
    let (fixed, rest) = buffer.split_at_mut(layout.values as usize);
    let values = RefCell::new(Values { rest, first: layout.values, end });
    // A dense field is passed as a slice, a ragged one as a closure, which must outlive its output.
    let mut appends: Vec<_> = Vec::new();
    let mut dense: Vec<Option<&mut [u8]>> = Vec::with_capacity(layout.places.len());
    for cut in cut(fixed, layout, slot) {
        match cut {
            Cut::Dense(bytes) => dense.push(Some(bytes)),
            Cut::Ragged { table, item_bytes } => {
                dense.push(None);
                let values = &values;
                appends.push(move |bytes: &[u8]| {
                    let value = values.borrow_mut().put(bytes, item_bytes);
                    put_value(table, slot, value);
                });
            }
        }
    }
    let mut appends = appends.iter_mut();
    let mut out: Vec<FieldOut<'_>> = Vec::with_capacity(dense.len());
    for bytes in dense {
        match bytes {
            Some(bytes) => out.push(FieldOut::Dense(bytes)),
            None => out.extend(appends.next().map(|append| FieldOut::Ragged(append))),
        }
    }
    decode(&mut out)?;
    drop(out);
    let end = values.borrow().end;
    Ok(end)
}

/// Splits the fixed part of the buffer into the parts of one slot, by field.
fn cut<'a>(buffer: &'a mut [u8], layout: &BatchLayout, slot: usize) -> Vec<Cut<'a>> {
    let mut rest = buffer;
    let mut at = 0_u64;
    let mut take = |from: u64, length: u64| {
        let (_, after) = std::mem::take(&mut rest).split_at_mut((from - at) as usize);
        let (taken, after) = after.split_at_mut(length as usize);
        rest = after;
        at = from + length;
        taken
    };
    let cut = |placement: &FieldPlacement| match *placement {
        FieldPlacement::Dense { offset, sample_bytes } => {
            Cut::Dense(take(offset + slot as u64 * sample_bytes, sample_bytes))
        }
        FieldPlacement::Ragged { table, item_bytes } => {
            Cut::Ragged { table: take(table, layout.batch_size * ENTRY_BYTES), item_bytes }
        }
    };
    layout.places.iter().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{Dtype, Field, Layout};
    use proptest::prelude::*;

    /// Decodes samples of these values, one per field, into a buffer for `ragged_bytes`, and reads
    /// them back by the layout.
    fn round_trip(fields: &[Field], samples: &[Vec<Vec<u8>>], ragged_bytes: u64) -> Vec<Vec<Vec<u8>>> {
        let mut layout = BatchLayout::new(fields, samples.len() as u64, ragged_bytes).unwrap();
        let mut buffer = vec![0xff; layout.bytes as usize];
        let mut end = layout.values;
        for (slot, sample) in samples.iter().enumerate() {
            loop {
                let decoded: Result<u64, ()> = decode_into(&mut buffer, &layout, slot, end, |out| {
                    for (field, value) in out.iter_mut().zip(sample) {
                        match field {
                            FieldOut::Dense(bytes) => bytes.copy_from_slice(value),
                            FieldOut::Ragged(append) => append(value),
                        }
                    }
                    Ok(())
                });
                let needed = decoded.unwrap();
                if needed <= layout.bytes {
                    end = needed;
                    break;
                }
                layout.bytes = needed;
                buffer.resize(needed as usize, 0xff);
            }
        }
        let word =
            |at: u64| u64::from_ne_bytes(buffer[at as usize..at as usize + 8].try_into().unwrap()) as usize;
        let value = |slot: u64, place: &FieldPlacement| match *place {
            FieldPlacement::Dense { offset, sample_bytes } => {
                let at = (offset + slot * sample_bytes) as usize;
                buffer[at..at + sample_bytes as usize].to_vec()
            }
            FieldPlacement::Ragged { table, item_bytes } => {
                let entry = table + slot * ENTRY_BYTES;
                let (start, end) = (word(entry), word(entry + 8));
                assert_eq!(start % item_bytes as usize, 0);
                buffer[start..end].to_vec()
            }
        };
        (0..samples.len() as u64)
            .map(|slot| layout.places.iter().map(|place| value(slot, place)).collect())
            .collect()
    }

    /// Fields of any kind, and samples of them.
    fn batches() -> impl Strategy<Value = (Vec<Field>, Vec<Vec<Vec<u8>>>)> {
        let dtype = prop_oneof![Just(Dtype::Uint8), Just(Dtype::Float32), Just(Dtype::Int64)];
        let layout =
            prop_oneof![2 => Just(Layout::Ragged), 1 => (0_u64..4).prop_map(|n| Layout::Dense(vec![n]))];
        prop::collection::vec((dtype, layout), 1..8).prop_flat_map(|kinds| {
            let fields: Vec<Field> = kinds
                .into_iter()
                .enumerate()
                .map(|(number, (dtype, layout))| Field::new(format!("f{number}"), dtype, layout))
                .collect();
            let value = |field: &Field| {
                let item = field.dtype.item_bytes();
                let items = match field.sample_bytes() {
                    Some(bytes) => bytes as usize / item..=bytes as usize / item,
                    None => 0..=200,
                };
                items.prop_flat_map(move |items| prop::collection::vec(any::<u8>(), items * item))
            };
            let sample: Vec<_> = fields.iter().map(value).collect();
            (Just(fields), prop::collection::vec(sample, 1..9))
        })
    }

    proptest! {
        #[test]
        fn any_mix_of_fields_is_read_back((fields, samples) in batches(), ragged_bytes in 0_u64..3000) {
            prop_assert_eq!(round_trip(&fields, &samples, ragged_bytes), samples);
        }
    }
}
