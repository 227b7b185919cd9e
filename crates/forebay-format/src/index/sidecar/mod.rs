//! The sidecar: an index as a file, one container for every format.
//!
//! A sidecar has a [`header`] of fixed size, the description of the dataset as compressed JSON
//! ([`meta`]), a directory of blocks, and the blocks; [`contents`] opens it, [`writer`] makes it. A
//! block holds the locations of up to [`BLOCK_RECORDS`] samples of one shard and one column, coded
//! ([`encode`], [`mod@decode`]) against the layout that the format predicts ([`class`]) and
//! compressed ([`mod@pack`]). It decodes alone and has its own checksum. A regular LMDB file costs
//! well under a tenth of a byte per record, one with random sizes the entropy of the sizes.
//!
//! All integers are little-endian. The layout to the byte is `docs/formats/sidecar.md`.
//!
//! A sidecar is untrusted input: every length is bounded before memory is allocated, every checksum
//! compared, and every location checked against the size of the shard.

pub(crate) mod block;
mod class;
mod contents;
mod decode;
mod describe;
mod encode;
mod header;
mod meta;
pub(crate) mod names;
mod pack;
pub(crate) mod tiles;
mod units;
mod writer;

pub use block::{IndexEntry, Part, PartPiece};
pub(crate) use class::NUMBER_BYTES;
pub use class::{RecordClass, StoredIn};
pub(crate) use contents::Contents;
pub(crate) use decode::decode;
pub use describe::describe;
pub(crate) use header::MAX_COLUMNS;
pub(crate) use meta::MAX_CLASSES;
pub use meta::{Meta, ShardInfo, ShardState};
pub(crate) use pack::unpack_block;
pub use pack::{pack, unpack};
pub use tiles::Tiles;
pub use units::{SharedUnit, SharedUnits};
pub use writer::Writer;
pub(crate) use writer::{NameTable, NameTableWriter, assemble};

/// First bytes of every sidecar. Not printable, so that no tool takes the file for text.
pub(crate) const MAGIC: [u8; 8] = *b"\x8fFOREBAY";

/// The version that is written, and the only one that is read.
pub(crate) const VERSION: u32 = 2;

/// Records per block.
///
/// A block of a regular file is about 60 bytes, of which 18 are overhead, and takes 20 µs to
/// expand; 4,096 random accesses to a dataset of any size expand at most as many blocks.
pub const BLOCK_RECORDS: u32 = 4096;
