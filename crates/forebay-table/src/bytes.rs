//! Bytes in words: byte `i` is in word `i / 8`, the lowest byte of a word first.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
pub const WORD_BYTES: usize = 8;

/// Stores bytes, and zeros up to the end of their last word.
pub fn store(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks(WORD_BYTES)) {
        let mut value = [0; WORD_BYTES];
        value[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_le_bytes(value), Ordering::Relaxed);
    }
}

/// Loads bytes; what the words do not have stays as it is.
pub fn load(words: &[AtomicU64], into: &mut [u8]) {
    for (word, chunk) in words.iter().zip(into.chunks_mut(WORD_BYTES)) {
        let value = word.load(Ordering::Relaxed).to_le_bytes();
        chunk.copy_from_slice(&value[..chunk.len()]);
    }
}
