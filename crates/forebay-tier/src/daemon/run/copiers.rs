//! Threads that read sources: what programs have not read themselves, staging, and comparisons.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use forebay_plan::{BLOCK_BYTES, COPIERS, block_extent};
use forebay_table::{CopyIdentity, Identity};

use super::blocks::{CopyProblem, write_all};
use super::file_facts::{copy_identity, source_file};
use crate::daemon::files::CopyId;
use crate::read_all::read_all;
use crate::thread_priority::lower_own_priority;

/// Device and inode of a source.
pub(super) type FileKey = (u64, u64);

/// What a thread is to do.
pub(super) enum Job {
    /// Copy blocks of a file of so many bytes.
    Copy { key: FileKey, source: Arc<OwnedFd>, target: Arc<OwnedFd>, bytes: u64, blocks: Vec<u32> },
    /// Compare a copy with its checksum.
    Verify { id: CopyId, copy: OwnedFd, bytes: u64, crc: u32 },
    /// Compare a copy with its source, which has this identity.
    Compare { key: FileKey, copy: OwnedFd, source: OwnedFd, expected: Identity },
}

/// What came of it.
pub(super) enum Done {
    /// The checksums of the blocks.
    Copied { key: FileKey, copied: Result<Vec<(u32, u32)>, CopyProblem> },
    /// What identifies the copy, if it is right.
    Verified { id: CopyId, right: Option<CopyIdentity> },
    /// What became of the comparison.
    Compared { key: FileKey, compared: io::Result<Compared> },
}

/// A copy and its source.
#[derive(Debug)]
pub(super) enum Compared {
    /// They are equal; what identifies the copy.
    Equal(CopyIdentity),
    /// The first byte that differs.
    Differ(u64),
    /// The source, or the copy, was changed meanwhile.
    Changed,
}

/// The threads.
pub(super) struct Copiers {
    jobs: Sender<Job>,
    done: Receiver<Done>,
    /// What was received while waiting.
    ready: Option<Done>,
    under_way: usize,
}

impl Copiers {
    pub(super) fn start(is_ended: &Arc<AtomicBool>) -> io::Result<Self> {
        let (jobs, waiting) = channel();
        let (sender, done) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        for number in 0..COPIERS {
            let (waiting, sender, is_ended) = (Arc::clone(&waiting), sender.clone(), Arc::clone(is_ended));
            Builder::new()
                .name(format!("forebay-run-{number}"))
                .spawn(move || work(&waiting, &sender, &is_ended))?;
        }
        Ok(Self { jobs, done, ready: None, under_way: 0 })
    }

    pub(super) fn give(&mut self, job: Job) {
        self.under_way += 1;
        self.jobs.send(job).expect("the threads live as long as their jobs");
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Waits until something is done, or for so long.
    pub(super) fn wait(&mut self, limit: Duration) {
        if self.ready.is_none() {
            self.ready = self.done.recv_timeout(limit).ok();
        }
    }

    /// What has been done.
    pub(super) fn take(&mut self) -> Option<Done> {
        let done = self.ready.take().or_else(|| self.done.try_recv().ok())?;
        self.under_way -= 1;
        Some(done)
    }
}

fn work(waiting: &Mutex<Receiver<Job>>, sender: &Sender<Done>, is_ended: &AtomicBool) {
    lower_own_priority();
    let mut memory = vec![0; 2 * BLOCK_BYTES as usize];
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let done = match job {
            Job::Copy { key, source, target, bytes, blocks } => {
                let copied = blocks
                    .into_iter()
                    .map(|block| {
                        if is_ended.load(Ordering::Relaxed) {
                            return Err(CopyProblem::Source);
                        }
                        let (offset, length) = block_extent(block, bytes);
                        read_all(source.as_fd(), offset, &mut memory[..length])
                            .map_err(|_| CopyProblem::Source)?;
                        write_all(target.as_fd(), offset, &memory[..length])
                            .map_err(|_| CopyProblem::Target)?;
                        Ok((block, crc32c::crc32c(&memory[..length])))
                    })
                    .collect();
                Done::Copied { key, copied }
            }
            Job::Verify { id, copy, bytes, crc } => {
                let is_right = verify(&copy, bytes, crc, &mut memory, is_ended);
                Done::Verified { id, right: is_right.ok().flatten() }
            }
            Job::Compare { key, copy, source, expected } => {
                Done::Compared { key, compared: compare(&copy, &source, &expected, &mut memory, is_ended) }
            }
        };
        if sender.send(done).is_err() {
            return;
        }
    }
}

/// What identifies a copy that has this checksum.
fn verify(
    copy: &OwnedFd,
    bytes: u64,
    crc: u32,
    memory: &mut [u8],
    is_ended: &AtomicBool,
) -> io::Result<Option<CopyIdentity>> {
    let before = copy_identity(copy.as_fd())?;
    let mut sum = 0;
    for block in each_block(bytes, is_ended) {
        let (offset, length) = block_extent(block, bytes);
        read_all(copy.as_fd(), offset, &mut memory[..length])?;
        sum = crc32c::crc32c_append(sum, &memory[..length]);
    }
    let is_unchanged = copy_identity(copy.as_fd())? == before;
    Ok((sum == crc && is_unchanged).then_some(before))
}

fn compare(
    copy: &OwnedFd,
    source: &OwnedFd,
    expected: &Identity,
    memory: &mut [u8],
    is_ended: &AtomicBool,
) -> io::Result<Compared> {
    let (one, other) = memory.split_at_mut(BLOCK_BYTES as usize);
    let bytes = expected.bytes;
    let before = copy_identity(copy.as_fd())?;
    let mut differs_at = None;
    for block in each_block(bytes, is_ended) {
        let (offset, length) = block_extent(block, bytes);
        read_all(copy.as_fd(), offset, &mut one[..length])?;
        read_all(source.as_fd(), offset, &mut other[..length])?;
        let place = one[..length].iter().zip(&other[..length]).position(|(a, b)| a != b);
        if let Some(place) = place {
            differs_at = Some(offset + place as u64);
            break;
        }
    }
    let is_unchanged =
        copy_identity(copy.as_fd())? == before && source_file(source.as_fd())?.identity == *expected;
    Ok(match differs_at {
        _ if !is_unchanged || is_ended.load(Ordering::Relaxed) => Compared::Changed,
        Some(offset) => Compared::Differ(offset),
        None => Compared::Equal(before),
    })
}

fn each_block(bytes: u64, is_ended: &AtomicBool) -> impl Iterator<Item = u32> {
    (0..bytes.div_ceil(BLOCK_BYTES) as u32).take_while(|_| !is_ended.load(Ordering::Relaxed))
}
