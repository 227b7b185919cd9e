//! The tier daemon: one per user and node, which owns quotas, slots and logs.
//!
//! - `level`: one level: slabs, slots, log.
//! - `cache`: which chunks have copies where, and who uses them.
//! - `server`: clients that come, ask and go.

mod cache;
mod level;
mod server;

pub use cache::Cache;
pub use level::LevelParts;
pub use server::{Server, socket_path};
