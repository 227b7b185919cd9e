//! Work that takes too long for a thread that answers requests: invalidating other mounts' caches,
//! and fsync.
//!
//! A parallel file system keeps the caches of its nodes coherent with locks. Here a change through
//! one mount invalidates the kernel's caches of the other mounts a moment later.
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use forebay_model::NodeId;
use fuser::{INodeNo, Notifier};

use crate::locks::read_locked;
use crate::mount::{Mount, Mounts};

/// One piece of deferred work.
pub(crate) enum Deferred {
    /// Bytes of a file changed through the mount `by`. Length 0 means up to the end.
    InvalidateData { by: NodeId, inode: u64, offset: u64, length: u64 },
    /// A name changed through the mount `by`.
    InvalidateName { by: NodeId, parent: u64, name: OsString },
    /// Any other slow work.
    Run(Box<dyn FnOnce() + Send>),
    /// Ends the thread.
    Stop,
}

/// Executes deferred work until it is stopped.
pub(crate) fn run(mounts: &Mounts, work: &Receiver<Deferred>) {
    // ENOENT: the kernel does not know the file, so it has nothing to drop.
    while let Ok(deferred) = work.recv() {
        match deferred {
            Deferred::InvalidateData { by, inode, offset, length } => notify_others(mounts, by, |notifier| {
                let _ = notifier.inval_inode(INodeNo(inode), offset as i64, length as i64);
            }),
            Deferred::InvalidateName { by, parent, name } => notify_others(mounts, by, |notifier| {
                let _ = notifier.inval_entry(INodeNo(parent), &name);
            }),
            Deferred::Run(work) => work(),
            Deferred::Stop => return,
        }
    }
}

fn notify_others(mounts: &Mounts, by: NodeId, notify: impl Fn(&Notifier)) {
    // A copy: the kernel may take long, and mounting must not wait for it.
    let mounts: Vec<Arc<Mount>> = read_locked(mounts).clone();
    mounts.iter().filter(|mount| mount.node != by).filter_map(|mount| mount.notifier.get()).for_each(notify);
}
