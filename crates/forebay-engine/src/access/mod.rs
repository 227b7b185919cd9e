//! The readers: everything that touches the files of a data set.
//!
//! - [`ShardFiles`] are the files, opened and checked once; [`FileIo`] is the seam at which a read is one system call.
//! - [`Reader`] completes [`Transfer`]s by one [`Access`]: pread(2) or `io_uring`, with or without `O_DIRECT`. [`Failing::read`] is the same for a gathering thread that wants one sample, and knows where storage has failed.
//! - `policy` decides what follows an error or a short answer, alike for all of them.
//! - [`Mappings`] are mappings of the files, with an answer to whether touching them would wait ([`Mappings::resident`]). `guard`
//!   makes of a page that is lost meanwhile what a reader can throw away, not the end of the process.
//! - [`Probe`] tells what works at a place; [`measure`] how fast, without any of the above.
//!
//! Promises: no byte outside the caller's buffers is written; after an error nothing is under way; nothing is written
//! to a file, ever; no lock is taken on the way of a read from a shard. Not done here: deciding what to read when (the plan),
//! checking what was read (the format).

mod affinity;
mod error;
mod failing;
mod fault;
mod file_system;
mod files;
mod guard;
mod io;
mod limit;
mod mappings;
mod open;
mod policy;
mod probe;
mod reader;
mod residency;
mod ring;
mod sample_files;
mod window;

pub use affinity::widen_affinity;
pub use error::ReadError;
pub use failing::Failing;
pub use fault::FaultyIo;
pub use file_system::FileSystem;
pub use files::ShardFiles;
pub(crate) use guard::{faults, keep, keep_now, unblock};
pub use io::{At, Fault, FileIo};
pub use limit::{Limit, LimitKind, Measurement, measure};
pub use mappings::Mappings;
pub(crate) use mappings::copy_in_order;
pub use open::DIRECT_ALIGN_BYTES;
pub(crate) use open::file_system_at;
pub use policy::ReadCounters;
pub use probe::{Probe, probe_io_uring};
pub use reader::{Access, Reader, Transfer};
