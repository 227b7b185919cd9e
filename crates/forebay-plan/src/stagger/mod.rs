//! Staggered reads: only nodes that hold a token read at a time.
//!
//! The readers of a node wait until its [`TokenClient`] opens the gate of the node. There is one
//! client per node, in the process that is linked to the other nodes. Two threads call it: one that
//! receives messages, and one that waits for changes of the gate. It starts no thread and opens no
//! connection: [`TokenHost`] does that.

mod client;
mod server;

pub use client::TokenClient;

/// Callbacks of a client to the process that runs it: the gate of the node, and messages.
pub trait TokenHost {
    /// Whether a reader of the node wants to read.
    fn is_asked(&self) -> bool;

    /// Whether the gate is closed and no reader is inside.
    fn is_left(&self) -> bool;

    /// Opens the gate; the nodes are in `groups` groups now.
    fn open(&self, groups: u64);

    /// Lets readers read at any time, from now on.
    fn free(&self);

    /// Wakes the thread that waits for changes of the gate.
    fn wake(&self);

    /// Bytes that were read inside the gate since the last call.
    fn take_read_bytes(&self) -> u64;

    /// Whether a rank of the node has set the number of groups.
    fn is_regrouped(&self) -> bool;

    /// The number of groups that a rank has set; 0: to be measured.
    fn take_groups(&self) -> Option<u64>;

    /// Sends a message to the client of another node; false where that cannot be.
    fn send(&self, node: usize, message: Vec<u8>) -> bool;

    /// Whether a node has closed the loader.
    fn is_gone(&self, node: usize) -> bool;

    /// The time of a monotonic clock \[ns\].
    fn now_ns(&self) -> u64;
}
