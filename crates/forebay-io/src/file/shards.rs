//! The shards of a dataset, open for reading.
//!
//! 1. Every shard is opened once ([`DataFile`]), or taken over open from the dataset, and must
//!    have the size that the index says.
//! 2. Where reads around the page cache are asked for, a second descriptor with `O_DIRECT` is
//!    opened; a file system that refuses it, or wants more than 4096 bytes of alignment, is
//!    remembered with the reason.
//!
//! Where every sample has a file of its own, nothing is opened before it is read
//! (`sample_files.rs`).
//!
//! Nothing is ever written, and no lock is taken on the way of a read from a shard.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use forebay_types::{Extent, ShardId};
use rustix::fs::{Advice, AtFlags, Statx, StatxFlags};

use crate::error::ReadError;
use crate::file::data_file::DataFile;
use crate::file::open::{file_bytes, file_system, open_direct, open_error};
use crate::file::read_at::ReadAt;
use crate::file::readahead_window::{PAGE_BYTES, announced_bytes};
use crate::file::sample_files::{SampleFileTable, SampleFiles};
use crate::file::span::{At, Descriptor, LevelId, Span};
use crate::file::system::FileSystem;

/// One of the files.
#[derive(Debug)]
struct ShardFile {
    file: Arc<DataFile>,
    bytes: u64,
    file_system: FileSystem,
    announced_bytes: u64,
}

/// The shards of a dataset, open for reading.
pub struct ShardFiles {
    shards: Vec<ShardFile>,
    /// Takes the place of the shards where samples have files of their own.
    samples: Option<SampleFiles>,
    /// Whether all shards are open for reads around the page cache.
    is_direct: bool,
    direct_refused: Option<String>,
}

impl ShardFile {
    fn check_size(&self) -> Result<(), ReadError> {
        let (path, found) = (
            self.file.path(),
            self.file.bytes().map_err(|source| ReadError::Open {
                path: self.file.path().to_owned(),
                action: "inspect",
                source,
            })?,
        );
        if found == self.bytes {
            return Ok(());
        }
        Err(ReadError::Size { path: path.to_owned(), expected: self.bytes, found })
    }
}

impl ShardFiles {
    /// Opens the shards `(path, expected size [bytes])`; `direct` asks for `O_DIRECT` descriptors,
    /// too.
    ///
    /// A file system that refuses `O_DIRECT` is no error: [`ShardFiles::direct_refused`] says why
    /// it does.
    ///
    /// # Errors
    /// A file that cannot be opened, is no regular file, or has another size.
    pub fn open(shards: &[(PathBuf, u64)], direct: bool) -> Result<Self, ReadError> {
        let open = |(path, bytes): &(PathBuf, u64)| Ok((Arc::new(DataFile::open(path)?), *bytes));
        Self::of_files(shards.iter().map(open), direct)
    }

    /// Takes open files, each with the size that it must have \[bytes\]. Like [`ShardFiles::open`]
    /// otherwise: the kernel reads ahead.
    ///
    /// # Errors
    /// The first error of `files`, or a file of another size.
    pub fn of_files(
        files: impl IntoIterator<Item = Result<(Arc<DataFile>, u64), ReadError>>,
        direct: bool,
    ) -> Result<Self, ReadError> {
        let mut refused = None;
        let mut opened = Vec::new();
        // Asked once for each device, as every answer may be a trip to a server.
        let mut kinds: HashMap<u64, (FileSystem, u64)> = HashMap::new();
        for file in files {
            let (file, bytes) = file?;
            let (file_system, announced_bytes) = match kinds.entry(file.stat().st_dev) {
                Entry::Occupied(known) => known.get().clone(),
                Entry::Vacant(place) => {
                    let kind = file_system(file.buffered())
                        .map_err(open_error(file.path(), "inspect the file system"))?;
                    let announced = announced_bytes(&kind, file.stat());
                    place.insert((kind, announced)).clone()
                }
            };
            let shard = ShardFile { file, bytes, file_system, announced_bytes };
            shard.check_size()?;
            if direct && refused.is_none() {
                refused = shard.file.open_direct(&shard.file_system).err();
            }
            opened.push(shard);
        }
        let is_direct = direct && refused.is_none();
        Ok(Self { shards: opened, samples: None, is_direct, direct_refused: refused })
    }

    /// Opens the folders at `paths`, in which each sample has a file of its own; `table` knows
    /// these files.
    ///
    /// # Errors
    /// A folder that cannot be opened. The first read of a file reports what is wrong with it.
    pub fn of_samples(table: Arc<dyn SampleFileTable>, paths: &[PathBuf]) -> Result<Self, ReadError> {
        let samples = Some(SampleFiles::new(table, paths)?);
        let refused = "the files of a folder are read through the page cache".to_owned();
        Ok(Self { shards: Vec::new(), samples, is_direct: false, direct_refused: Some(refused) })
    }

