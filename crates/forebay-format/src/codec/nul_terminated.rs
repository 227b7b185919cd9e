//! Strings that end at their first NUL: what stands after it is no part of the value, and becomes
//! zeros.
//!
//! C programs leave there what their buffers held. libhdf5 drops it when it converts a string
//! (`H5T_STR_NULLTERM`).

use super::CodecError;

pub(super) const NAME: &str = "nul-terminated";

/// Most strings in an element.
const MAX_STRINGS: usize = 1 << 12;

/// Whether strings (offset and length \[bytes\]) lie in an element of this length.
pub(super) fn is_sound(item_bytes: u32, strings: &[(u32, u32)]) -> bool {
    let inside = |(offset, length): &(u32, u32)| {
        *length > 0 && offset.checked_add(*length).is_some_and(|end| end <= item_bytes)
    };
    (1..=MAX_STRINGS).contains(&strings.len()) && strings.iter().all(inside)
}

/// Decodes exactly `into`.
pub(super) fn decode(
    encoded: &[u8],
    into: &mut [u8],
    item_bytes: usize,
    strings: &[(u32, u32)],
) -> Result<(), CodecError> {
    if encoded.len() != into.len() || item_bytes == 0 || !into.len().is_multiple_of(item_bytes) {
        return Err(CodecError::length(NAME, into.len(), encoded.len()));
    }
    into.copy_from_slice(encoded);
    for element in into.chunks_exact_mut(item_bytes) {
        for (offset, length) in strings {
            let string = &mut element[*offset as usize..][..*length as usize];
            if let Some(end) = string.iter().position(|byte| *byte == 0) {
                string[end..].fill(0);
            }
        }
    }
    Ok(())
}
