//! Files: what is read of them and how.

mod compression;
mod header_scan;
mod input;
mod json;
mod open_shards;
#[cfg(test)]
pub(crate) mod script;
mod text;

pub(crate) use compression::Compression;
pub use forebay_io::{DataFile, ReadAt};
pub(crate) use header_scan::HeaderScan;
pub use input::Input;
pub(crate) use input::IoCounters;
pub(crate) use json::{parse_json, read_json};
pub(crate) use open_shards::allow_open_shards;
pub(crate) use text::Text;
