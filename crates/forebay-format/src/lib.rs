//! What is on disk: container formats, indexes, sidecars.

mod error;
mod lmdb;

pub use error::Error;
