//! Shuffle: the first byte of every element, then the second of every element, and so on; bytes
//! that fill no element follow unchanged.

use super::CodecError;

pub(super) const NAME: &str = "shuffle";

/// Decodes exactly `into`.
pub(super) fn decode(encoded: &[u8], into: &mut [u8], item_bytes: usize) -> Result<(), CodecError> {
    if encoded.len() != into.len() {
        return Err(CodecError::length(NAME, into.len(), encoded.len()));
    }
    match item_bytes {
        0 => return Err(CodecError::new(NAME, "element", "1 byte or more", 0)),
        1 => into.copy_from_slice(encoded),
        2 => fixed::<2>(encoded, into),
        4 => fixed::<4>(encoded, into),
        8 => fixed::<8>(encoded, into),
        _ => any(encoded, into, item_bytes),
    }
    Ok(())
}

/// Elements of a length that the compiler knows: it makes vector code of it.
fn fixed<const ITEM_BYTES: usize>(encoded: &[u8], into: &mut [u8]) {
    let items = encoded.len() / ITEM_BYTES;
    let (planes, tail) = encoded.split_at(items * ITEM_BYTES);
    let planes: [&[u8]; ITEM_BYTES] = std::array::from_fn(|byte| &planes[byte * items..][..items]);
    let (elements, rest) = into.as_chunks_mut::<ITEM_BYTES>();
    for (index, element) in elements.iter_mut().enumerate().take(items) {
        for byte in 0..ITEM_BYTES {
            element[byte] = planes[byte][index];
        }
    }
    rest.copy_from_slice(tail);
}

fn any(encoded: &[u8], into: &mut [u8], item_bytes: usize) {
    let items = encoded.len() / item_bytes;
    let (planes, tail) = encoded.split_at(items * item_bytes);
    let (elements, rest) = into.split_at_mut(items * item_bytes);
    if items > 0 {
        for (byte, plane) in planes.chunks_exact(items).enumerate() {
            for (element, value) in elements.chunks_exact_mut(item_bytes).zip(plane) {
                element[byte] = *value;
            }
        }
    }
    rest.copy_from_slice(tail);
}
