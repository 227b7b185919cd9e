//! Seams for strategies that are plugged into a loader.
//!
//! - A [`SampleLocator`] finds where samples lie, in place of the index.
//! - An [`IndexScanner`] makes the index that the loader uses, in place of the kept or built one.
//!
//! The caller of the engine passes them in. The engine owns threads, shared memory and connections,
//! and hands a strategy what it needs through the host traits here. A loader without strategies
//! makes none of these calls.

use std::sync::Arc;

use forebay_types::{Extent, Rank, SampleLocation, ShardId};

use crate::order::Order;

/// Bytes of the dataset's files, as a strategy sees them.
pub trait MappedShards {
    /// Bytes of a mapped shard; `None` where it has none. A missing page is a page fault of the
    /// thread that touches it.
    fn bytes(&self, shard: ShardId, offset: u64, length: u64) -> Option<&[u8]>;

    /// Asks the kernel for the pages of an extent, as far as the shard has them; returns how many
    /// bytes those are.
    fn prefetch(&self, extent: Extent) -> u64;
}

/// What a locator is made for.
#[derive(Clone, Debug)]
pub struct LocatorTask {
    /// The order.
    pub order: Order,
    /// The ranks whose samples it locates.
    pub ranks: Vec<Rank>,
    /// First step of the session.
    pub start: u64,
    /// Index of this node in `nodes`.
    pub node: usize,
    /// Ranks of each node that this one is linked to, and its own; its own alone without links.
    pub nodes: Vec<Vec<u32>>,
}

/// Makes the locators of a process; they live as long as a session.
pub trait LocatorFactory: Send + Sync {
    /// An index of the dataset.
    type Index;
    /// Why samples cannot be located.
    type Error;

    /// Checks that the dataset is one whose samples can be located.
    ///
    /// # Errors
    /// The format of the dataset.
    fn check(&self) -> Result<(), Self::Error>;

    /// Makes a locator.
    fn locator(&self, task: LocatorTask, index: Arc<Self::Index>) -> BoxedLocator<Self::Error>;
}

/// A locator that some factory made.
pub type BoxedLocator<E> = Box<dyn SampleLocator<Error = E>>;

/// Finds where the samples of its ranks lie, without the index.
pub trait SampleLocator: Send {
    /// Why samples cannot be located.
    type Error;

    /// Locates the samples of a step, and publishes those of each rank in the order of their slots.
    /// Steps ascend.
    ///
    /// # Errors
    /// What the locator found in the files. The host then locates all samples by the
    /// index.
    fn locate(&mut self, step: u64, host: &dyn LocatorHost) -> Result<(), Self::Error>;
}

/// What a locator counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocatorCounter {
    /// Bytes of cursors that were sent to other nodes.
    CursorBytes,
    /// Pages that were prefetched on a guess.
    GuessedPages,
    /// Pages of samples that had been guessed.
    GuessHits,
    /// Pages of samples that had not been guessed.
    GuessMisses,
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The node has closed the loader.
    Gone,
    /// No message can be sent or received any more.
    Closed,
}

/// Callbacks of a locator to the process that runs it.
pub trait LocatorHost: MappedShards {
    /// Publishes where the sample in slot `slot` of the `rank`-th rank of the task lies.
    fn publish(&self, rank: usize, slot: usize, location: SampleLocation);

    /// Fetches the pages of a located record, where it will be copied from the mapping.
    fn touch(&self, record: Extent);

    /// Adds to a counter.
    fn count(&self, counter: LocatorCounter, amount: u64);

    /// Reports why a cursor from another node was rejected: the root continues from its own.
    fn report_refused_cursor(&self, reason: String);

    /// Whether the session has ended.
    fn is_stopped(&self) -> bool;

    /// Whether a rank of the node has everything before `step`, and lacks that.
    fn is_starving(&self, step: u64) -> bool;

    /// Whether this process is linked to other nodes.
    fn is_linked(&self) -> bool;

    /// Sends a message to the locator of another node.
    ///
    /// # Errors
    /// See [`SendError`].
    fn send(&self, node: usize, message: Vec<u8>) -> Result<(), SendError>;

    /// Waits for a message from the locator of another node; `None` once `stop` returns true.
    ///
    /// # Errors
    /// [`SendError::Closed`].
    fn receive(&self, stop: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>, SendError>;
}

/// Makes the index of a dataset in a way of its own, when the loader is made: once in a job whose
/// nodes are linked.
pub trait IndexScanner: Send + Sync {
    /// Why there is no index.
    type Error;

    /// Checks that the dataset is one that can be scanned.
    ///
    /// # Errors
    /// The format of the dataset.
    fn check(&self) -> Result<(), Self::Error>;

    /// Makes the index; returns its bytes.
    ///
    /// # Errors
    /// What is wrong with the files; an interruption.
    fn scan(&self, host: &dyn ScanHost) -> Result<Vec<u8>, Self::Error>;
}

/// Callbacks of a scanner to the process that runs it.
pub trait ScanHost: MappedShards + Sync {
    /// Reports progress: `done` of `total` units of `what`; false where the scan is to end.
    fn progress(&self, what: &str, done: u64, total: u64) -> bool;
}
