//! The emulator: mounts a directory through FUSE at the speed of a modelled parallel file system.
//!
//! From the outside in:
//!
//! - **Server.** [`serve`] runs an emulator until a signal, a request or its last unmount ends it.
//!   `control` is the protocol of its socket.
//! - **Instance.** [`Emulator`] owns the mounts. Each mount is a node of the model with its own
//!   page cache (the kernel's). All share one model, so they queue for the same servers.
//!   `mount_point` validates, mounts and unmounts.
//! - **Requests.** `filesystem` implements the requests of the kernel. It books each with the model
//!   and passes the reply to `reply_scheduler`, which sends it at the modelled time. `read_reply`
//!   is the data path, through `mapping`. `backing` accesses the real files, `inodes` resolves the
//!   kernel's inode numbers, `deferred` runs what takes long.
//! - **State.** `mount` is the state of one mount, `context` what all mounts share: the model,
//!   `counters`, `events` and `faults` under one lock.
//! - **Time.** `clock` scales the model's time; `round_trip` measures the overhead of the kernel.
//! - **Reports.** `stats` formats the counters, `event_file` writes the events.
//!
//! Promises: the bytes are those of the backing directory, however they are read. A reply leaves at
//! most a few microseconds before its modelled time, and its lateness is measured. Threads that
//! receive requests never sleep, so queues are as deep as programs make them.
//!
//! The emulator does not imitate the client of a parallel file system. Read-ahead, page cache and
//! request sizes are those of Linux's FUSE client. Its one window, for mappings and `read()`, is
//! set to the modelled file system's window for mappings (`read_ahead_kb`): what a page fault
//! fetches decides the ratio between access patterns more than anything else.
mod backing;
mod clock;
mod context;
mod control;
mod counters;
mod deferred;
mod error;
mod event_file;
mod events;
mod faults;
mod filesystem;
mod inodes;
mod instance;
mod locks;
mod mapping;
mod mount;
mod mount_point;
mod read_reply;
mod reply_scheduler;
mod round_trip;
mod server;
mod stats;
mod system;

pub use error::EmulatorError;
pub use faults::Fault;
pub use instance::{Configuration, Emulator};
pub use server::serve;
