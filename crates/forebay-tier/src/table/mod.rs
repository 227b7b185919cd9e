//! The table of a dataset: where the copy of each chunk is, in memory that the daemon writes and
//! all clients read.
//!
//! ```text
//! offset  bytes  what
//!      0      8  magic "FBTIERS1"
//!      8      8  number of chunks
//!     16   8×7   state of each level (LevelState)
//!   4096   8×n   the entry of each chunk (entry.rs)
//! ```
//!
//! An entry is one atomic word, stored (Release) after the bytes of the copy were written and
//! logged. Who loads it (Acquire) and reads the slab finds these bytes: the kernel orders a
//! pwrite(2) that has returned before a later pread(2).
//!
//! `claims`: what is being copied now. `words`: the words of both, alone.

pub(crate) mod claims;
pub(crate) mod entry;
pub mod words;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_host::{Map, published_memfd};
use forebay_types::ChunkId;

use crate::error::TierError;
use crate::table::claims::Claims;
use crate::table::entry::{ChunkEntry, MAX_LEVELS};
use crate::table::words::EntryWord;

const MAGIC: u64 = u64::from_le_bytes(*b"FBTIERS1");
const HEADER_BYTES: usize = 4096;
const WORD_BYTES: usize = size_of::<u64>();
const MAGIC_WORD: usize = 0;
const CHUNKS_WORD: usize = 1;
const FIRST_LEVEL_WORD: usize = 2;
const FIRST_ENTRY_WORD: usize = HEADER_BYTES / WORD_BYTES;

/// What a level is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelState {
    /// It serves copies and takes new ones.
    Open,
    /// It serves copies.
    Full,
    /// It is not used.
    Out,
}

impl LevelState {
    fn of(word: u64) -> Self {
        match word {
            0 => Self::Open,
            1 => Self::Full,
            _ => Self::Out,
        }
    }
}

/// The words of a table in a mapping.
struct Words(Map);

impl Words {
    fn place(&self, word: usize) -> *mut u64 {
        assert!((word + 1) * WORD_BYTES <= self.0.len(), "word {word} of {} bytes", self.0.len());
        // A mapping starts at a page.
        #[allow(clippy::cast_ptr_alignment)]
        let words = self.0.as_ptr().cast::<u64>();
        // SAFETY: the word lies inside the mapping.
        unsafe { words.add(word) }
    }

    fn at(&self, word: usize) -> &AtomicU64 {
        // SAFETY: the mapping lives as long as `self` and starts at a page. All processes access it
        // by atomic operations only.
        unsafe { AtomicU64::from_ptr(self.place(word)) }
    }

    fn entry(&self, chunk: ChunkId) -> &EntryWord {
        // SAFETY: as above.
        unsafe { EntryWord::at(self.place(FIRST_ENTRY_WORD + chunk.0 as usize)) }
    }

    fn level(&self, level: u8) -> &AtomicU64 {
        self.at(FIRST_LEVEL_WORD + usize::from(level).min(MAX_LEVELS - 1))
    }
}

/// The daemon's side of a table.
pub struct TableWriter {
    descriptor: OwnedFd,
    words: Words,
    chunks: u64,
    claims: Claims,
}

impl TableWriter {
    /// A table of so many chunks, all absent.
    ///
    /// # Errors
    /// The system refuses memory.
    pub fn new(chunks: u64) -> Result<Self, TierError> {
        let bytes = HEADER_BYTES + chunks as usize * WORD_BYTES;
        let (descriptor, map) = published_memfd("forebay-tier-table", bytes)?;
        let words = Words(map);
        words.at(CHUNKS_WORD).store(chunks, Ordering::Relaxed);
        words.at(MAGIC_WORD).store(MAGIC, Ordering::Release);
        Ok(Self { descriptor, words, chunks, claims: Claims::new(chunks)? })
    }

    /// What is known of a chunk.
    #[must_use]
    pub fn get(&self, chunk: ChunkId) -> ChunkEntry {
        assert!(chunk.0 < self.chunks, "{chunk:?} of {}", self.chunks);
        self.words.entry(chunk).get()
    }

