//! Files to bytes: opening, reading with one retry policy, mapping, and what is known of a file
//! system.
//!
//! Each folder imports only from those above it:
//!
//! - `error`, `affinity`: what goes wrong between a file and memory; where threads may run.
//! - `file`: files, opened once and checked.
//! - `read`: reads, with one policy for errors and short answers.
//! - `map`: mapped files, and what is resident of them.
//! - `measure`: which accesses work, and how fast.
//!
//! What they offer:
//!
//! * [`DataFile`] is one file, opened once; [`read_most`] reads it, or anything else that is
//!   [`ReadAt`].
//! * [`ShardFiles`] are the files of a dataset, checked against its index; where each sample has a
//!   file of its own, a [`SampleFileTable`] names them. [`open_beneath`] opens what lies beneath a
//!   folder, without following links.
//! * [`FileIo`] is the seam at which a read is one system call, answered by a [`Span`] of source
//!   or of a copy; [`FaultyIo`] injects faults there, in tests.
//! * [`Reader`] completes [`Transfer`]s by one [`Access`]: pread(2) or `io_uring`, with or without
//!   `O_DIRECT`. [`Failing::read`] is the same for one small read, and remembers where storage has
//!   failed.
//! * `read/retry.rs` decides what follows an error or a short answer: one policy for all of them.
//! * [`Mappings`] map the files, and answer whether touching bytes would wait for storage
//!   ([`Mappings::resident`]). [`guard`] makes a lost page an error that a reader can handle, where
//!   it would end the process.
//!   [`GuardedMap`] is one such mapping, of any file.
//! * [`AccessProbe`] reports what works at a path, [`measure`] how fast, and [`FileSystem`] what
//!   kind of file system it is.
//!
//! Promises: no byte outside the caller's buffers is written; after an error no request is under
//! way; no file is ever written; a read from a shard takes no lock.
//!
//! Not done here: deciding what to read when (the plan), and checking what was read (the format).

// A test may panic where there are no threads.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod affinity;
mod error;
mod file;
mod map;
mod measure;
mod read;

pub use affinity::widen_affinity;
pub use error::ReadError;
pub use file::beneath::{Links, open_beneath};
pub use file::data_file::DataFile;
pub use file::open::{DIRECT_ALIGN_BYTES, file_system, file_system_at};
pub use file::read_at::ReadAt;
pub use file::sample_files::{SampleFile, SampleFileTable};
pub use file::shards::ShardFiles;
pub use file::span::{At, Descriptor, LevelId, LevelSet, MAX_COPY_LEVELS, Span};
pub use file::system::FileSystem;
pub use map::guard;
pub use map::guarded::GuardedMap;
pub use map::mappings::{Mappings, copy_in_order};
pub use measure::access_probe::{AccessProbe, probe_io_uring};
pub use measure::bandwidth::{Limit, LimitKind, Measurement, measure};
pub use read::failing::Failing;
pub use read::fault_injection::FaultyIo;
pub use read::one_file::read_most;
pub use read::reader::{Access, Reader, Refused};
pub use read::retry::{CopyCounters, ReadCounters};
pub use read::syscalls::{Fault, FileIo, Transfer, pread_span};
