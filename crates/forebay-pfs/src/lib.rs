//! A parallel file system that can be had on a laptop: what its requests cost.
//!
//! - `spec`: one file system in numbers ([`Spec`]); `presets` has twelve of them, with a source for each number.
//! - `layout`: which server holds which bytes of a file ([`Layout`]).
//! - `model`: when a request is answered, given all that came before it ([`Model`]); `timeline` is its queue.
//! - `client`: what a node asks for when its programs touch files ([`Client`]): page cache and read-ahead.
//! - `virtual_time`: programs on nodes, run against the model without waiting ([`virtual_time::run`]).
//! - `counters`, `events`, `faults`: what was done, when, and what is broken on command.
//! - `emulator`: a directory, mounted at the model's speed in real time ([`emulator::Emulator`]).
//!
//! Everything but the emulator is pure: no clock, no I/O, the same answers for the same questions. Times are nanoseconds of the
//! modelled file system ([`ModelTime`]); whoever lives in real time multiplies them.
#![deny(unsafe_code)]

pub mod client;
pub mod counters;
pub mod emulator;
mod error;
pub mod events;
pub mod faults;
pub mod layout;
pub mod model;
mod page_cache;
mod presets;
mod read_ahead;
pub mod spec;
mod timeline;
pub mod virtual_time;

pub use client::{Client, How, OpenFile, Range, Rules};
pub use error::Error;
pub use layout::{Layout, Stretch};
pub use model::{FileId, Kind, Model, ModelTime, NodeId, Piece, ServerId};
pub use spec::Spec;
