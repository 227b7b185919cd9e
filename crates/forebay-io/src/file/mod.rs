//! Files, opened once and checked.
//!
//! - `open` and `beneath` open them, `system` says on which file system they lie, and
//!   `readahead_window` how much the kernel fetches there for one announcement.
//! - `data_file`: one file. `shards`: those of a dataset. `sample_files`: where each sample has
//!   one.
//! - `read_at`: the seam to anything that is read at an offset. `span`: where bytes of a file can
//!   be read.

pub(crate) mod beneath;
pub(crate) mod data_file;
pub(crate) mod open;
pub(crate) mod read_at;
pub(crate) mod readahead_window;
pub(crate) mod sample_files;
pub(crate) mod shards;
pub(crate) mod span;
pub(crate) mod system;
