//! LZF: runs of literal bytes and references to bytes before.
//!
//! A control byte *c* below 32 is followed by *c* + 1 literals. Any other begins a reference: its
//! upper three bits are the length less two (7: a further byte is added), its lower five bits and
//! the next byte the distance less one.

use super::CodecError;

pub(super) const NAME: &str = "lzf";

/// Decodes exactly `into`.
pub(super) fn decode(encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    let (mut from, mut to) = (0, 0);
    let wanted = into.len();
    let byte = |at: usize| encoded.get(at).copied().ok_or_else(|| CodecError::ends(NAME, "a reference"));
    while from < encoded.len() {
        let control = usize::from(encoded[from]);
        from += 1;
        if control < 32 {
            let length = control + 1;
            let literals =
                encoded.get(from..from + length).ok_or_else(|| CodecError::ends(NAME, "literal bytes"))?;
            let place =
                into.get_mut(to..to + length).ok_or_else(|| CodecError::length(NAME, wanted, "more"))?;
            place.copy_from_slice(literals);
            (from, to) = (from + length, to + length);
            continue;
        }
        let mut length = (control >> 5) + 2;
        if length == 9 {
            length += usize::from(byte(from)?);
            from += 1;
        }
        let distance = (control & 31) << 8 | usize::from(byte(from)?);
        let distance = distance + 1;
        from += 1;
        if distance > to {
            return Err(CodecError::new(NAME, "distance", format!("at most {to}"), distance));
        }
        if length > wanted - to {
            return Err(CodecError::length(NAME, wanted, "more"));
        }
        if distance >= length {
            into.copy_within(to - distance..to - distance + length, to);
        } else {
            // The run overlaps itself: it repeats its last `distance` bytes.
            for place in to..to + length {
                into[place] = into[place - distance];
            }
        }
        to += length;
    }
    if to == wanted { Ok(()) } else { Err(CodecError::length(NAME, wanted, to)) }
}
