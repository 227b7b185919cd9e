//! Fill: no encoded bytes; the value of places that were never written, repeated.

use super::CodecError;

pub(super) const NAME: &str = "fill";

/// Fills `into`.
pub(super) fn decode(encoded: &[u8], into: &mut [u8], value: &[u8]) -> Result<(), CodecError> {
    if !encoded.is_empty() || value.is_empty() {
        return Err(CodecError::new(NAME, "encoded bytes", "none, and a value", encoded.len()));
    }
    if value.iter().all(|byte| *byte == value[0]) {
        into.fill(value[0]);
    } else {
        for place in into.chunks_mut(value.len()) {
            place.copy_from_slice(&value[..place.len()]);
        }
    }
    Ok(())
}
