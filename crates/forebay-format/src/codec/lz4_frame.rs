//! LZ4 frames, as Arrow's buffers use them.

use std::io::Read;

use lz4_flex::frame::FrameDecoder;

use super::CodecError;

pub(super) const NAME: &str = "lz4 frame";

/// Decodes exactly `into`.
pub(super) fn decode(encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    let wrong = |error: std::io::Error| CodecError::new(NAME, "frame", "LZ4", error);
    let mut frame = FrameDecoder::new(encoded);
    let mut filled = 0;
    while filled < into.len() {
        match frame.read(&mut into[filled..]).map_err(wrong)? {
            0 => return Err(CodecError::length(NAME, into.len(), filled)),
            count => filled += count,
        }
    }
    match frame.read(&mut [0]).map_err(wrong)? {
        0 => Ok(()),
        _ => Err(CodecError::length(NAME, into.len(), "more")),
    }
}
