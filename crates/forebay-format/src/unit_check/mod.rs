//! What a unit is checked against when it is read, long after its container was walked.
//!
//! - `tfrecord`: the checksums of a record.
//! - `lmdb_overflow_header`: the header of a value in overflow pages. It needs to know which state
//!   of which database is read (`lmdb_identity`), and how its machine laid it out
//!   (`lmdb_dialect`); `lmdb_page_error` is what it finds.

pub(crate) mod lmdb_dialect;
pub(crate) mod lmdb_identity;
pub(crate) mod lmdb_overflow_header;
pub(crate) mod lmdb_page_error;
pub(crate) mod tfrecord;
