//! Batch buffers: their layout and leases, the pool of a rank, and the writing of fields into them.

pub mod buffer_pool;
#[cfg(not(loom))]
pub(crate) mod field_writer;
#[cfg(not(loom))]
pub(crate) mod layout;
