//! What each node of a job holds of a dataset.
//!
//! - `chunk_map`: how the files are cut into chunks; `chunk_set`: a set of them.
//! - `shares`: which samples; `units`: how the dataset is cut for that; `unit_bytes`: into how long
//!   units.
//! - `loads`: how a node reads what it keeps in memory.
//! - `store_layout`: where chunks lie in the shares of an in-memory store; `peer_requests`: how a
//!   rank asks other nodes for bytes of theirs.

pub(crate) mod chunk_map;
pub(crate) mod chunk_set;
pub(crate) mod loads;
pub(crate) mod peer_requests;
pub(crate) mod shares;
pub(crate) mod store_layout;
pub(crate) mod unit_bytes;
pub(crate) mod units;
