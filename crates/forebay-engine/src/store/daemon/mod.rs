//! The daemon of the in-memory store: keeps shares between jobs.
//!
//! How it works, in order:
//! 1. A user starts it on a node. It listens on a socket in the private runtime directory.
//! 2. The leader of a loader asks it for the share of its dataset, and gets sealed memory. The
//!    connection stays open while the loader uses the share.
//! 3. A share that a loader has loaded is handed to the daemon as sealed memory.
//! 4. Unused shares are dropped where memory is needed, the least recently used first. The daemon
//!    ends when nothing was used for its idle time.
//!
//! The daemon reads no dataset and serves no samples: loaders do both.
//!
//! - `messages`: what they send to each other.
//! - `kept_shares`: the shares, and which of them are dropped.
//! - `server`: what the daemon does for its clients. `client`: a connection to it.
//!
//! Promises: each side checks that the other is a process of the same user, and memory by its seals
//! and length before use. No request waits longer than its timeout.

mod client;
mod error;
mod kept_shares;
mod messages;
mod server;

pub(crate) use client::{FoundShare, StoreConnection};
pub use client::{stop_store, store_status};
pub use error::StoreDaemonError;
pub(crate) use messages::{SharedDataset, share_bytes};
pub use server::StoreDaemon;

use std::time::Duration;

use forebay_host::{HostError, SocketPath, runtime_directory};

/// Longest wait for an answer. The daemon does nothing slow but freeing memory.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The same for each GiB that the daemon may have to free: the kernel frees several in a second.
const FREE_WITHIN: Duration = Duration::from_secs(1);

/// The socket of this user's daemon on this node; creates its directory if needed.
fn socket_path() -> Result<SocketPath, HostError> {
    // Nodes may share the runtime directory.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    SocketPath::new(&runtime_directory()?, &["forebay store", boot.trim()])
}
