//! Where a schema writes: the fields of one slot of a batch buffer.

use forebay_format::FieldOut;

use crate::batch::{BatchLayout, Place};

/// A field's stretch of the buffer, for one sample.
enum Cut<'a> {
    Dense(&'a mut [u8]),
    Ragged { offsets: &'a mut [u8], data: &'a mut [u8], end: &'a mut u64 },
}

/// Notes where the packed bytes of a slot end in a table of offsets.
pub(crate) fn put_offset(table: &mut [u8], slot: usize, end: u64) {
    let at = (slot + 1) * 8;
    table[at..at + 8].copy_from_slice(&end.to_ne_bytes());
    if slot == 0 {
        table[..8].fill(0);
    }
}

/// Lets `decode` write the fields of `slot`; `ends` are the ends of the packed bytes of ragged fields so far.
pub(crate) fn decode_into<E>(
    buffer: &mut [u8],
    layout: &BatchLayout,
    slot: usize,
    ends: &mut [u64],
    decode: impl FnOnce(&mut [FieldOut<'_>]) -> Result<(), E>,
) -> Result<(), E> {
    let mut cuts = cut(buffer, layout, slot, ends);
    // Dense fields are handed over as they are; a ragged one through a closure, which must live as long as its output.
    let mut appends: Vec<_> = Vec::new();
    let mut dense: Vec<Option<&mut [u8]>> = Vec::with_capacity(cuts.len());
    for cut in &mut cuts {
        match cut {
            Cut::Dense(bytes) => dense.push(Some(bytes)),
            Cut::Ragged { offsets, data, end } => {
                dense.push(None);
                appends.push(move |bytes: &[u8]| {
                    let start = **end as usize;
                    data[start..start + bytes.len()].copy_from_slice(bytes);
                    **end += bytes.len() as u64;
                    put_offset(offsets, slot, **end);
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
    decode(&mut out)
}

/// Cuts the buffer, whose places lie one after the other, into the stretches of one slot.
fn cut<'a>(buffer: &'a mut [u8], layout: &BatchLayout, slot: usize, ends: &'a mut [u64]) -> Vec<Cut<'a>> {
    let mut rest = buffer;
    let mut at = 0_u64;
    let mut take = |from: u64, length: u64| {
        let (_, behind) = std::mem::take(&mut rest).split_at_mut((from - at) as usize);
        let (taken, behind) = behind.split_at_mut(length as usize);
        rest = behind;
        at = from + length;
        taken
    };
    layout
        .places
        .iter()
        .zip(ends)
        .map(|(place, end)| match *place {
            Place::Dense { offset, sample_bytes } => {
                Cut::Dense(take(offset + slot as u64 * sample_bytes, sample_bytes))
            }
            Place::Ragged { offsets, data, capacity } => {
                let offsets = take(offsets, (layout.batch_size + 1) * 8);
                Cut::Ragged { offsets, data: take(data, capacity), end }
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::{Dtype, Field, Layout};

    #[test]
    fn dense_and_ragged_fields_of_a_slot_get_their_bytes() {
        let field = |name: &str, dtype, layout| Field::new(name, dtype, layout);
        let fields = [
            field("image", Dtype::Uint8, Layout::Ragged),
            field("label", Dtype::Int64, Layout::Dense(vec![])),
            field("text", Dtype::Uint8, Layout::Ragged),
        ];
        let layout = BatchLayout::new(&fields, 2, 100).unwrap();
        let mut buffer = vec![0xff; layout.bytes as usize];
        let mut ends = vec![0; 3];
        for slot in 0..2 {
            let done: Result<(), ()> = decode_into(&mut buffer, &layout, slot, &mut ends, |out| {
                for (number, field) in out.iter_mut().enumerate() {
                    match field {
                        FieldOut::Dense(bytes) => bytes.copy_from_slice(&(slot as u64 + 7).to_ne_bytes()),
                        FieldOut::Ragged(append) => append(&vec![number as u8; 3 + slot]),
                    }
                }
                Ok(())
            });
            done.unwrap();
        }
        assert_eq!(ends, [7, 0, 7]);
        let Place::Dense { offset, .. } = layout.places[1] else { panic!("dense") };
        assert_eq!(
            buffer[offset as usize..offset as usize + 16],
            [7_u64.to_ne_bytes(), 8_u64.to_ne_bytes()].concat()
        );
        for (field, byte) in [(0, 0_u8), (2, 2)] {
            let Place::Ragged { offsets, data, .. } = layout.places[field] else { panic!("ragged") };
            let table: Vec<u64> = buffer[offsets as usize..offsets as usize + 24]
                .chunks(8)
                .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
                .collect();
            assert_eq!(table, [0, 3, 7]);
            assert_eq!(buffer[data as usize..data as usize + 7], [byte; 7]);
        }
    }
}
