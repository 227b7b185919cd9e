//! Storage tiers: copies of chunks of a data set on faster storage of the node.
//!
//! - `chunk_map`: how a data set is cut into chunks and pieces. `source` says which file a copy is
//!   of; `entry` says where the copy of a chunk is.
//!
//! A *level* is one tier: a directory of slab files and a log. One daemon per user and set of
//! levels allocates slots, writes the logs and publishes copies in a table in shared memory. The
//! processes that read a data set look chunks up in the table, and write copies themselves.
//!
//! Promises: the source is never written; a byte is served from a copy only if it was read from
//! the source as it is now; a fault of a level is no error of a read.

// A test may panic where there are no threads.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod backing;
mod cache_advice;
mod chunk_map;
mod claims;
mod clear;
mod client;
mod copy_buffers;
mod copying_reads;
pub mod daemon;
mod directory;
mod directory_checks;
mod entry;
mod error;
#[cfg(test)]
mod faulty_level;
mod flush;
mod health;
pub mod log;
mod memory_level;
mod offer;
#[cfg(test)]
mod own_mounts;
mod path_json;
mod probe;
mod protocol;
mod read_all;
mod run_client;
mod run_options;
mod sampled;
mod slab_files;
mod source;
mod source_sample;
mod source_watch;
mod spec;
mod storage;
mod table;
mod thread_priority;
mod tiered_files;
pub mod words;
mod writer;
mod writers;

pub use backing::backing_identity;
pub use chunk_map::{ChunkMap, Geometry};
pub use claims::Claims;
pub use clear::{clear, drop_copies};
pub use client::{Attached, Client, Connection, DaemonAddress, Held};
pub use copy_buffers::{CopyBuffer, CopyBuffers};
pub use copying_reads::Fill;
pub use directory::TierDirectory;
pub use directory_checks::check_sources;
pub use entry::{Entry, MAX_FILES, MAX_LEVELS, MAX_SLABS, MAX_SLOTS, SlotId};
pub use error::TierError;
pub use health::{Action, Health, ReadMark};
pub use log::{CopyRecord, FileCopyRecord, FileTimes, Log, PieceSum, Record, Replayed};
pub use offer::{Copied, Offer, OfferedChunk, OfferedPiece, Publisher, SourceCheck};
pub use protocol::{AttachedLevel, DataSetId, LevelUsage, RootUsage, SourceUsage};
pub use run_client::{RunClient, runs_usage};
pub use run_options::RunOptions;
pub use sampled::{sampled_blocks, sampled_checksum};
pub use slab_files::SlabFiles;
pub use source::{SETTLED_NS, Source, SourceKey, SourceState};
pub use source_sample::differing_sources;
pub use spec::{TierOptions, TierSpec};
pub use storage::LevelStorage;
pub use table::{LevelState, Table, TableWriter};
pub use tiered_files::{Placement, TierSetup, TieredFiles};
pub use writer::Writer;
pub use writers::is_open_for_writing;
