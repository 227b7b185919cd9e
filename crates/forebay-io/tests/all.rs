//! All tests of the crate in one program: it is linked once.

mod bandwidth;
mod open;
mod residency;
mod retry;
mod same_bytes;
mod spans;
mod support;
