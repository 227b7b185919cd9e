//! The file table: which whole files have a copy on a storage tier, in memory that processes share.
//!
//! The daemon of the tiers writes the table, programs under `forebay run` read it at every open.
//! `docs/formats/file-table.md` has the layout to the byte.
//!
//! - [`Layout`] places the parts in a file. [`TableWriter`] fills the first part, which only the
//!   daemon writes; [`Table`] looks records up in it.
//! - A [`RecordId`] names a record: a [`SourceFile`], its [`CopyFile`] and a [`RecordState`].
//! - [`SharedPart`] is the second part, which everybody writes: [`TableCounter`]s, marks of sources
//!   that were opened for writing, and the ring of [`Wish`]es.
//!
//! Promises: no allocation, no system call, no unsafe code, and no wait. Everything works on a
//! slice of atomic words. So no content of a mapping can lead outside of it, and loom can check it
//! (`tests/loom_*.rs`).
#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]

mod bytes;
mod counter;
mod devices;
mod error;
mod hash;
mod header;
mod index;
mod layout;
mod record;
mod records;
mod shared;
pub mod sync;
mod table;
mod wishes;
mod writer;

pub use bytes::WORD_BYTES;
pub use counter::TableCounter;
pub use devices::MAX_DEVICES;
pub use error::TableError;
pub use hash::path_hash;
pub use header::{Flags, ServingState, Settings, SourcePrefix, retire};
pub use layout::{Layout, MAX_CAPACITY, MAX_LEVEL_PATH_BYTES, MAX_PREFIX_PATH_BYTES, MAX_PREFIXES};
pub use record::{CopyFile, CopyIdentity, Identity, MAX_LEVELS, RecordId, RecordState, SourceFile};
pub use records::{CopyStatus, RECORD_WORDS, Records, index_words};
pub use shared::SharedPart;
pub use table::{CopyPath, MAX_COPY_PATH_BYTES, Table};
pub use wishes::{MAX_WISH_PATH_BYTES, Next, Wish, WishRing, ring_words};
pub use writer::TableWriter;
