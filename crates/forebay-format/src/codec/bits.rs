//! Bits: eight booleans per byte, the first in the lowest bit; each becomes a byte of 0 or 1.

use super::CodecError;

pub(super) const NAME: &str = "bits";

/// Values per byte.
pub(super) const PER_BYTE: u64 = 8;

/// Decodes exactly `into`.
pub(super) fn decode(encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    if encoded.len() as u64 * PER_BYTE != into.len() as u64 {
        return Err(CodecError::length(NAME, into.len(), encoded.len() as u64 * PER_BYTE));
    }
    for (byte, values) in encoded.iter().zip(into.chunks_mut(PER_BYTE as usize)) {
        for (bit, value) in values.iter_mut().enumerate() {
            *value = byte >> bit & 1;
        }
    }
    Ok(())
}
