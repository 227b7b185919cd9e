//! One copy under way: which of its blocks are written.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use forebay_plan::{CopyBlocks, block_extent};
use forebay_table::SourceFile;
use rustix::fs::Advice;

use super::blocks::{CopyProblem, write_all};
use super::resident::Residency;
use crate::daemon::files::NewCopy;

/// A copy under way.
pub(super) struct Copying {
    /// Number of the source, and the path below it.
    pub(super) root: usize,
    pub(super) path: PathBuf,
    pub(super) source: Arc<OwnedFd>,
    pub(super) file: SourceFile,
    pub(super) target: Arc<OwnedFd>,
    pub(super) copy: NewCopy,
    /// When a block was last written.
    pub(super) progressed: Instant,
    /// Threads read the rest.
    pub(super) is_handed: bool,
    pub(super) is_staged: bool,
    pub(super) residency: Residency,
    pub(super) blocks: CopyBlocks,
    /// Checksums of the blocks that are written.
    sums: Vec<u32>,
}

impl Copying {
    pub(super) fn new(
        (root, path): (usize, PathBuf),
        source: Arc<OwnedFd>,
        file: SourceFile,
        copy: NewCopy,
        is_staged: bool,
        residency: Residency,
    ) -> Result<Self, (io::Error, NewCopy)> {
        let blocks = CopyBlocks::new(file.identity.bytes);
        let sums = vec![0; blocks.missing().count()];
        let now = Instant::now();
        let target = match copy.file.try_clone() {
            Ok(target) => Arc::new(target),
            Err(error) => return Err((error, copy)),
        };
        Ok(Self {
            root,
            path,
            source,
            file,
            target,
            copy,
            progressed: now,
            is_handed: false,
            is_staged,
            residency,
            blocks,
            sums,
        })
    }

    /// A block was written.
    pub(super) fn written(&mut self, block: u32, sum: u32) {
        if let Some(place) = self.sums.get_mut(block as usize) {
            *place = sum;
        }
        self.blocks.written(block);
    }

    /// Copies blocks that programs have read; their bytes.
    pub(super) fn follow(&mut self, memory: &mut [u8]) -> Result<u64, CopyProblem> {
        let mut copied = 0;
        for block in self.blocks.to_follow().collect::<Vec<_>>() {
            let (offset, length) = block_extent(block, self.blocks.bytes());
            let into = &mut memory[..length];
            let is_read = self.residency.read(self.source.as_fd(), offset, into);
            if !is_read.map_err(|_| CopyProblem::Source)? {
                if self.residency == Residency::Unknown {
                    break;
                }
                continue;
            }
            write_all(self.target.as_fd(), offset, into).map_err(|_| CopyProblem::Target)?;
            self.written(block, crc32c::crc32c(into));
            copied += length as u64;
        }
        if copied > 0 {
            self.progressed = Instant::now();
        }
        Ok(copied)
    }

    /// The checksum of the whole file, once it is written.
    pub(super) fn sum(&self) -> u32 {
        debug_assert!(self.blocks.is_whole());
        let bytes = self.blocks.bytes();
        (0..).zip(&self.sums).fold(0, |sum, (block, of_block)| {
            let (_, length) = block_extent(block, bytes);
            crc32c::crc32c_combine(sum, *of_block, length)
        })
    }

    /// Begins to bring what is written to the device.
    pub(super) fn start_flush(&self) -> io::Result<()> {
        sync(&self.target, libc::SYNC_FILE_RANGE_WRITE)
    }

    /// Waits until it is there, and drops it from the page cache.
    pub(super) fn finish_flush(&self) -> io::Result<()> {
        let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        sync(&self.target, all)?;
        Ok(rustix::fs::fadvise(&self.target, 0, None, Advice::DontNeed)?)
    }
}

fn sync(file: &OwnedFd, flags: libc::c_uint) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the call takes an open descriptor and numbers.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // File systems that keep nothing back.
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE) => Ok(()),
        _ => Err(error),
    }
}
