//! The state of one mount: a node of the model with its own page cache.
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use forebay_model::{FileId, NodeId};
use fuser::{FileType, INodeNo, Notifier};

use crate::files::inodes::Inodes;
use crate::files::mapping::Mapping;
use crate::locks::locked;

/// The mounts of one emulator.
pub(crate) type Mounts = RwLock<Vec<Arc<Mount>>>;

/// An open file.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) descriptor: OwnedFd,
    pub(crate) file: FileId,
    pub(crate) mapping: Mapping,
}

/// One entry of an open directory: inode, type, name.
pub(crate) type DirectoryEntry = (u64, FileType, OsString);

/// Whether a mount answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountState {
    Serving,
    /// All requests fail with ENOTCONN.
    Refusing,
    /// The kernel's connection was aborted: the mount stays, and never answers again.
    Aborted,
}

pub(crate) struct Mount {
    pub(crate) node: NodeId,
    pub(crate) path: PathBuf,
    /// `major:minor`, once mounted.
    pub(crate) device: OnceLock<String>,
    /// The kernel's read-ahead, once known \[KiB\].
    pub(crate) read_ahead_kb: OnceLock<u64>,
    pub(crate) notifier: OnceLock<Notifier>,
    pub(crate) inodes: Mutex<Inodes>,
    pub(crate) handles: RwLock<HashMap<u64, Arc<Handle>>>,
    pub(crate) directories: RwLock<HashMap<u64, Arc<Vec<DirectoryEntry>>>>,
    pub(crate) last_handle: AtomicU64,
    pub(crate) in_flight: InFlight,
    connection: Mutex<MountState>,
}

impl Mount {
    pub(crate) fn new(node: NodeId, path: PathBuf, root: Arc<OwnedFd>) -> io::Result<Mount> {
        Ok(Mount {
            node,
            path,
            device: OnceLock::new(),
            read_ahead_kb: OnceLock::new(),
            notifier: OnceLock::new(),
            inodes: Mutex::new(Inodes::new(root)?),
            handles: RwLock::default(),
            directories: RwLock::default(),
            last_handle: AtomicU64::new(0),
            in_flight: InFlight::default(),
            connection: Mutex::new(MountState::Serving),
        })
    }

    pub(crate) fn connection(&self) -> MountState {
        *locked(&self.connection)
    }

    pub(crate) fn set_connection(&self, connection: MountState) {
        *locked(&self.connection) = connection;
    }

    /// Changes the connection from `old` to `new`, if it is `old`.
    pub(crate) fn replace_connection(&self, old: MountState, new: MountState) {
        let mut connection = locked(&self.connection);
        if *connection == old {
            *connection = new;
        }
    }

    /// Fails with ENOTCONN unless the mount is serving. Checked for each request and each reply.
    pub(crate) fn check_serving(&self) -> io::Result<()> {
        match self.connection() {
            MountState::Serving => Ok(()),
            MountState::Refusing | MountState::Aborted => Err(io::Error::from_raw_os_error(libc::ENOTCONN)),
        }
    }

    /// Drops the kernel's pages and attributes of all files; returns the number of files.
    pub(crate) fn drop_caches(&self) -> u64 {
        let Some(notifier) = self.notifier.get() else { return 0 };
        let files = locked(&self.inodes).files();
        // ENOENT: the kernel has forgotten the file in the meantime.
        files.iter().filter(|&&inode| notifier.inval_inode(INodeNo(inode), 0, 0).is_ok()).count() as u64
    }
}

/// The number of unanswered reads, and its maximum.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    now: AtomicU64,
    max: AtomicU64,
}

impl InFlight {
    pub(crate) fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.max.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    pub(crate) fn reset(&self) {
        self.max.store(self.now.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
