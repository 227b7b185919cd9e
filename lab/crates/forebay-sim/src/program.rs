//! Programs that read for themselves, without a loader: which bytes they touch, and when.

use forebay_model::AccessMethod;
use serde::{Deserialize, Serialize};

/// A program in place of the loader. It reads a batch when the script asks for it, not before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// Each rank walks through a mapped LMDB file with a cursor, record by record, and takes the
    /// values of the samples of the rank. In `sequential` it passes those of all other ranks.
    Cursor {
        /// Whether the kernel reads ahead on the mapping.
        read_ahead: bool,
    },
}

impl Program {
    /// How it touches the file.
    pub(crate) fn access(self) -> AccessMethod {
        match self {
            Program::Cursor { read_ahead: true } => AccessMethod::Mmap,
            Program::Cursor { read_ahead: false } => AccessMethod::MmapRandom,
        }
    }
}
