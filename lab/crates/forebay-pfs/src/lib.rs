//! A model of a parallel file system, and an emulator that mounts a directory at its speed.
//!
//! Four parts, each of which uses those before it:
//!
//! 1. `spec`: one file system as numbers ([`Spec`]), and twelve presets with a source per number.
//! 2. `model`: when the servers complete a request, given all earlier requests ([`Model`]).
//!    `layout` maps bytes to servers, `timeline` is the queue of one server.
//! 3. `client`: the requests that a node sends when its programs access files ([`Client`]):
//!    page cache and read-ahead. `virtual_time` runs programs on nodes against the model without
//!    waiting ([`virtual_time::run`]).
//! 4. `emulator`: mounts a directory through FUSE and delays each reply until the model's time
//!    ([`emulator::Emulator`]).
//!
//! Parts 1 to 3 are pure: no clock, no I/O, and equal calls return equal results on every machine.
//! They count in nanoseconds of the modelled file system ([`ModelTime`]); the emulator scales them
//! to real time.
#![deny(unsafe_code)]

pub mod client;
pub mod emulator;
mod error;
mod ids;
pub mod model;
pub mod spec;
pub mod virtual_time;

pub use client::{AccessMethod, ByteRange, Client, OpenFile, ReadAheadRules};
pub use error::Error;
pub use ids::{FileId, ModelTime, NodeId, ServerId};
pub use model::{Direction, Layout, Model, Piece, StripeExtent};
pub use spec::Spec;
