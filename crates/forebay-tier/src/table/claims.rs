//! Claims: pieces that a client is copying now, so that others do not read them from the source,
//! too. One word per chunk, in memory that all clients write.
//!
//! Claims only save work. One that is lost makes two clients copy the same bytes; the daemon
//! publishes one of the copies. When a client dies, the daemon clears all claims of its dataset.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_host::{Map, sealed_memfd};
use forebay_types::{ChunkId, Pieces};

use crate::error::TierError;
use crate::table::words::ClaimWord;

const WORD_BYTES: usize = size_of::<u32>();

/// The claims of a dataset.
pub struct Claims {
    descriptor: OwnedFd,
    map: Map,
    chunks: u64,
}

impl Claims {
    /// Claims of so many chunks, none yet.
    ///
    /// # Errors
    /// The system refuses memory.
    pub fn new(chunks: u64) -> Result<Self, TierError> {
        Self::open(sealed_memfd("forebay-tier-claims", chunks as usize * WORD_BYTES)?, chunks)
    }

    /// Maps claims that came from the daemon.
    ///
    /// # Errors
    /// Memory of another size.
    pub fn open(descriptor: OwnedFd, chunks: u64) -> Result<Self, TierError> {
        let map = Map::shared(&descriptor, chunks as usize * WORD_BYTES)?;
        Ok(Self { descriptor, map, chunks })
    }

    /// The memory, for clients.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn word(&self, chunk: ChunkId) -> &ClaimWord {
        assert!(chunk.0 < self.chunks, "{chunk:?} of {}", self.chunks);
        // A mapping starts at a page.
        #[allow(clippy::cast_ptr_alignment)]
        let words = self.map.as_ptr().cast::<u32>();
        // SAFETY: the word lies inside the mapping, which lives as long as `self` and starts at a
        // page. All processes access it by atomic operations only.
        unsafe { ClaimWord::at(words.add(chunk.0 as usize)) }
    }

    /// Claims pieces of a chunk; returns those that nobody else had claimed.
    #[must_use]
    pub fn claim(&self, chunk: ChunkId, wanted: Pieces) -> Pieces {
        self.word(chunk).claim(wanted)
    }

    /// Gives claims up.
    pub fn release(&self, chunk: ChunkId, pieces: Pieces) {
        self.word(chunk).release(pieces);
    }

    /// Pieces that somebody has claimed.
    #[must_use]
    pub fn claimed(&self, chunk: ChunkId) -> Pieces {
        self.word(chunk).claimed()
    }

    /// Gives all claims up.
    pub fn clear(&self) {
        for chunk in 0..self.chunks {
            let word = self.word(ChunkId(chunk));
            // Pages that nobody touched stay so.
            if !word.claimed().is_empty() {
                word.release(Pieces::ALL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_granted_once_until_it_is_released() {
        let one = Claims::new(10).unwrap();
        let two = Claims::open(rustix::io::dup(one.descriptor()).unwrap(), 10).unwrap();
        assert_eq!(one.claim(ChunkId(9), Pieces(0b0110)), Pieces(0b0110));
        assert_eq!(two.claim(ChunkId(9), Pieces(0b1100)), Pieces(0b1000));
        one.release(ChunkId(9), Pieces(0b0110));
        assert_eq!(two.claimed(ChunkId(9)), Pieces(0b1000));
        assert_eq!(one.claim(ChunkId(9), Pieces::ALL), Pieces(!0b1000));
        two.clear();
        assert_eq!(one.claimed(ChunkId(9)), Pieces::NONE);
    }

    #[test]
    fn threads_that_claim_the_same_pieces_get_each_once() {
        let claims = Claims::new(1).unwrap();
        let granted = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| claims.claim(ChunkId(0), Pieces(0x0ff0)))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().count()).sum::<u32>()
        });
        assert_eq!(granted, 8);
    }
}
