//! Zstd: one frame, or several back to back.

use std::cell::RefCell;

use zstd::bulk::Decompressor;

use super::CodecError;

pub(super) const NAME: &str = "zstd";

thread_local! {
    /// Making a decompressor costs as much as expanding a small unit.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Decodes exactly `into`.
pub(super) fn decode(encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    let wrong = |error: std::io::Error| CodecError::new(NAME, "frame", "zstd", error);
    let found = DECOMPRESSOR.with_borrow_mut(|held| {
        let decompressor = match held {
            Some(decompressor) => decompressor,
            None => held.insert(Decompressor::new().map_err(wrong)?),
        };
        decompressor.decompress_to_buffer(encoded, into).map_err(wrong)
    })?;
    if found == into.len() { Ok(()) } else { Err(CodecError::length(NAME, into.len(), found)) }
}
