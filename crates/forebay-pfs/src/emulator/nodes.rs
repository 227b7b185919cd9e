//! Which file the kernel means by a number: the inodes of one mount, and the numbers that all mounts share.
//!
//! A directory is held by a descriptor, which survives its renaming; any other file by the directories and names under which the kernel
//! found it. So the number of files has no limit, and no path is ever built to reach one.
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use fuser::FileType;

use crate::emulator::backing::{Key, Stamp, Status, open_directory};
use crate::model::FileId;

/// The kernel's number of the root directory.
pub(crate) const ROOT: u64 = 1;

/// Numbers of files, the same on all mounts of one emulator.
#[derive(Debug, Default)]
pub(crate) struct Identities {
    inodes: HashMap<Key, Identity>,
    last: u64,
    /// Path of each file below the root, as last seen.
    names: Vec<String>,
}

/// Both numbers of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The kernel's.
    pub(crate) inode: u64,
    /// The model's, for regular files: in the order in which they were first seen.
    pub(crate) file: Option<FileId>,
}

impl Identities {
    /// The numbers of a file; new ones for a new file.
    pub(crate) fn of(&mut self, status: &Status, name: impl FnOnce() -> String) -> Identity {
        if let Some(found) = self.inodes.get(&status.key()) {
            return *found;
        }
        self.last += 1;
        let file = (status.kind() == FileType::RegularFile).then(|| {
            self.names.push(name());
            FileId(self.names.len() as u64 - 1)
        });
        let identity = Identity { inode: ROOT + self.last, file };
        self.inodes.insert(status.key(), identity);
        identity
    }

    /// A file of this key is gone for good; another one may get its inode.
    pub(crate) fn gone(&mut self, key: Key) {
        self.inodes.remove(&key);
    }

    /// Where a file was last seen.
    pub(crate) fn name(&self, file: FileId) -> &str {
        self.names.get(file.0 as usize).map_or("?", String::as_str)
    }

    /// A file has another name now.
    pub(crate) fn renamed(&mut self, file: FileId, name: String) {
        if let Some(found) = self.names.get_mut(file.0 as usize) {
            *found = name;
        }
    }
}

/// One file as the kernel knows it on one mount.
#[derive(Debug)]
struct Node {
    key: Key,
    identity: Identity,
    directory: Option<Arc<OwnedFd>>,
    /// Directories and names; several where there are hard links.
    places: Vec<(u64, OsString)>,
    lookups: u64,
    /// The contents that the kernel's cache goes with.
    stamp: Stamp,
}

/// Where a file can be reached by `*at` calls.
pub(crate) struct Place {
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) name: OsString,
    pub(crate) key: Key,
    pub(crate) identity: Identity,
}

/// All files that the kernel knows on one mount.
#[derive(Debug)]
pub(crate) struct Nodes(HashMap<u64, Node>);

impl Nodes {
    pub(crate) fn new(root: Arc<OwnedFd>) -> io::Result<Nodes> {
        let status = Status::of(&root)?;
        let node = Node {
            key: status.key(),
            identity: Identity { inode: ROOT, file: None },
            directory: Some(root),
            places: Vec::new(),
            lookups: 1,
            stamp: status.stamp(),
        };
        Ok(Nodes(HashMap::from([(ROOT, node)])))
    }

    fn node(&self, inode: u64) -> io::Result<&Node> {
        self.0.get(&inode).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// A directory.
    pub(crate) fn directory(&self, inode: u64) -> io::Result<Arc<OwnedFd>> {
        self.node(inode)?.directory.clone().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTDIR))
    }

    /// Where a file is now.
    pub(crate) fn place(&self, inode: u64) -> io::Result<Place> {
        let node = self.node(inode)?;
        let (key, identity) = (node.key, node.identity);
        if let Some(directory) = &node.directory {
            return Ok(Place { directory: directory.clone(), name: ".".into(), key, identity });
        }
        let reached = node.places.iter().rev().find_map(|(parent, name)| {
            let directory = self.directory(*parent).ok()?;
            Some(Place { directory, name: name.clone(), key, identity })
        });
        reached.ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// Path below the root of `name` in a directory; for people.
    pub(crate) fn path(&self, parent: u64, name: &OsStr) -> PathBuf {
        let mut parts = vec![name];
        let mut at = parent;
        while at != ROOT {
            let Some((up, name)) = self.0.get(&at).and_then(|node| node.places.last()) else { break };
            parts.push(name);
            at = *up;
        }
        parts.iter().rev().collect()
    }

    /// The kernel is told of a file: it knows it once more than before.
    pub(crate) fn entered(
        &mut self,
        parent: u64,
        name: &OsStr,
        status: &Status,
        identity: Identity,
    ) -> io::Result<()> {
        if !self.0.contains_key(&identity.inode) {
            let directory = match status.kind() {
                FileType::Directory => Some(Arc::new(open_directory(self.directory(parent)?, name)?)),
                _ => None,
            };
            let (key, stamp) = (status.key(), status.stamp());
            let node = Node { key, identity, directory, places: Vec::new(), lookups: 0, stamp };
            self.0.insert(identity.inode, node);
        }
        let Some(node) = self.0.get_mut(&identity.inode) else { return Ok(()) };
        node.lookups += 1;
        if identity.inode != ROOT && !node.places.iter().any(|place| place.0 == parent && place.1 == name) {
            if node.directory.is_some() {
                node.places.clear();
            }
            node.places.push((parent, name.to_owned()));
        }
        Ok(())
    }

    /// The kernel forgets a file so many times.
    pub(crate) fn forget(&mut self, inode: u64, lookups: u64) {
        let Some(node) = self.0.get_mut(&inode) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 && inode != ROOT {
            self.0.remove(&inode);
        }
    }

    /// A name is gone.
    pub(crate) fn removed(&mut self, parent: u64, name: &OsStr, inode: u64) {
        if let Some(node) = self.0.get_mut(&inode) {
            node.places.retain(|place| place.0 != parent || place.1 != name);
        }
    }

    /// A name is another one now.
    pub(crate) fn renamed(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), inode: u64) {
        self.removed(from.0, from.1, inode);
        if let Some(node) = self.0.get_mut(&inode) {
            node.places.push((to.0, to.1.to_owned()));
        }
    }

    /// Remembers that the kernel's cache goes with these contents; answers whether it did not before.
    pub(crate) fn restamp(&mut self, inode: u64, stamp: Stamp) -> bool {
        self.0.get_mut(&inode).is_some_and(|node| std::mem::replace(&mut node.stamp, stamp) != stamp)
    }

    /// All files but directories.
    pub(crate) fn files(&self) -> Vec<u64> {
        self.0.iter().filter(|(_, node)| node.directory.is_none()).map(|(&inode, _)| inode).collect()
    }
}