    /// Takes sealed memory, a descriptor for each shard `(path, expected size [bytes])`, in place
    /// of the files.
    ///
    /// # Errors
    /// Memory of another size than the shard's.
    pub fn kept(shards: &[(PathBuf, u64)], memory: Vec<OwnedFd>) -> Result<Self, ReadError> {
        let mut opened = Vec::with_capacity(shards.len());
        for ((path, bytes), memory) in shards.iter().zip(memory) {
            let file = Arc::new(DataFile::from_descriptor(memory, path)?);
            let file_system = FileSystem { magic: 0, name: "memory".into(), local: true };
            let announced_bytes = announced_bytes(&file_system, file.stat());
            let shard = ShardFile { file, bytes: *bytes, file_system, announced_bytes };
            shard.check_size()?;
            opened.push(shard);
        }
        if let Some((path, bytes)) = shards.get(opened.len()) {
            return Err(ReadError::Size { path: path.clone(), expected: *bytes, found: 0 });
        }
        let refused = Some("the data are in memory".into());
        Ok(Self { shards: opened, samples: None, is_direct: false, direct_refused: refused })
    }

    /// Number of shards.
    pub fn len(&self) -> usize {
        self.samples.as_ref().map_or(self.shards.len(), SampleFiles::len)
    }

    /// Whether files are opened when they are read, each for one sample.
    pub fn are_of_samples(&self) -> bool {
        self.samples.is_some()
    }

    /// Whether there are no shards.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Path of a shard.
    ///
    /// # Panics
    /// Like all of these, when there is no such shard.
    pub fn path(&self, shard: ShardId) -> PathBuf {
        match &self.samples {
            Some(samples) => samples.path(shard),
            None => self.shard(shard).file.path().to_owned(),
        }
    }

    /// Size of a shard, as checked when it is opened \[bytes\].
    pub fn bytes(&self, shard: ShardId) -> u64 {
        match &self.samples {
            Some(samples) => samples.bytes(shard),
            None => self.shard(shard).bytes,
        }
    }

    /// File system kind of every shard, or of the folders.
    pub fn traits(&self) -> impl Iterator<Item = &FileSystem> {
        let folders = self.samples.iter().flat_map(SampleFiles::file_systems);
        self.shards.iter().map(|shard| &shard.file_system).chain(folders)
    }

    /// Whether every shard lies on this node.
    pub fn is_local(&self) -> bool {
        self.traits().all(|kind| kind.local)
    }

    /// Names of the file systems, each once, in the order of the shards: `ext4`, or `lustre and
    /// nfs`.
    pub fn file_system_name(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for kind in self.traits() {
            if !names.contains(&kind.name.as_ref()) {
                names.push(&kind.name);
            }
        }
        names.join(" and ")
    }

    /// Whether the shards can be read around the page cache. Asks the file system where they were
    /// not opened so.
    pub fn direct_works(&self) -> bool {
        self.direct_refused.is_none()
            && self
                .shards
                .iter()
                .all(|shard| self.is_direct || open_direct(shard.file.path(), &shard.file_system).is_ok())
    }

    /// Why reads around the page cache were asked for but will not happen.
    pub fn direct_refused(&self) -> Option<&str> {
        self.direct_refused.as_deref()
    }

    /// Whether these serve where reads around the page cache are wanted, or not wanted; the files
    /// of samples hold on to an index of their own.
    pub fn serves(&self, direct: bool) -> bool {
        self.samples.is_none() && (!direct || self.is_direct())
    }

