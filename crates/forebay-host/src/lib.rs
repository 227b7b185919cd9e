//! What the processes of one node share: memory, wake-ups, sockets and limits.
//!
//! - [`sealed_memfd`], [`sealed_copy`], [`published_memfd`] and [`Draft`] create anonymous shared
//!   memory; [`Map`] maps it.
//! - [`EventCount`] wakes processes that wait for a word in shared memory. [`sync`] holds the
//!   atomics and locks that loom replaces.
//! - [`runtime_directory`] is the user's private directory on the node. [`SocketPath`] is a socket
//!   in it with a lock, [`PacketSocket`] sends packets with descriptors. [`Daemon`] is the loop of a
//!   process that serves such sockets.
//! - [`own_pidfd`] and [`first_exited`] detect the end of a process; [`Siblings`] are the processes
//!   that the same launcher started; [`fork`] distinguishes a forked child from its parent.
//! - [`available_bytes`] and related functions return how much memory this process may use.
//!   [`MemoryRefusal`] and [`ThreadError`] name the limit that was reached. [`allow_open_files`]
//!   raises that on open files. [`ThreadUsage`] is what a thread has used of its core.
//!
//! Promises: nothing has a name in a file system except the two files of a [`SocketPath`], which
//! its lock removes. Only [`EventCount::wait`] waits for another process. Everything that arrives
//! over a socket is validated, and both ends of a socket are processes of the same user.
//!
//! Not done here: which process joins which, the meaning of messages, and timeouts. The crate
//! starts no threads.

// A test may panic where there are no threads.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod daemon;
mod error;
mod event_count;
pub mod failpoint;
pub mod fork;
mod memfd;
mod memory_limits;
mod memory_refusal;
mod open_files;
mod packet_socket;
mod pidfd;
mod runtime_directory;
mod siblings;
pub mod sync;
mod thread_error;
mod thread_usage;

pub use daemon::{Caller, ClientId, Daemon, Reply, Service};
pub use error::HostError;
pub use event_count::EventCount;
pub use memfd::{Draft, Map, published_memfd, sealed_copy, sealed_length, sealed_memfd};
pub use memory_limits::{available_bytes, limit_bytes, physical_bytes};
pub use memory_refusal::{MemoryRefusal, address_left_bytes};
pub use open_files::allow_open_files;
pub use packet_socket::{MAX_FDS, Packet, PacketListener, PacketSocket, Received, Sent};
pub use pidfd::{first_exited, has_exited, own_pidfd};
pub use runtime_directory::{
    SocketLock, SocketPath, remove_stale_sockets, runtime_directory, runtime_directory_path,
};
pub use siblings::{Ended, Siblings};
pub use thread_error::ThreadError;
pub use thread_usage::ThreadUsage;