    /// Publishes what is known of a chunk.
    pub fn set(&self, chunk: ChunkId, entry: ChunkEntry) {
        assert!(chunk.0 < self.chunks, "{chunk:?} of {}", self.chunks);
        self.words.entry(chunk).set(entry);
    }

    /// Publishes what a level is used for.
    pub fn set_level(&self, level: u8, state: LevelState) {
        self.words.level(level).store(state as u64, Ordering::Release);
    }

    /// The memory, for clients.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// What clients are copying.
    #[must_use]
    pub fn claims(&self) -> &Claims {
        &self.claims
    }
}

/// A client's side of a table. Its bytes are untrusted: any word means something.
pub struct Table {
    words: Words,
    chunks: u64,
}

impl Table {
    /// Maps a table that came from the daemon.
    ///
    /// # Errors
    /// Memory that is no table.
    pub fn open(descriptor: impl AsFd) -> Result<Self, TierError> {
        let words = Words(Map::watched(descriptor)?);
        let wrong = |expected: String, found: String| TierError::Protocol {
            attempt: "map the table",
            expected,
            found,
        };
        let bytes = words.0.len();
        if bytes < HEADER_BYTES {
            return Err(wrong(format!("at least {HEADER_BYTES} bytes"), format!("{bytes} bytes")));
        }
        let magic = words.at(MAGIC_WORD).load(Ordering::Acquire);
        if magic != MAGIC {
            return Err(wrong(format!("magic {MAGIC:#x}"), format!("{magic:#x}")));
        }
        let chunks = words.at(CHUNKS_WORD).load(Ordering::Relaxed);
        let room = ((bytes - HEADER_BYTES) / WORD_BYTES) as u64;
        if chunks > room {
            return Err(wrong(format!("at most {room} chunks"), chunks.to_string()));
        }
        Ok(Self { words, chunks })
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// What is known of a chunk; one that the table does not have is absent.
    #[must_use]
    pub fn get(&self, chunk: ChunkId) -> ChunkEntry {
        if chunk.0 >= self.chunks {
            return ChunkEntry::Absent;
        }
        self.words.entry(chunk).get()
    }

    /// What a level is used for.
    #[must_use]
    pub fn level(&self, level: u8) -> LevelState {
        LevelState::of(self.words.level(level).load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::entry::SlotId;
    use forebay_types::Pieces;

    #[test]
    fn a_client_sees_what_the_daemon_publishes() {
        let writer = TableWriter::new(1000).unwrap();
        let table = Table::open(writer.descriptor()).unwrap();
        let entry = ChunkEntry::Present { at: SlotId { level: 2, slab: 5, slot: 6 }, pieces: Pieces(7) };
        assert_eq!((table.chunks(), table.get(ChunkId(999))), (1000, ChunkEntry::Absent));
        writer.set(ChunkId(999), entry);
        writer.set_level(2, LevelState::Out);
        assert_eq!((table.get(ChunkId(999)), table.get(ChunkId(1000))), (entry, ChunkEntry::Absent));
        assert_eq!([table.level(1), table.level(2)], [LevelState::Open, LevelState::Out]);
    }

    #[test]
    fn table_and_claims_take_at_most_16_bytes_per_chunk_and_a_page_each() {
        for chunks in [0, 1, 1000, 100_000] {
            let writer = TableWriter::new(chunks).unwrap();
            let bytes = |memory| rustix::fs::fstat(memory).unwrap().st_size as u64;
            let all = bytes(writer.descriptor()) + bytes(writer.claims().descriptor());
            assert!(all <= 16 * chunks + 2 * 4096, "{all} bytes for {chunks} chunks");
        }
    }

    #[test]
    fn memory_that_is_no_table_is_refused() {
        for (bytes, chunks, magic) in [(100, 0, MAGIC), (8192, 513, MAGIC), (8192, 1, 5)] {
            let (descriptor, map) = published_memfd("forebay-test", bytes).unwrap();
            let words = Words(map);
            words.at(CHUNKS_WORD).store(chunks, Ordering::Relaxed);
            words.at(MAGIC_WORD).store(magic, Ordering::Relaxed);
            assert!(Table::open(&descriptor).is_err(), "{bytes} {chunks} {magic}");
        }
    }
}
