//! The sidecar: an index as a file, one container for every format.
//!
//! A [`header`] of fixed size, what the dataset is as compressed JSON ([`meta`]), a directory of blocks, and the blocks;
//! [`contents`] opens all that, [`writer`] makes it. A block holds the places of up to [`BLOCK_RECORDS`] samples of one
//! shard and one column, coded ([`encode`], [`mod@decode`]) against the layout that the format would give them
//! ([`class`]) and compressed ([`mod@pack`]); it decodes alone and has its own checksum. A regular LMDB file costs well
//! under a tenth of a byte per record, one with random sizes the entropy of the sizes.
//!
//! All integers are little-endian. The layout to the byte is `docs/formats/sidecar.md`.
//!
//! Nothing in a sidecar is believed: every length is bounded before memory is taken for it, every checksum is
//! compared, and every place is held against the size of the shard.

pub(crate) mod block;
mod class;
mod contents;
mod decode;
mod encode;
mod header;
mod meta;
pub(crate) mod names;
mod pack;
pub(crate) mod tiles;
mod writer;

pub use block::{Entry, Part, PartPiece};
pub(crate) use class::NUMBER_BYTES;
pub use class::{RecordClass, StoredIn};
pub(crate) use contents::Contents;
pub(crate) use decode::decode;
pub(crate) use meta::MAX_CLASSES;
pub use meta::{Meta, ShardInfo, ShardState};
pub(crate) use pack::unpack_block;
pub use pack::{pack, unpack};
pub use tiles::Tiles;
pub use writer::Writer;
pub(crate) use writer::{NameTable, NameTableWriter};

/// First bytes of every sidecar. Not text, so that no tool takes it for some.
pub(crate) const MAGIC: [u8; 8] = *b"\x8fFOREBAY";

/// The version that is written, and the only one that is read.
pub(crate) const VERSION: u32 = 1;

/// Records per block.
///
/// A block of a regular file is about 60 bytes, of which 18 are overhead, and takes 20 µs to expand; 4,096 random
/// accesses to a data set of any size expand at most as many blocks.
pub const BLOCK_RECORDS: u32 = 4096;
