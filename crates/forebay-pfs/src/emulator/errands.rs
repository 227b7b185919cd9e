//! What must not be done by a thread that answers requests, as it may take long: telling other mounts of a change, writing to disk.
//!
//! A parallel file system keeps the caches of its nodes coherent by locks. Here a change through one mount is told to the kernel's caches of
//! the others a moment later.
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, Sender};

use fuser::INodeNo;

use crate::emulator::shared::Shared;
use crate::model::NodeId;

/// One thing to do.
pub(crate) enum Errand {
    /// Bytes of a file have changed through one mount: the others drop them. A length of 0 is all from there on.
    Changed { by: NodeId, inode: u64, offset: u64, length: u64 },
    /// A name has changed through one mount: the others look again.
    Renamed { by: NodeId, parent: u64, name: OsString },
    /// Anything slow.
    Slow(Box<dyn FnOnce() + Send>),
    /// Nothing more will come.
    Stop,
}

/// Where errands are left.
pub(crate) type Errands = Sender<Errand>;

/// Does errands until told to stop.
pub(crate) fn run(shared: &Shared, errands: &Receiver<Errand>) {
    // The kernel refuses (ENOENT) what it does not know; then there is nothing to drop.
    while let Ok(errand) = errands.recv() {
        match errand {
            Errand::Changed { by, inode, offset, length } => {
                for other in shared.mounts().iter().filter(|mount| mount.node != by) {
                    if let Some(notifier) = other.notifier.get() {
                        let _ = notifier.inval_inode(INodeNo(inode), offset as i64, length as i64);
                    }
                }
            }
            Errand::Renamed { by, parent, name } => {
                for other in shared.mounts().iter().filter(|mount| mount.node != by) {
                    if let Some(notifier) = other.notifier.get() {
                        let _ = notifier.inval_entry(INodeNo(parent), &name);
                    }
                }
            }
            Errand::Slow(work) => work(),
            Errand::Stop => return,
        }
    }
}
