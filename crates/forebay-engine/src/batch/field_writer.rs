//! Where a schema writes: the fields of one slot of a batch buffer.

use std::cell::RefCell;
use std::ops::Range;

use forebay_format::FieldOut;

use crate::batch::layout::{BatchLayout, ENTRY_BYTES, Place};

/// A field's stretch of the buffer, for one sample.
enum Cut<'a> {
    Dense(&'a mut [u8]),
    Ragged { table: &'a mut [u8], item_bytes: u64 },
}

/// The values of ragged fields, of which each takes what it needs behind the last one.
struct Values<'a> {
    /// The rest of the buffer from `first` on.
    room: &'a mut [u8],
    first: u64,
    end: u64,
}

impl Values<'_> {
    /// Adds a value and tells where in the buffer it lies, or would lie if there were room.
    fn put(&mut self, value: &[u8], item_bytes: u64) -> Range<u64> {
        let start = self.end.next_multiple_of(item_bytes);
        self.end = start + value.len() as u64;
        if let Some(into) = self.room.get_mut((start - self.first) as usize..(self.end - self.first) as usize)
        {
            into.copy_from_slice(value);
        }
        start..self.end
    }
}

/// Notes in the table of a ragged field where the value of a slot lies.
pub(crate) fn put_value(table: &mut [u8], slot: usize, value: Range<u64>) {
    let at = slot * ENTRY_BYTES as usize;
    table[at..at + 8].copy_from_slice(&value.start.to_ne_bytes());
    table[at + 8..at + 16].copy_from_slice(&value.end.to_ne_bytes());
}

/// Lets `decode` write the fields of `slot`, and tells where the values of ragged fields end then,
/// which ended at `end`.
///
/// An end behind the buffer's says how much room was missing; the slot is then to be decoded again.
pub(crate) fn decode_into<E>(
    buffer: &mut [u8],
    layout: &BatchLayout,
    slot: usize,
    end: u64,
    decode: impl FnOnce(&mut [FieldOut<'_>]) -> Result<(), E>,
) -> Result<u64, E> {
    let (places, room) = buffer.split_at_mut(layout.values as usize);
    let values = RefCell::new(Values { room, first: layout.values, end });
    // Dense fields are handed over as they are; a ragged one through a closure, which must live as
    // long as its output.
    let mut appends: Vec<_> = Vec::new();
    let mut dense: Vec<Option<&mut [u8]>> = Vec::with_capacity(layout.places.len());
    for cut in cut(places, layout, slot) {
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

/// Cuts the part of the buffer in which the places lie one after the other into the stretches of
/// one slot.
fn cut<'a>(buffer: &'a mut [u8], layout: &BatchLayout, slot: usize) -> Vec<Cut<'a>> {
    let mut rest = buffer;
    let mut at = 0_u64;
    let mut take = |from: u64, length: u64| {
        let (_, behind) = std::mem::take(&mut rest).split_at_mut((from - at) as usize);
        let (taken, behind) = behind.split_at_mut(length as usize);
        rest = behind;
        at = from + length;
        taken
    };
    let cut = |place: &Place| match *place {
        Place::Dense { offset, sample_bytes } => {
            Cut::Dense(take(offset + slot as u64 * sample_bytes, sample_bytes))
        }
        Place::Ragged { table, item_bytes } => {
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

    /// Decodes samples of these values, one per field, into `room` bytes, and reads them from where
    /// the layout says.
    fn there_and_back(fields: &[Field], samples: &[Vec<Vec<u8>>], ragged_bytes: u64) -> Vec<Vec<Vec<u8>>> {
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
        let value = |slot: u64, place: &Place| match *place {
            Place::Dense { offset, sample_bytes } => {
                let at = (offset + slot * sample_bytes) as usize;
                buffer[at..at + sample_bytes as usize].to_vec()
            }
            Place::Ragged { table, item_bytes } => {
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
        fn any_mix_of_fields_is_found_again((fields, samples) in batches(), ragged_bytes in 0_u64..3000) {
            prop_assert_eq!(there_and_back(&fields, &samples, ragged_bytes), samples);
        }
    }
}
