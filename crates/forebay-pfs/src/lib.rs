//! A parallel file system that can be had on a laptop: what its requests cost.
//!
//! - `spec`: one file system in numbers ([`Spec`]); `presets` has twelve of them, with a source for each number.
//! - `layout`: which server holds which bytes of a file ([`Layout`]).
//! - `model`: when a request is answered, given all that came before it ([`Model`]); `timeline` is its queue.
//!
//! Everything here is pure: no clock, no I/O, the same answers for the same questions. Times are nanoseconds of the
//! modelled file system ([`ModelTime`]); whoever lives in real time multiplies them.
#![deny(unsafe_code)]

mod error;
pub mod layout;
pub mod model;
mod presets;
pub mod spec;
mod timeline;

pub use error::Error;
pub use layout::{Layout, Stretch};
pub use model::{FileId, Kind, Model, ModelTime, NodeId, Piece, ServerId};
pub use spec::Spec;
