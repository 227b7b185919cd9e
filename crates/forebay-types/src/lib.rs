//! Types that format, plan and engine share.
//!
//! For each sample and column, a dataset is a list of [`Slice`]s of [`Unit`]s. A unit is the
//! smallest part that is decoded at once. Its encoded bytes are [`Piece`]s: extents of shards, or
//! literal bytes that are in no file. A [`CodecChain`] decodes them to `decoded_bytes` bytes. One
//! LMDB record is one unit of one extent. One HDF5 chunk is one unit, of which many samples are
//! slices. A multi-part `RecordIO` record is one unit of several extents with literals in between.
//!
//! An index returns the units of many samples in one arena, [`Located`], without an allocation per
//! sample. This crate does no I/O and holds no policy.
#![forbid(unsafe_code)]

mod chunk;
mod field;
mod located;
pub mod path_json;
mod places;
mod sample_location;

pub use chunk::{
    CHUNK_BYTES, ChunkId, MAX_ANNOUNCED_BYTES, MAX_ANSWER_BYTES, MAX_COPY_LEVELS, MAX_REQUEST_PARTS,
    PIECE_BYTES, PIECES, Pieces, run_bytes,
};
pub use field::{Dtype, Field, Layout};
pub use located::{CodecChain, Located, Piece, Slice, Unit};
pub use places::{ChunkPlace, ChunkPlaces, SamplePlaces};
pub use sample_location::SampleLocation;

use serde::{Deserialize, Serialize};

#[cfg(not(target_pointer_width = "64"))]
compile_error!("Forebay addresses files and memory with 64 bits; 32-bit targets are not supported");

/// Ordinal of a sample in its dataset, counted from 0 over all shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SampleId(pub u64);

/// Ordinal of a shard (one file) in its dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u32);

/// Rank of a training process in its job, as in MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

/// Contiguous bytes of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// The file.
    pub shard: ShardId,
    /// First byte [bytes from the start of the file].
    pub offset: u64,
    /// Length \[bytes\].
    pub length: u64,
}

impl Extent {
    /// First byte after the extent [bytes from the start of the file].
    #[must_use]
    pub fn end(self) -> u64 {
        self.offset + self.length
    }
}
