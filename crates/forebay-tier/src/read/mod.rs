//! Reads of a dataset that has copies.
//!
//! - `tiered_files`: its files, with copies in tiers before them. `copying`: reads that fill the
//!   tiers.
//! - `source_sample`: whether copies of earlier jobs are the bytes of the sources now.
//! - `cache_advice`: advice to the kernel about bytes that have a copy.

pub(crate) mod cache_advice;
pub(crate) mod copying;
pub(crate) mod source_sample;
pub(crate) mod tiered_files;
