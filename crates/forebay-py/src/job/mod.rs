//! The processes of a job on one node: how they meet, and how one finds out that another has ended.

pub(crate) mod handshake;
pub(crate) mod listener;
pub(crate) mod runtime_directory;
pub(crate) mod siblings;
pub(crate) mod watchdog;
