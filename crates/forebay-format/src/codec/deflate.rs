//! Deflate: one zlib stream. Bytes after the stream are ignored, as by HDF5.

use std::cell::RefCell;

use flate2::{Decompress, FlushDecompress, Status};

use super::CodecError;

pub(super) const NAME: &str = "deflate";

thread_local! {
    /// 48 KiB of tables and window that need not be made for every unit.
    static DECOMPRESSOR: RefCell<Decompress> = RefCell::new(Decompress::new(true));
}

/// Decodes exactly `into`.
pub(super) fn decode(encoded: &[u8], into: &mut [u8]) -> Result<(), CodecError> {
    DECOMPRESSOR.with_borrow_mut(|stream| {
        stream.reset(true);
        let status = stream.decompress(encoded, into, FlushDecompress::Finish);
        let found = stream.total_out();
        match status {
            Ok(Status::StreamEnd) if found == into.len() as u64 => Ok(()),
            Ok(Status::StreamEnd) => Err(CodecError::length(NAME, into.len(), found)),
            // Either there is no more input, or no more room.
            Ok(_) if stream.total_in() < encoded.len() as u64 => {
                Err(CodecError::length(NAME, into.len(), "more"))
            }
            Ok(_) => Err(CodecError::ends(NAME, "the end of the stream")),
            Err(error) => {
                Err(CodecError::new(NAME, &format!("stream at byte {}", stream.total_in()), "zlib", error))
            }
        }
    })
}
