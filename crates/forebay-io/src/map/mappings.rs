//! Read-only mappings of the shards, and whether touching them would wait for storage.
//!
//! A mapping saves a copy and the system calls, but a missing page stalls the thread that
//! touches it, without a retry or an error. So the default copies from a
//! mapping only what [`Mappings::resident`] says is in the page cache, on a file system of this
//! node.
//!
//! Touching a lost page of a truncated file is SIGBUS. [`Mappings::bytes`] and
//! [`Mappings::resident`] check the file's size once a second and return nothing of a shard that
//! has shrunk. Pages lost within that second, or to an I/O error, read as zeros (`guard.rs`). A
//! user of mapped bytes compares `faults` before and after, and discards its result if a fault
//! came in between. A file that ends inside a page reads as zeros to the end of that page, without
//! a fault: [`Mappings::is_cut_before`] says afterwards whether the file still has what was copied.

use std::hint;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_types::ShardId;
use memmap2::{Mmap, MmapOptions};

use crate::error::ReadError;
use crate::file::readahead_window::PAGE_BYTES;
use crate::file::shards::ShardFiles;
use crate::map::guard::Watch;
use crate::map::residency::{Oracle, Residency, coarse_ms};
use crate::read::syscalls::FileIo;

/// How long the size of a file is believed \[ms\].
const SIZE_LIFE_MS: u64 = 1000;

/// Bytes that are copied from a mapping at once. The C library copies large stretches four pages
/// side by side, and page faults that come in such an order get no read-ahead: 400 instead of 1,000
/// MiB/s, measured on an emulated disk with copies of 1 MiB.
const COPY_BYTES: usize = 128 << 10;

/// Copies from a mapping whose pages may be missing, in the order of the file.
pub fn copy_in_order(from: &[u8], into: &mut [u8]) {
    for (from, into) in from.chunks(COPY_BYTES).zip(into.chunks_mut(COPY_BYTES)) {
        into.copy_from_slice(from);
    }
}

/// One mapped file.
struct ShardMap {
    /// `None` for an empty file; the watch goes before the mapping.
    memory: Option<(Watch, Mmap)>,
    residency: Residency,
    size_checked_ms: AtomicU64,
}

/// Read-only mappings of the shards.
pub struct Mappings {
    io: Arc<dyn FileIo>,
    shards: Vec<ShardMap>,
}

impl Mappings {
    /// Maps all shards. Nothing is read.
    ///
    /// # Errors
    /// A file cannot be mapped: no address space, or a file system without mappings; files
    /// that hold one sample each.
    pub fn open(files: &Arc<ShardFiles>) -> Result<Self, ReadError> {
        Self::with_io(Arc::clone(files) as Arc<dyn FileIo>)
    }

    /// Like [`Mappings::open`], on any [`FileIo`].
    ///
    /// # Errors
    /// As there.
    pub fn with_io(io: Arc<dyn FileIo>) -> Result<Self, ReadError> {
        let files = io.files();
        if files.are_of_samples() {
            let source = io::Error::new(io::ErrorKind::Unsupported, "one sample each, too many files");
            return Err(ReadError::Map {
                path: files.path(ShardId(0)),
                bytes: files.bytes(ShardId(0)),
                source,
            });
        }
        let mut shards = Vec::with_capacity(files.len());
        for number in 0..files.len() {
            let shard = ShardId(number as u32);
            let bytes = files.bytes(shard);
            let failed = |source| ReadError::Map { path: files.path(shard), bytes, source };
            let descriptor = files.descriptor(shard, false).map_err(failed)?;
            let memory = map(&descriptor, bytes).map_err(failed)?.map(|memory| (Watch::new(&memory), memory));
            let oracle = if files.is_shard_local(shard) {
                Oracle::for_file(descriptor.as_fd())
            } else {
                Oracle::Silent
            };
            shards.push(ShardMap {
                memory,
                residency: Residency::new(bytes, oracle),
                size_checked_ms: AtomicU64::new(coarse_ms()),
            });
        }
        Ok(Self { io, shards })
    }

    /// Tells the kernel that pages are touched here and there, so that a page fault fetches that
    /// page and no other.
    pub fn without_read_ahead(&self) {
        for (_, memory) in self.shards.iter().filter_map(|map| map.memory.as_ref()) {
            // Advice: a kernel that does not take it reads more.
            let _ = memory.advise(memmap2::Advice::Random);
        }
    }

    /// Whether all bytes of a range are in the page cache, as far as is known: the answer is up to
    /// a second old, and "no" wherever the kernel would not tell the truth, on file systems of
    /// other nodes, outside the file, and for good once the file has shrunk.
    pub fn resident(&self, shard: ShardId, offset: u64, length: u64) -> bool {
        let Some(map) = self.shards.get(shard.0 as usize) else { return false };
        let (Some((watch, memory)), Some(end)) = (&map.memory, offset.checked_add(length)) else {
            return false;
        };
        if end > memory.len() as u64 || watch.is_lost() {
            return false;
        }
        map.residency.covers(offset, end, memory, || {
            self.is_whole(shard).then(|| self.io.files().lent(shard)).flatten()
        })
    }

