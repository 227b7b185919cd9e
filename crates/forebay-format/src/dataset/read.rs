//! The files of a dataset, open for reading single samples.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use forebay_io::{DataFile, Failing, SampleFileTable, open_beneath};
use forebay_types::{Extent, ShardId, Unit};
use rustix::fs::{CWD, Mode, OFlags};

use super::Dataset;
use crate::container::folder;
use crate::file::Input;
use crate::{Error, Index};

/// The shards, which the dataset holds open, or folders whose samples are files. A folder is opened
/// at its first read and stays open as long as this; each of its files is opened for every read.
pub(super) struct OpenFiles<'a> {
    dataset: &'a Dataset,
    index: &'a Index,
    /// None where samples lie in shards.
    folders: Vec<OnceLock<OwnedFd>>,
    /// Where reads have failed: what lies around is tried once.
    failing: Failing,
}

impl<'a> OpenFiles<'a> {
    pub(super) fn new(dataset: &'a Dataset, index: &'a Index) -> Self {
        let count = if index.has_sample_files() { dataset.shards.len() } else { 0 };
        let folders = std::iter::repeat_with(OnceLock::new).take(count).collect();
        Self { dataset, index, folders, failing: Failing::default() }
    }

    /// Opens all folders, so that what cannot be opened shows before anything is read.
    pub(super) fn open_all(&self) -> Result<(), Error> {
        (0..self.folders.len()).try_for_each(|number| self.folder(number).map(drop))
    }

    fn folder(&self, number: usize) -> Result<&OwnedFd, Error> {
        let path = &self.dataset.shards[number].path;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        once(&self.folders[number], || {
            rustix::fs::openat(CWD, path, flags, Mode::empty())
                .map_err(|errno| folder::failed("open", path, errno))
        })
    }

    /// The file behind a shard number of extents; for messages.
    pub(super) fn path(&self, shard: ShardId) -> PathBuf {
        let path = self.dataset.path_of(self.index, shard);
        path.unwrap_or_else(|_| self.dataset.shards[0].path.clone())
    }

    /// The index knows shards by short names; the dataset knows their paths.
    fn renamed(&self, error: Error, shard: ShardId) -> Error {
        match error {
            Error::Corrupt { offset, what, expected, found, .. } => {
                Error::Corrupt { path: self.path(shard), offset, what, expected, found }
            }
            other => other,
        }
    }

    /// Checks the first extent of a unit, which was read, in full. Readers on the hot path check
    /// less.
    pub(super) fn check_unit(&self, unit: &Unit, extent: Extent, bytes: &[u8]) -> Result<(), Error> {
        self.index
            .check_unit(unit, extent, bytes)
            .and_then(|()| self.index.check_record(unit, extent, bytes))
            .map_err(|error| self.renamed(error, extent.shard))
    }

    /// Reads exactly `into.len()` bytes from the start of an extent on.
    pub(super) fn read(&self, Extent { shard, offset, .. }: Extent, into: &mut [u8]) -> Result<(), Error> {
        let place = (shard, offset);
        if !self.index.has_sample_files() {
            let input = self.dataset.files[shard.0 as usize].input();
            return input.read_where(&self.failing, place, into, "record");
        }
        let file = self.index.sample_file(shard)?;
        let path = self.dataset.shards[file.shard].path.join(&file.name);
        let fd = open_beneath(self.folder(file.shard)?, &file.name, OFlags::empty(), self.index.links())
            .map_err(|errno| folder::failed("open for reading", &path, errno))?;
        let input = Input::from_file(DataFile::from_descriptor(fd, &path)?)?;
        if input.bytes() != file.bytes {
            let (expected, found) = (format!("{} bytes", file.bytes), format!("{} bytes", input.bytes()));
            return Err(Error::Modified { path, what: "size".to_owned(), expected, found });
        }
        input.read_where(&self.failing, place, into, "record")
    }
}

/// The value of a cell, made now if the cell is empty.
fn once<T>(place: &OnceLock<T>, make: impl FnOnce() -> Result<T, Error>) -> Result<&T, Error> {
    match place.get() {
        Some(value) => Ok(value),
        None => make().map(|made| place.get_or_init(|| made)),
    }
}

impl Dataset {
    /// The file behind a shard number of extents.
    pub fn path_of(&self, index: &Index, shard: ShardId) -> Result<PathBuf, Error> {
        if index.has_sample_files() {
            let file = index.sample_file(shard)?;
            return Ok(self.shards[file.shard].path.join(file.name));
        }
        match self.shards.get(shard.0 as usize) {
            Some(shard) => Ok(shard.path.clone()),
            None => {
                Err(Error::Usage { message: format!("there is no file {}", shard.0), hint: String::new() })
            }
        }
    }

    /// A shard, open for reading, if its path still leads to the file that was opened: a loader
    /// then reads through the same descriptor. `None` also for folders of samples.
    pub fn open_shard(&self, number: usize) -> Option<Arc<DataFile>> {
        self.held_shard(number).filter(|file| file.is_at_its_path())
    }

    /// A shard as it was opened, also if its path leads to another file by now.
    pub fn held_shard(&self, number: usize) -> Option<Arc<DataFile>> {
        self.files.get(number)?.input().file().cloned()
    }
}
