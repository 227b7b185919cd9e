//! Loaders: engine, options and states.

pub(crate) mod engine;
pub(crate) mod options;
pub(crate) mod state;
