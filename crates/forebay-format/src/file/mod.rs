//! Files: what is read of them and how.

mod compression;
mod header_scan;
mod read_at;

pub(crate) use compression::Compression;
pub(crate) use header_scan::HeaderScan;
pub use read_at::{DataFile, Input, ReadAt};
