//! Files to bytes: opening, reading with one retry policy, mapping, and what is known of a file
//! system.
//!
//! - [`DataFile`] is one file, opened once; [`read_most`] reads it, or anything else that is
//!   [`ReadAt`].
//! - [`ShardFiles`] are the files of a data set, checked against its index; where each sample has a
//!   file of its own, a [`SampleFileTable`] names them. [`open_beneath`] opens what lies beneath a
//!   folder, without following links.
//! - [`FileIo`] is the seam at which a read is one system call, answered by a [`Span`] of source
//!   or of a copy; [`FaultyIo`] injects faults there, in tests.
//! - [`Reader`] completes [`Transfer`]s by one [`Access`]: pread(2) or `io_uring`, with or without
//!   `O_DIRECT`. [`Failing::read`] is the same for one small read, and remembers where storage has
//!   failed.
//! - `retry.rs` decides what follows an error or a short answer: one policy for all of them.
//! - [`Mappings`] map the files, and answer whether touching bytes would wait for storage
//!   ([`Mappings::resident`]). [`guard`] makes a lost page an error that a reader can handle, where
//!   it would end the process.
//!   [`GuardedMap`] is one such mapping, of any file.
//! - [`Probe`] reports what works at a path, [`measure`] how fast, and [`FileSystem`] what kind of
//!   file system it is.
//!
//! Promises: no byte outside the caller's buffers is written; after an error no request is under
//! way; no file is ever written; a read from a shard takes no lock.
//!
//! Not done here: deciding what to read when (the plan), and checking what was read (the format).

// A test may panic where there are no threads.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod affinity;
mod bandwidth;
mod data_file;
mod error;
mod failing;
mod fault_injection;
mod file_system;
mod files;
pub mod guard;
mod guarded_map;
mod mappings;
mod one_file;
mod open;
mod open_beneath;
mod probe;
mod read_at;
mod readahead_window;
mod reader;
mod residency;
mod retry;
mod sample_files;
mod span;
mod syscalls;
mod uring;

pub use affinity::widen_affinity;
pub use bandwidth::{Limit, LimitKind, Measurement, measure};
pub use data_file::DataFile;
pub use error::ReadError;
pub use failing::Failing;
pub use fault_injection::FaultyIo;
pub use file_system::FileSystem;
pub use files::ShardFiles;
pub use guarded_map::GuardedMap;
pub use mappings::{Mappings, copy_in_order};
pub use one_file::read_most;
pub use open::{DIRECT_ALIGN_BYTES, file_system, file_system_at};
pub use open_beneath::{Links, open_beneath};
pub use probe::{Probe, probe_io_uring};
pub use read_at::ReadAt;
pub use reader::{Access, Reader, Refused};
pub use retry::{CopyCounters, ReadCounters};
pub use sample_files::{SampleFile, SampleFileTable};
pub use span::{At, Descriptor, LevelId, LevelSet, MAX_COPY_LEVELS, Span};
pub use syscalls::{Fault, FileIo, Transfer, pread_span};
