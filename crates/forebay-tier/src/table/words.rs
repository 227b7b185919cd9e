//! The words of shared memory that all processes of a node use at once: what is being copied of a
//! chunk, and where its copy is.
//!
//! An entry is stored (Release) after the bytes of the copy were written. Who loads it (Acquire)
//! finds these bytes. `tests/loom_words.rs` checks both words in every interleaving.

use forebay_host::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use forebay_types::Pieces;

use crate::table::entry::ChunkEntry;

/// The claims of a chunk.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct ClaimWord(AtomicU32);

impl ClaimWord {
    /// The word at a place in memory.
    ///
    /// # Safety
    /// The place is valid and aligned for `'a`, and accessed by atomic operations only.
    pub(crate) unsafe fn at<'a>(place: *mut u32) -> &'a Self {
        // SAFETY: as above; the word is an atomic u32 and nothing else.
        unsafe { &*place.cast() }
    }

    /// Claims pieces; returns those that nobody else had claimed.
    #[must_use]
    pub fn claim(&self, wanted: Pieces) -> Pieces {
        let before = self.0.fetch_or(u32::from(wanted.0), Ordering::AcqRel);
        wanted.minus(Pieces(before as u16))
    }

    /// Gives claims up.
    pub fn release(&self, pieces: Pieces) {
        self.0.fetch_and(!u32::from(pieces.0), Ordering::AcqRel);
    }

    /// Pieces that somebody has claimed.
    #[must_use]
    pub fn claimed(&self) -> Pieces {
        Pieces(self.0.load(Ordering::Acquire) as u16)
    }
}

/// The entry of a chunk.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct EntryWord(AtomicU64);

impl EntryWord {
    /// The word at a place in memory.
    ///
    /// # Safety
    /// The place is valid and aligned for `'a`, and accessed by atomic operations only.
    pub(crate) unsafe fn at<'a>(place: *mut u64) -> &'a Self {
        // SAFETY: as above; the word is an atomic u64 and nothing else.
        unsafe { &*place.cast() }
    }

    /// What is known of the chunk.
    #[must_use]
    pub fn get(&self) -> ChunkEntry {
        ChunkEntry::from_word(self.0.load(Ordering::Acquire))
    }

    /// Publishes what is known of the chunk.
    pub fn set(&self, entry: ChunkEntry) {
        self.0.store(entry.to_word(), Ordering::Release);
    }
}
