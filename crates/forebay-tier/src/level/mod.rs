//! A level: its directory, its slabs, and whether it works.
//!
//! - `directory` is where it lies, `directory_checks` says which directories are refused.
//! - `storage` is the seam to its slabs: `slab_files` are files, `memory` is memory, and `faulty`
//!   fails on purpose.
//! - `health`: which levels work, as this process sees it. `probe`: which tier is slower than one
//!   that comes after it.

pub(crate) mod directory;
pub(crate) mod directory_checks;
#[cfg(test)]
pub(crate) mod faulty;
pub(crate) mod health;
pub(crate) mod memory;
#[cfg(test)]
pub(crate) mod own_mounts;
pub(crate) mod probe;
pub(crate) mod slab_files;
pub(crate) mod storage;