    /// Whether every shard has an `O_DIRECT` descriptor.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    pub(crate) fn is_shard_local(&self, shard: ShardId) -> bool {
        self.samples.is_none() && self.shard(shard).file_system.local
    }

    /// The descriptor to read from; `direct` is ignored where there is no such descriptor.
    ///
    /// Fails only where the file of a sample cannot be opened: with the system's error where that
    /// may pass, else with a [`ReadError`] inside.
    pub(crate) fn descriptor(&self, shard: ShardId, direct: bool) -> io::Result<Descriptor<'_>> {
        if let Some(samples) = &self.samples {
            return Ok(Descriptor::Shared(samples.descriptor(shard)?));
        }
        let file = &self.shard(shard).file;
        let direct = file.direct().filter(|_| direct && self.is_direct);
        Ok(Descriptor::Lent(direct.unwrap_or(file.buffered())))
    }

    /// The bytes at `at` as they stand in the source, all `length` of them.
    ///
    /// # Errors
    /// As for a descriptor.
    pub fn source_span(&self, at: At, length: usize) -> io::Result<Span<'_>> {
        let descriptor = self.descriptor(at.shard, at.direct)?;
        Ok(Span { source: at, level: LevelId::SOURCE, descriptor, offset: at.offset, length })
    }

    /// Asks the kernel to fetch what is asked for and nothing beyond it, or to read ahead. May do
    /// nothing.
    pub fn read_ahead(&self, wanted: bool) {
        for shard in &self.shards {
            shard.file.read_ahead(wanted);
        }
    }

    /// The descriptor of a shard that is open for good.
    pub(crate) fn lent(&self, shard: ShardId) -> Option<BorrowedFd<'_>> {
        match self.descriptor(shard, false) {
            Ok(Descriptor::Lent(descriptor)) => Some(descriptor),
            _ => None,
        }
    }

    /// Asks the kernel to fetch an extent into the page cache, as far as the shard has it; returns
    /// how many bytes those are.
    pub fn prefetch(&self, extent: Extent) -> u64 {
        let Extent { shard, offset, length } = extent;
        let length = offset.saturating_add(length).min(self.bytes(shard)).saturating_sub(offset);
        if length > 0 {
            self.will_need(shard, offset, length);
        }
        length
    }

    /// Asks the kernel to fetch a range into the page cache. May do nothing.
    pub fn will_need(&self, shard: ShardId, offset: u64, length: u64) {
        let Ok(file) = self.descriptor(shard, false) else { return };
        // A file of one sample is fetched by one call, as far as that goes.
        let piece = if self.samples.is_some() { u64::MAX } else { self.shard(shard).announced_bytes };
        let end = offset.saturating_add(length);
        // From page to page: a piece that begins within one would be cut a page short.
        let mut start = offset - offset % PAGE_BYTES;
        while start < end {
            let length = piece.min(end - start);
            // No length would mean "up to the end of the file".
            let _ = rustix::fs::fadvise(&file, start, NonZeroU64::new(length), Advice::WillNeed);
            start += length;
        }
    }

    /// Allows the kernel to drop a range from the page cache. May do nothing.
    pub fn wont_need(&self, shard: ShardId, offset: u64, length: u64) {
        if let (Ok(file), Some(length)) = (self.descriptor(shard, false), NonZeroU64::new(length)) {
            let _ = rustix::fs::fadvise(&file, offset, Some(length), Advice::DontNeed);
        }
    }

    /// Present size \[bytes\].
    pub(crate) fn present_bytes(&self, shard: ShardId) -> io::Result<u64> {
        Ok(file_bytes(&self.stat_now(shard)?))
    }

    /// What the system says of a file now. A file of one sample is opened for it, unless it is
    /// open.
    ///
    /// # Errors
    /// Those of the system.
    pub fn stat_now(&self, shard: ShardId) -> io::Result<rustix::fs::Stat> {
        Ok(rustix::fs::fstat(self.descriptor(shard, false)?)?)
    }

    /// Asks the descriptor of a file through the page cache. A file of one sample is opened for it,
    /// unless it is open.
    ///
    /// # Errors
    /// A file that cannot be opened.
    pub fn ask<R>(&self, shard: ShardId, question: impl FnOnce(BorrowedFd<'_>) -> R) -> io::Result<R> {
        Ok(question(self.descriptor(shard, false)?.as_fd()))
    }

    /// Size and times of a file now, as far as this node knows; with `asks_server` also as the
    /// server of a network file system does.
    ///
    /// It leaves out the time of access: after each read FUSE would ask its server for that.
    ///
    /// # Errors
    /// Those of the system.
    pub fn times_now(&self, shard: ShardId, asks_server: bool) -> io::Result<Statx> {
        let how = if asks_server { AtFlags::STATX_FORCE_SYNC } else { AtFlags::empty() };
        let wanted = StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME;
        Ok(rustix::fs::statx(self.descriptor(shard, false)?, c"", how | AtFlags::EMPTY_PATH, wanted)?)
    }

    /// Opens the path again under the same descriptor numbers; it must lead to a file of the same
    /// size and time.
    pub(crate) fn reopen(&self, shard: ShardId) -> Result<(), ReadError> {
        if let Some(samples) = &self.samples {
            samples.forget(shard);
            return Ok(());
        }
        let shard = self.shard(shard);
        shard.file.reopen_as(&shard.file_system)
    }

    fn shard(&self, shard: ShardId) -> &ShardFile {
        &self.shards[shard.0 as usize]
    }
}

impl fmt::Display for ShardFiles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} shard(s) on {}", self.len(), self.file_system_name())
    }
}

impl fmt::Debug for ShardFiles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("ShardFiles").field(&self.to_string()).finish()
    }
}
