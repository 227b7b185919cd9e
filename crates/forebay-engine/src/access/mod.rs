//! The readers.
