//! Resolves the kernel's inode numbers: the inodes of one mount, and the numbers that all mounts
//! share.
//!
//! A directory is held by a descriptor, which survives a rename; any other file by the directories
//! and names under which the kernel found it. So the number of files has no limit, and no file is
//! reached by a path.
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_model::FileId;
use fuser::FileType;

use crate::files::backing::{Key, Status, Version, open_directory};

/// Inode number of the root directory.
pub(crate) const ROOT: u64 = 1;

/// The numbers of files, equal on all mounts of one emulator.
#[derive(Debug, Default)]
pub(crate) struct FileNumbers {
    numbers: HashMap<Key, Numbers>,
    last: u64,
    /// Last known path of each file below the root.
    names: Vec<String>,
}

/// The numbers of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// The inode number for the kernel.
    pub(crate) inode: u64,
    /// The model's number of a regular file, in order of first lookup.
    pub(crate) file: Option<FileId>,
}

impl FileNumbers {
    /// Returns the numbers of a file; assigns them at the first call.
    pub(crate) fn of(&mut self, status: &Status, name: impl FnOnce() -> String) -> Numbers {
        if let Some(found) = self.numbers.get(&status.key()) {
            return *found;
        }
        self.last += 1;
        let file = (status.kind() == FileType::RegularFile).then(|| {
            self.names.push(name());
            FileId(self.names.len() as u64 - 1)
        });
        let numbers = Numbers { inode: ROOT + self.last, file };
        self.numbers.insert(status.key(), numbers);
        numbers
    }

    /// Forgets a deleted file: a new file may get its key.
    pub(crate) fn remove(&mut self, key: Key) {
        self.numbers.remove(&key);
    }

    /// Last known path of a file.
    pub(crate) fn name(&self, file: FileId) -> &str {
        self.names.get(file.0 as usize).map_or("?", String::as_str)
    }

    /// Records the new path of a file.
    pub(crate) fn renamed(&mut self, file: FileId, name: String) {
        if let Some(found) = self.names.get_mut(file.0 as usize) {
            *found = name;
        }
    }
}

/// One file that the kernel knows on one mount.
#[derive(Debug)]
struct Inode {
    key: Key,
    numbers: Numbers,
    directory: Option<Arc<OwnedFd>>,
    /// Parent directories and names; several for hard links.
    names: Vec<(u64, OsString)>,
    lookups: u64,
    /// The contents that the kernel has cached.
    version: Version,
}

/// How to reach a file by `*at` calls.
pub(crate) struct Located {
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) name: OsString,
    pub(crate) key: Key,
    pub(crate) numbers: Numbers,
}

/// The files that the kernel knows on one mount.
#[derive(Debug)]
pub(crate) struct Inodes(HashMap<u64, Inode>);

impl Inodes {
    pub(crate) fn new(root: Arc<OwnedFd>) -> io::Result<Inodes> {
        let status = Status::of(&root)?;
        let node = Inode {
            key: status.key(),
            numbers: Numbers { inode: ROOT, file: None },
            directory: Some(root),
            names: Vec::new(),
            lookups: 1,
            version: status.version(),
        };
        Ok(Inodes(HashMap::from([(ROOT, node)])))
    }

    fn get(&self, inode: u64) -> io::Result<&Inode> {
        self.0.get(&inode).ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// Descriptor of a directory.
    pub(crate) fn directory(&self, inode: u64) -> io::Result<Arc<OwnedFd>> {
        self.get(inode)?.directory.clone().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTDIR))
    }

    /// How to reach a file.
    pub(crate) fn locate(&self, inode: u64) -> io::Result<Located> {
        let node = self.get(inode)?;
        let (key, numbers) = (node.key, node.numbers);
        if let Some(directory) = &node.directory {
            return Ok(Located { directory: directory.clone(), name: ".".into(), key, numbers });
        }
        let reached = node.names.iter().rev().find_map(|(parent, name)| {
            let directory = self.directory(*parent).ok()?;
            Some(Located { directory, name: name.clone(), key, numbers })
        });
        reached.ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// Path below the root of `name` in a directory, for reports.
    pub(crate) fn path(&self, parent: u64, name: &OsStr) -> PathBuf {
        let mut parts = vec![name];
        let mut at = parent;
        while at != ROOT {
            let Some((up, name)) = self.0.get(&at).and_then(|node| node.names.last()) else { break };
            parts.push(name);
            at = *up;
        }
        parts.iter().rev().collect()
    }

    /// Counts one more lookup of a file by the kernel.
    pub(crate) fn looked_up(
        &mut self,
        parent: u64,
        name: &OsStr,
        status: &Status,
        numbers: Numbers,
    ) -> io::Result<()> {
        if !self.0.contains_key(&numbers.inode) {
            let directory = match status.kind() {
                FileType::Directory => Some(Arc::new(open_directory(self.directory(parent)?, name)?)),
                _ => None,
            };
            let (key, version) = (status.key(), status.version());
            let node = Inode { key, numbers, directory, names: Vec::new(), lookups: 0, version };
            self.0.insert(numbers.inode, node);
        }
        let Some(node) = self.0.get_mut(&numbers.inode) else { return Ok(()) };
        node.lookups += 1;
        if numbers.inode != ROOT && !node.names.iter().any(|one| one.0 == parent && one.1 == name) {
            if node.directory.is_some() {
                node.names.clear();
            }
            node.names.push((parent, name.to_owned()));
        }
        Ok(())
    }

    /// Subtracts lookups that the kernel has forgotten.
    pub(crate) fn forget(&mut self, inode: u64, lookups: u64) {
        let Some(node) = self.0.get_mut(&inode) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 && inode != ROOT {
            self.0.remove(&inode);
        }
    }

    /// Removes a name of a file.
    pub(crate) fn removed(&mut self, parent: u64, name: &OsStr, inode: u64) {
        if let Some(node) = self.0.get_mut(&inode) {
            node.names.retain(|one| one.0 != parent || one.1 != name);
        }
    }

    /// Replaces a name of a file.
    pub(crate) fn renamed(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), inode: u64) {
        self.removed(from.0, from.1, inode);
        if let Some(node) = self.0.get_mut(&inode) {
            node.names.push((to.0, to.1.to_owned()));
        }
    }

    /// Records the contents that the kernel has cached; returns whether they changed.
    pub(crate) fn set_version(&mut self, inode: u64, version: Version) -> bool {
        self.0.get_mut(&inode).is_some_and(|node| std::mem::replace(&mut node.version, version) != version)
    }

    /// All inodes but those of directories.
    pub(crate) fn files(&self) -> Vec<u64> {
        self.0.iter().filter(|(_, node)| node.directory.is_none()).map(|(&inode, _)| inode).collect()
    }
}
