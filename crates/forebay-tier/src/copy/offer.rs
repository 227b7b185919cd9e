//! What a read hands over to be copied into levels, and who places and publishes the copies.

use std::sync::Arc;

use forebay_types::{ChunkId, Pieces};

use crate::copy::buffers::CopyBuffer;
use crate::error::TierError;
use crate::log::PieceSum;
use crate::table::entry::SlotId;

/// Bytes of the source, and the chunks to make of them. The claims of all their pieces are held.
pub struct Offer {
    /// The bytes.
    pub buffer: CopyBuffer,
    /// What to copy.
    pub chunks: Vec<OfferedChunk>,
    /// Says whether the bytes are those of the source.
    pub source: Arc<dyn SourceCheck>,
}

/// Pieces of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedChunk {
    /// The chunk.
    pub chunk: ChunkId,
    /// The level that the placement wants it in.
    pub level: u8,
    /// Its pieces, in order.
    pub pieces: Vec<OfferedPiece>,
}

impl OfferedChunk {
    /// The numbers of its pieces.
    #[must_use]
    pub fn numbers(&self) -> Pieces {
        self.pieces.iter().fold(Pieces::NONE, |all, piece| all.union(Pieces(1 << piece.piece)))
    }
}

/// A piece in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedPiece {
    /// Its number in the chunk.
    pub piece: u8,
    /// First byte in the slot \[bytes\].
    pub start: u32,
    /// Length \[bytes\].
    pub bytes: u32,
    /// First byte in the buffer \[bytes\].
    pub at: usize,
}

impl OfferedPiece {
    /// The byte of the buffer behind its last one.
    pub(crate) fn end(&self) -> usize {
        self.at + self.bytes as usize
    }
}

/// The source that a buffer was read from.
pub trait SourceCheck: Send + Sync {
    /// Whether the descriptor that was read still has the size and times of the open dataset. The
    /// writer asks after the read and before it places the copy.
    fn is_unchanged(&self) -> bool;
}

/// A copy that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its slot.
    pub at: SlotId,
    /// The pieces, in order.
    pub sums: Vec<PieceSum>,
}

impl Copied {
    /// The numbers of its pieces.
    #[must_use]
    pub fn numbers(&self) -> Pieces {
        self.sums.iter().fold(Pieces::NONE, |all, sum| all.union(Pieces(1 << (sum.piece & 15))))
    }
}

/// Allocates slots and makes copies known: the daemon, as a client sees it.
///
/// Levels are numbered as in the writer's list, also in slots. Each claim that was offered ends
/// exactly once: [`Publisher::publish`] succeeds with it, or [`Publisher::give_up`] is called.
pub trait Publisher: Send + Sync {
    /// Slots for chunks in levels, in the order of `wanted`; `None` if a level has no room. A chunk
    /// that has a slot keeps it, also if it is wanted twice.
    fn place(&self, wanted: &[(ChunkId, u8)]) -> Result<Vec<Option<SlotId>>, TierError>;

    /// Makes written copies known to all clients, then releases their claims.
    fn publish(&self, copied: &[Copied]) -> Result<(), TierError>;

    /// Releases claims of pieces that are not copied.
    fn give_up(&self, chunk: ChunkId, pieces: Pieces);

    /// Learns that a write or a flush of a level failed, so that it is left out. What was written
    /// to it lately may be lost.
    fn level_failed(&self, level: u8) {
        let _ = level;
    }
}
