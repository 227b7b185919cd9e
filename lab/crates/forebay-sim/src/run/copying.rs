//! A copy under way.

use forebay_model::{ModelTime, OpenFile};
use forebay_plan::CopyBlocks;

/// A file that a program opened, or that is staged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) shard: u32,
    pub(crate) is_staged: bool,
}

/// A file whose missing blocks a thread reads and copies.
#[derive(Debug)]
pub(crate) struct CopyJob {
    pub(crate) shard: u32,
    /// The source, as the daemon has it open.
    pub(crate) source: OpenFile,
    /// Length of the file \[B\].
    pub(crate) bytes: u64,
}

/// See the module header.
#[derive(Debug)]
pub(crate) struct Copying {
    pub(crate) level: u8,
    /// The source, as the daemon has it open.
    pub(crate) source: OpenFile,
    pub(crate) blocks: CopyBlocks,
    /// When a block was last written; once all are, when that was.
    pub(crate) progressed: ModelTime,
    /// When what is written has reached the device.
    pub(crate) flushed: ModelTime,
    /// Threads read the rest.
    pub(crate) is_handed: bool,
}
