//! Daemons, which run in a thread of the program that serves them, and what they are asked.

pub(crate) mod run;
pub(crate) mod store;
pub(crate) mod thread;
pub(crate) mod tiers;
