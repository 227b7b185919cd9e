//! What the threads of a node do when.
//!
//! - `readers`: which blocks each reader fills; `announce_window`: which ones it announces to the
//!   kernel.
//! - `plan_window`: when a segment is planned; `back_pressure`: whether a rank fills one more
//!   batch.

pub(crate) mod announce_window;
pub(crate) mod back_pressure;
pub(crate) mod plan_window;
pub(crate) mod readers;
