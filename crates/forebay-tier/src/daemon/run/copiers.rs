//! Threads that read sources: what programs have not read themselves, staging, and comparisons.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use super::blocks::{BLOCK_BYTES, CopyProblem, extent, read_all, write_all};
use crate::daemon::files::CopyId;
use crate::thread_priority::lower_own_priority;

/// Threads of a run.
pub(super) const COPIERS: usize = 4;

/// Device and inode of a source.
pub(super) type FileKey = (u64, u64);

/// What a thread is to do.
pub(super) enum Job {
    /// Copy blocks of a file of so many bytes.
    Copy { key: FileKey, source: Arc<OwnedFd>, target: Arc<OwnedFd>, bytes: u64, blocks: Vec<u32> },
    /// Compare a copy with its checksum.
    Verify { id: CopyId, copy: OwnedFd, bytes: u64, crc: u32 },
    /// Compare a copy with its source.
    Compare { key: FileKey, copy: OwnedFd, source: OwnedFd, bytes: u64 },
}

/// What came of it.
pub(super) enum Done {
    /// The checksums of the blocks.
    Copied { key: FileKey, copied: Result<Vec<(u32, u32)>, CopyProblem> },
    /// Whether the copy is right.
    Verified { id: CopyId, is_right: bool },
    /// The first byte that differs.
    Compared { key: FileKey, differs_at: io::Result<Option<u64>> },
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
                        let (offset, length) = extent(block, bytes);
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
                let sum = each_block(bytes, is_ended).try_fold(0, |sum, block| {
                    let (offset, length) = extent(block, bytes);
                    read_all(copy.as_fd(), offset, &mut memory[..length])?;
                    io::Result::Ok(crc32c::crc32c_append(sum, &memory[..length]))
                });
                Done::Verified { id, is_right: sum.is_ok_and(|sum| sum == crc) }
            }
            Job::Compare { key, copy, source, bytes } => {
                let (one, other) = memory.split_at_mut(BLOCK_BYTES as usize);
                let differs_at = each_block(bytes, is_ended)
                    .map(|block| {
                        let (offset, length) = extent(block, bytes);
                        read_all(copy.as_fd(), offset, &mut one[..length])?;
                        read_all(source.as_fd(), offset, &mut other[..length])?;
                        let place = one[..length].iter().zip(&other[..length]).position(|(a, b)| a != b);
                        Ok(place.map(|place| offset + place as u64))
                    })
                    .find(|found: &io::Result<Option<u64>>| !matches!(found, Ok(None)))
                    .unwrap_or(Ok(None));
                Done::Compared { key, differs_at }
            }
        };
        if sender.send(done).is_err() {
            return;
        }
    }
}

fn each_block(bytes: u64, is_ended: &AtomicBool) -> impl Iterator<Item = u32> {
    (0..bytes.div_ceil(BLOCK_BYTES) as u32).take_while(|_| !is_ended.load(Ordering::Relaxed))
}
