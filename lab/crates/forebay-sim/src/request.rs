//! Requests of readers and ranks: to the file system, or to a tier of the node.

use forebay_types::ShardId;

/// Where bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A file of the dataset.
    Source(ShardId),
    /// The slots of a tier.
    Level(usize),
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) holder: Holder,
    /// Offset in the file, or in the slots \[B\].
    pub(crate) offset: u64,
    /// Length \[B\].
    pub(crate) length: u64,
}
