//! What is on disk: container formats, indexes, sidecars.

mod error;
/// The LMDB reader below the datasets: public for fuzz targets, integration tests and tools, not a stable interface.
#[doc(hidden)]
pub mod lmdb;

pub use error::Error;
