//! The serving side of a node.
//!
//! - `exporter` exports each `share`; `registry` lists them.
//! - `worker`: a server thread. `connection`: what it does with one client; `answering`: one answer
//!   on its way.

pub(crate) mod answering;
pub(crate) mod connection;
pub(crate) mod exporter;
pub(crate) mod registry;
pub(crate) mod share;
pub(crate) mod worker;
