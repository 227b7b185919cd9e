//! Files that hold one sample each: far too many to keep open, so they are opened when they are
//! read.
//!
//! A [`SampleFileTable`] knows their names and sizes. A file is opened beneath its folder, without
//! following a symbolic link unless the table says so, and must be a regular file of the size that
//! the index says. The last
//! few stay open: a read that is repeated or cut in pieces, and one that was announced, find them
//! again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_types::ShardId;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::ReadError;
use crate::file::beneath::{Links, open_beneath};
use crate::file::open::{file_bytes, file_system, open_error};
use crate::file::system::FileSystem;

/// Files that stay open: more than all threads of a process read at once, and few beside the 1,024
/// that a process may have open by default.
const MAX_OPEN: usize = 128;

/// The file of one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleFile {
    /// Number of the folder that it is in.
    pub shard: usize,
    /// Its name, with the directories between the folder and it.
    pub name: PathBuf,
    /// Its size \[bytes\].
    pub bytes: u64,
}

/// Knows the files of a dataset that has one for each sample; an index does.
pub trait SampleFileTable: Send + Sync {
    /// Number of files.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them.
    fn file(&self, file: ShardId) -> io::Result<SampleFile>;

    /// Size of one of them \[bytes\].
    fn file_bytes(&self, file: ShardId) -> io::Result<u64>;

    /// What symbolic links do on the way to a file.
    fn links(&self) -> Links {
        Links::Refused
    }
}

/// The files of the samples of a dataset.
pub(crate) struct SampleFiles {
    table: Arc<dyn SampleFileTable>,
    folders: Vec<Folder>,
    /// The file that was opened last is at the back.
    open: Mutex<VecDeque<(ShardId, Arc<OwnedFd>)>>,
}

struct Folder {
    path: PathBuf,
    descriptor: OwnedFd,
    file_system: FileSystem,
}

impl SampleFiles {
    /// Opens the folders; `table` knows what is in them.
    pub(crate) fn new(table: Arc<dyn SampleFileTable>, folders: &[PathBuf]) -> Result<Self, ReadError> {
        let open = |path: &PathBuf| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let descriptor = rustix::fs::openat(CWD, path, flags, Mode::empty())
                .map_err(open_error(path, "open the folder"))?;
            let file_system =
                file_system(&descriptor).map_err(open_error(path, "inspect the file system of"))?;
            Ok(Folder { path: path.clone(), descriptor, file_system })
        };
        let folders = folders.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { table, folders, open: Mutex::default() })
    }

    /// Number of files.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Size of a file \[bytes\]; 0 for one that the table cannot tell.
    pub(crate) fn bytes(&self, file: ShardId) -> u64 {
        // The caller has its place from the same block of the index.
        self.table.file_bytes(file).unwrap_or(0)
    }

    /// Path of a file.
    pub(crate) fn path(&self, file: ShardId) -> PathBuf {
        match self.table.file(file) {
            Ok(found) => self.folders[found.shard].path.join(found.name),
            Err(_) => self.folders.first().map_or_else(PathBuf::new, |folder| folder.path.clone()),
        }
    }

    /// Kinds of the file systems of the folders.
    pub(crate) fn file_systems(&self) -> impl Iterator<Item = &FileSystem> {
        self.folders.iter().map(|folder| &folder.file_system)
    }

    /// The descriptor of a file, opened if it is not open.
    pub(crate) fn descriptor(&self, file: ShardId) -> io::Result<Arc<OwnedFd>> {
        let held = self.lock().iter().find(|(number, _)| *number == file).map(|(_, held)| Arc::clone(held));
        if let Some(held) = held {
            return Ok(held);
        }
        // Opened without the lock: two threads may open the same file, and neither waits.
        let descriptor = Arc::new(self.open(file)?);
        let mut open = self.lock();
        if open.len() >= MAX_OPEN {
            open.pop_front();
        }
        open.push_back((file, Arc::clone(&descriptor)));
        Ok(descriptor)
    }

    /// Forgets a descriptor that went stale, so that the next read opens the file again.
    pub(crate) fn forget(&self, file: ShardId) {
        self.lock().retain(|(number, _)| *number != file);
    }

    fn open(&self, file: ShardId) -> io::Result<OwnedFd> {
        let found = self.table.file(file)?;
        let folder = &self.folders[found.shard];
        let path = || folder.path.join(&found.name);
        let descriptor = open_beneath(&folder.descriptor, &found.name, OFlags::empty(), self.table.links())
            .map_err(|errno| lasting(&path(), "open for reading", errno))?;
        let stat = rustix::fs::fstat(&descriptor).map_err(|errno| lasting(&path(), "inspect", errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Err(io::Error::other(ReadError::NoFile { path: path(), found: format!("{kind:?}") }));
        }
        if file_bytes(&stat) != found.bytes {
            let (expected, found) = (found.bytes, file_bytes(&stat));
            return Err(io::Error::other(ReadError::Size { path: path(), expected, found }));
        }
        Ok(descriptor)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(ShardId, Arc<OwnedFd>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error of opening: what may pass is left to the policy of all reads, anything else says what
/// was attempted.
fn lasting(path: &Path, action: &'static str, errno: Errno) -> io::Error {
    match errno {
        Errno::INTR | Errno::IO | Errno::AGAIN | Errno::STALE => errno.into(),
        _ => io::Error::other(open_error(path, action)(errno)),
    }
}
