//! Atomics that loom can replace, to model-check the code that uses them.

#[cfg(not(loom))]
pub use core::sync::atomic;

#[cfg(loom)]
pub use loom::sync::atomic;
