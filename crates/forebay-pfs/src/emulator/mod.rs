//! The emulator: a directory, mounted through FUSE, at the speed of a modelled parallel file system.
//!
//! From the outside in:
//!
//! - [`serve`](fn@serve) is a server that runs until it is told to end; `control` is the socket over which it is told.
//! - [`Emulator`], in `running`, has the mounts. Each is a node of the model with a page cache of its own (the kernel's); all share one model, so they
//!   queue for the same servers. `mounting` checks, finds and removes mounts.
//! - `filesystem` answers the kernel's requests, `operations` is what they do: it books their cost with the model and gives the reply to `timers`, which send it at its time.
//!   `nodes` knows which file the kernel means, `backing` reaches it, `errands` does what takes long.
//! - `stats` reports what was counted; `clock` stretches time.
//!
//! It promises: the bytes of the backing directory, whatever is read how; each reply no earlier than a few microseconds before its modelled
//! time, and a measurement of how late they were; no sleep in the threads that take requests, so that queues are as deep as programs make them.
//!
//! It does not imitate the client of a parallel file system. Read-ahead, page cache and request sizes are those of Linux's FUSE client, with
//! the modelled file system's read-ahead for mappings as its window (`read_ahead_kb`): what a page fault fetches decides the ratios between
//! access patterns more than anything else, and Linux has one window for both mappings and `read()`.
mod backing;
mod calibration;
mod clock;
mod control;
mod errands;
mod error;
mod filesystem;
mod mapping;
mod mounting;
mod nodes;
mod operations;
mod running;
mod serve;
mod shared;
mod stats;
mod system;
mod timers;

pub use error::EmulatorError;
pub use running::{Configuration, Emulator};
pub use serve::serve;