    /// The bytes of a range; `None` outside the file, where the file has shrunk, and where a page
    /// of it was lost.
    ///
    /// Touching them waits for storage where they are not resident. What was made of them counts
    /// only where `faults` is afterwards what it was before.
    pub fn bytes(&self, shard: ShardId, offset: u64, length: u64) -> Option<&[u8]> {
        let map = self.shards.get(shard.0 as usize)?;
        let end = usize::try_from(offset.checked_add(length)?).ok()?;
        let Some((watch, memory)) = &map.memory else { return (end == 0).then_some(&[]) };
        let bytes = memory.get(usize::try_from(offset).ok()?..end)?;
        if watch.is_lost() {
            return None;
        }
        let checked_ms = map.size_checked_ms.load(Ordering::Relaxed);
        if coarse_ms().wrapping_sub(checked_ms) > SIZE_LIFE_MS && !self.is_whole(shard) {
            return None;
        }
        Some(bytes)
    }

    /// Touches a byte of every page of a range, in order, so that what is missing is fetched now.
    pub fn touch(&self, shard: ShardId, offset: u64, length: u64) {
        // From the start of the first page, as it is one page that holds the range's first byte and
        // what lies before.
        let start = offset - offset % PAGE_BYTES;
        let bytes = self.bytes(shard, start, offset.saturating_add(length).saturating_sub(start));
        for byte in bytes.unwrap_or_default().iter().step_by(PAGE_BYTES as usize) {
            hint::black_box(*byte);
        }
    }

    /// Whether a mapping is lost: its file has shrunk, or a page of it could not be had.
    pub fn is_any_lost(&self) -> bool {
        self.shards.iter().filter_map(|map| map.memory.as_ref()).any(|(watch, _)| watch.is_lost())
    }

    /// Why the first mapping that is lost is.
    pub fn check(&self) -> Result<(), ReadError> {
        for (number, map) in self.shards.iter().enumerate() {
            let Some((watch, _)) = map.memory.as_ref().filter(|(watch, _)| watch.is_lost()) else { continue };
            let (shard, files) = (ShardId(number as u32), self.io.files());
            let (path, expected) = (files.path(shard), files.bytes(shard));
            let found = self.io.present_bytes(shard).unwrap_or(expected);
            if found < expected {
                let length = expected - found;
                return Err(ReadError::Truncated { path, offset: found, length, expected, found });
            }
            return Err(ReadError::Io {
                path,
                offset: watch.lost_at().unwrap_or(0),
                length: PAGE_BYTES,
                attempts: 1,
                known: false,
                source: io::Error::from_raw_os_error(libc::EIO),
            });
        }
        Ok(())
    }

    /// Whether a file now ends before one of these ends of ranges, whose bytes were used.
    ///
    /// What was cut off reads as zeros, so the size is asked for only where the last byte of a
    /// range is zero ([`Mappings::is_zero_before`]), and once for neighbours of one file.
    pub fn is_cut_before(&self, ends: impl IntoIterator<Item = (ShardId, u64)>) -> bool {
        let mut whole = None;
        for (shard, end) in ends {
            if whole == Some(shard) || !self.is_zero_before(shard, end) {
                continue;
            }
            if !self.is_whole(shard) {
                return true;
            }
            whole = Some(shard);
        }
        false
    }

    /// Whether the last byte of a range that ends there is zero: it may be cut off.
    pub fn is_zero_before(&self, shard: ShardId, end: u64) -> bool {
        let memory = self.shards.get(shard.0 as usize).and_then(|map| map.memory.as_ref());
        let byte = memory.and_then(|(_, memory)| memory.get(usize::try_from(end.checked_sub(1)?).ok()?));
        byte == Some(&0)
    }

    /// Asks for the present size; a file that is smaller than its mapping is remembered as lost.
    fn is_whole(&self, shard: ShardId) -> bool {
        let Some(map) = self.shards.get(shard.0 as usize) else { return false };
        map.size_checked_ms.store(coarse_ms(), Ordering::Relaxed);
        let whole = self.io.present_bytes(shard).is_ok_and(|found| found >= self.io.files().bytes(shard));
        if let Some((watch, _)) = map.memory.as_ref().filter(|_| !whole) {
            watch.give_up();
        }
        whole
    }
}

fn map(descriptor: impl AsFd, bytes: u64) -> io::Result<Option<Mmap>> {
    if bytes == 0 {
        return Ok(None);
    }
    let length = usize::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: the mapping is read-only and shared. That another process may change the file under
    // it is the nature of every reader of a file: the bytes are only ever copied or checked as
    // input; a shrinking file is treated above.
    let memory = unsafe { MmapOptions::new().len(length).map(descriptor.as_fd().as_raw_fd()) }?;
    Ok(Some(memory))
}
