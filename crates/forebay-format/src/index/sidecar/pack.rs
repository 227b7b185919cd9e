//! Parts of a sidecar, packed: as they are, or as one zstd frame.

use std::borrow::Cow;
use std::cell::RefCell;

use zstd::bulk::Decompressor;

use super::block::BlockError;
use crate::varint::Bytes;

/// Block packing: the body as it is.
pub(crate) const STORED: u8 = 0;
/// Block packing: the body as one zstd frame.
pub(crate) const ZSTD: u8 = 1;

/// Largest block body after decompression \[bytes\]: 65,536 records of 18 bytes, or thousands of
/// exceptions.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 22;

/// Compresses, for [`unpack`].
pub fn pack(bytes: &[u8], level: i32) -> Vec<u8> {
    zstd::bulk::compress(bytes, level).expect("compressing from memory into memory cannot fail")
}

thread_local! {
    /// Making a decompressor costs as much as expanding a small block.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Decompresses exactly `length` bytes, or returns what was found instead.
pub fn unpack(stored: &[u8], length: usize) -> Result<Vec<u8>, String> {
    let bytes = DECOMPRESSOR.with_borrow_mut(|held| {
        let decompressor = match held {
            Some(decompressor) => decompressor,
            None => held.insert(Decompressor::new().map_err(|error| error.to_string())?),
        };
        decompressor.decompress(stored, length).map_err(|error| error.to_string())
    })?;
    if bytes.len() == length { Ok(bytes) } else { Err(format!("{} bytes instead of {length}", bytes.len())) }
}

/// The body of a stored block.
pub(crate) fn unpack_block(stored: &[u8]) -> Result<Cow<'_, [u8]>, BlockError> {
    let mut bytes = Bytes::new(stored);
    let too_short = || BlockError::new("packing", "a packing and a body", format!("{} bytes", stored.len()));
    match bytes.byte() {
        Some(STORED) => Ok(Cow::Borrowed(&stored[1..])),
        Some(ZSTD) => {
            let length = bytes.varint().ok_or_else(too_short)?;
            if length > MAX_BODY_BYTES as u64 {
                return Err(BlockError::new("body", format!("at most {MAX_BODY_BYTES} bytes"), length));
            }
            let packed = bytes.take(bytes.left()).unwrap_or_default();
            let body = unpack(packed, length as usize);
            body.map(Cow::Owned).map_err(|found| BlockError::new("body", "a zstd frame", found))
        }
        Some(other) => Err(BlockError::new("packing", format!("{STORED} or {ZSTD}"), other)),
        None => Err(too_short()),
    }
}
