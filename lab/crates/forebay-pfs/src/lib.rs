//! An emulator that mounts a directory through FUSE at the speed of a modelled file system.
//!
//! The model is `forebay-model`'s. Each part uses those after it:
//!
//! - `server/`: a process that runs an emulator until a signal, a request or its last unmount ends
//!   it. `control` is the protocol of its socket.
//! - `instance`: [`Emulator`] owns the mounts. Each mount is a node of the model with its own page
//!   cache (the kernel's). All share one model, so they queue for the same servers. `mount_point`
//!   validates, mounts and unmounts.
//! - `stats`, `event_file`: reports.
//! - `filesystem`: the kernel's requests. It books each with the model and passes the reply to the
//!   scheduler, which sends it at the modelled time. `read_reply` is the data path.
//! - `context`: what all mounts share, the model and its records under one lock. `mount` is the
//!   state of one mount, `deferred` runs what takes long.
//! - `files/`: the backing directory. `timing/`: clock and reply scheduler. `records/`: counters,
//!   events and faults.
//!
//! Promises: the bytes are those of the backing directory, however they are read. A reply leaves at
//! most a few microseconds before its modelled time, and its lateness is measured. Threads that
//! receive requests never sleep, so queues are as deep as programs make them.
//!
//! The emulator does not imitate the client of a parallel file system. Read-ahead, page cache and
//! request sizes are those of Linux's FUSE client. Its one window, for mappings and `read()`, is
//! set to the modelled file system's window for mappings (`read_ahead_kb`): what a page fault
//! fetches decides the ratio between access patterns more than anything else.
#![deny(unsafe_code)]

mod context;
mod deferred;
mod error;
mod event_file;
mod files;
mod filesystem;
mod instance;
mod locks;
mod mount;
mod mount_point;
mod read_reply;
mod records;
mod server;
mod stats;
mod system;
mod timing;

pub use error::EmulatorError;
pub use instance::{Configuration, Emulator};
pub use records::faults::Fault;
pub use server::serve;
