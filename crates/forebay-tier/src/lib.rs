//! Storage tiers: copies of chunks of a dataset on faster storage of the node.
//!
//! A *level* is one tier: a directory of slab files and a log. One daemon per user and
//! node allocates slots, writes the logs and publishes copies in a table in shared memory. The
//! processes that read a dataset look chunks up in the table, and write copies themselves.
//!
//! Each folder imports only from those above it:
//!
//! - `error`, `read_all`, `thread_priority`: what several of them use.
//! - `source`: which file a copy is of, and whether that has changed.
//! - `table`: how a dataset is cut into chunks and pieces, and where the copy of each one is.
//! - [`log`]: what a level has, for the next daemon.
//! - `level`: directory, slabs and health of a level.
//! - `copy`: how copies are written.
//! - [`daemon`]: the daemon and its messages.
//! - `client`: the connection to it.
//! - `read`: reads of a dataset that has copies.
//!
//! Promises: the source is never written; a byte is served from a copy only if it was read from
//! the source as it is now; a fault of a level is no error of a read.

// A test may panic where there are no threads.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod client;
mod copy;
pub mod daemon;
mod error;
mod level;
pub mod log;
mod read;
mod read_all;
mod source;
mod table;
mod thread_priority;

pub use client::clear::{clear, drop_copies};
pub use client::connection::{DaemonAddress, TierConnection};
pub use client::run::{RunClient, runs_usage};
pub use client::{Attached, Held, TierClient};
pub use copy::buffers::{CopyBuffer, CopyBuffers};
pub use copy::offer::{Copied, Offer, OfferedChunk, OfferedPiece, Publisher, SourceCheck};
pub use copy::writer::Writer;
pub use daemon::protocol::{AttachedLevel, DatasetId, LevelUsage, RootUsage, SourceUsage};
pub use daemon::run_options::RunOptions;
pub use error::TierError;
pub use level::directory::TierDirectory;
pub use level::directory_checks::check_sources;
pub use level::health::{Health, LevelOperation, ReadMark};
pub use level::slab_files::SlabFiles;
pub use level::storage::LevelStorage;
pub use log::{CopyRecord, FileCopyRecord, FileTimes, Log, PieceSum, Record, Replayed};
pub use read::copying::Fill;
pub use read::source_sample::differing_sources;
pub use read::tiered_files::{PlacementFn, TierSetup, TieredFiles};
pub use source::backing::backing_identity;
pub use source::identity::{SETTLED_NS, Source, SourceKey, SourceState};
pub use source::open_writers::is_open_for_writing;
pub use source::sampled::{sampled_blocks, sampled_checksum};
pub use table::claims::Claims;
pub use table::entry::{ChunkEntry, MAX_FILES, MAX_LEVELS, MAX_SLABS, MAX_SLOTS, SlotId};
pub use table::words;
pub use table::{LevelState, Table, TableWriter};
