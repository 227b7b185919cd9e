//! A cost model of a parallel file system: servers, links, and the clients on the nodes of a job.
//!
//! Four parts, each of which uses those before it:
//!
//! 1. `spec`: one file system as numbers ([`Spec`]), and twelve presets with a source per number.
//! 2. `model`: when the servers complete a request, given all earlier requests ([`Model`]).
//!    `layout` maps bytes to servers, `timeline` is the queue of one server.
//! 3. `client`: the requests that a node sends when its programs access files ([`Client`]):
//!    page cache and read-ahead. `file_system` joins nodes and model ([`FileSystem`]).
//! 4. `kernel`: actors in virtual time ([`Kernel`]); `virtual_time` runs lists of actions of
//!    programs on it ([`virtual_time::run`]).
//!
//! All is pure: no clock, no I/O, and equal calls return equal results on every machine. Times are
//! nanoseconds of the modelled file system ([`ModelTime`]).
#![forbid(unsafe_code)]

pub mod client;
mod error;
mod file_system;
mod ids;
mod kernel;
pub mod model;
pub mod spec;
pub mod virtual_time;

pub use client::{Access as ClientAccess, AccessMethod, ByteRange, Client, OpenFile, ReadAheadRules};
pub use error::Error;
pub use file_system::{AccessStep, FileSystem, NodeTraffic, ServerResult};
pub use ids::{FileId, ModelTime, NodeId, ServerId};
pub use kernel::{Actor, ActorId, Condition, Kernel, Processors};
pub use model::{Direction, Layout, Model, Noise, Piece, StripeExtent};
pub use spec::Spec;
