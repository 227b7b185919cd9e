//! Where the bytes of a dataset lie, for those that plan with it: an index implements it, and so
//! can what only computes places.

use crate::{Located, SampleId, ShardId};

/// Where the samples of a dataset lie.
pub trait SamplePlaces {
    /// Why samples cannot be located.
    type Error;

    /// Number of samples.
    fn samples(&self) -> u64;

    /// Length of each shard \[bytes\]; none where every sample has a shard of its own: there are
    /// too many of them for a list.
    fn shard_bytes(&self) -> Vec<u64>;

    /// Finds the units and slices of samples, in the order of `ids`; what `out` held is dropped.
    ///
    /// # Errors
    /// An id that does not exist, or contents that are damaged.
    fn locate(&self, ids: &[SampleId], out: &mut Located) -> Result<(), Self::Error>;
}

/// In which chunks the bytes of a dataset lie.
pub trait ChunkPlaces {
    /// Number of chunks.
    fn chunks(&self) -> u64;

    /// The chunk of a byte of a shard; `None` behind the end of the shard.
    fn chunk_at(&self, shard: ShardId, offset: u64) -> Option<ChunkPlace>;
}

/// A byte of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// Number of the chunk.
    pub chunk: u64,
    /// Length of the chunk \[bytes\].
    pub chunk_bytes: u64,
    /// The byte [bytes from the start of the chunk].
    pub offset: u64,
}
