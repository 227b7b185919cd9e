//! One reader: completes transfers by one of the accesses, falls back where it must, and counts.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Instant;

use crate::error::ReadError;
use crate::file::shards::ShardFiles;
use crate::file::span::At;
use crate::read::retry::{Job, ReadCounters, read_through};
use crate::read::syscalls::{FileIo, Transfer};
use crate::read::uring::{Ring, RingError, ring_refused};

/// How files are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// One pread(2) after the other.
    Pread,
    /// Several requests at once.
    IoUring,
}

impl Access {
    /// The name that users give.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pread => "pread",
            Self::IoUring => "io_uring",
        }
    }
}

/// What a reader was asked to use and cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// `io_uring`; `pread` serves.
    IoUring,
    /// `O_DIRECT`; the page cache serves.
    Direct,
}

enum Engine {
    Pread,
    Ring(Box<Ring>),
}

/// A reader; made and used by one thread (an `io_uring` accepts requests from its maker only).
pub struct Reader {
    io: Arc<dyn FileIo>,
    engine: Engine,
    /// Transfers may reach behind the end of a file, up to the next aligned offset.
    padded: bool,
    direct: bool,
    jobs: Vec<Job>,
    counters: ReadCounters,
    refusals: Vec<(Refused, String)>,
    thread: PhantomData<*const ()>,
}

impl Reader {
    /// Makes a reader of these files. [`Reader::take_refusals`] returns what it was asked to use
    /// and cannot.
    ///
    /// `depth` is the number of requests under way at once, for `io_uring`; 8 to 32 suit most
    /// storage.
    ///
    /// With `direct` the plan aligns transfers (offset, length and memory) to 4096 bytes. The last
    /// one of a file may then reach behind the end of the file: `fill` succeeds when everything up
    /// to the end has come, and the bytes of `into` behind it are unspecified. This holds even when
    /// `O_DIRECT` is refused and the page cache serves instead.
    #[must_use]
    pub fn new(files: Arc<ShardFiles>, access: Access, direct: bool, depth: usize) -> Self {
        Self::with_io(files, access, direct, depth)
    }

    /// Like [`Reader::new`], on any [`FileIo`].
    #[must_use]
    pub fn with_io(io: Arc<dyn FileIo>, access: Access, direct: bool, depth: usize) -> Self {
        let mut refusals = Vec::new();
        let engine = match access {
            Access::Pread => Engine::Pread,
            Access::IoUring => match io.may_ring().and_then(|()| Ring::new(depth)) {
                Ok(ring) => Engine::Ring(Box::new(ring)),
                Err(error) => {
                    refusals.push((Refused::IoUring, ring_refused(&error)));
                    Engine::Pread
                }
            },
        };
        let works = direct && io.files().is_direct();
        if direct && !works {
            let reason = io.files().direct_refused().unwrap_or("the files were not opened with O_DIRECT");
            refusals.push((Refused::Direct, reason.to_owned()));
        }
        Self {
            io,
            engine,
            padded: direct,
            direct: works,
            jobs: Vec::new(),
            counters: ReadCounters::default(),
            refusals,
            thread: PhantomData,
        }
    }

    /// Completes all transfers, or fails with the first error; then the contents of all of them are
    /// unspecified.
    ///
    /// # Errors
    /// After the retries of the policy (`retry.rs`): what was attempted, with file, offset
    /// and length.
    pub fn fill(&mut self, transfers: &mut [Transfer<'_>]) -> Result<(), ReadError> {
        let begun = Instant::now();
        let answer = self.fill_all(transfers);
        self.counters.io_ns += begun.elapsed().as_nanos() as u64;
        answer
    }

    /// What it has cost so far.
    pub fn counters(&self) -> ReadCounters {
        self.counters
    }

    /// How the files are touched now.
    pub fn access(&self) -> Access {
        match self.engine {
            Engine::Pread => Access::Pread,
            Engine::Ring(_) => Access::IoUring,
        }
    }

    /// Whether reads go around the page cache now.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Takes what was refused since the last call, and why: when the reader was made, or by a read.
    pub fn take_refusals(&mut self) -> Vec<(Refused, String)> {
        std::mem::take(&mut self.refusals)
    }

    fn fill_all(&mut self, transfers: &mut [Transfer<'_>]) -> Result<(), ReadError> {
        self.jobs.clear();
        for transfer in transfers.iter() {
            let at = At { shard: transfer.shard, offset: transfer.offset, direct: self.direct };
            self.jobs.push(Job::new(self.io.files(), at, transfer.into.len(), self.padded)?);
        }
        let answer = match &mut self.engine {
            Engine::Ring(ring) => ring.fill(&self.io, transfers, &mut self.jobs, &mut self.counters),
            Engine::Pread => Ok(()),
        };
        match answer {
            Ok(()) => {}
            Err(RingError::Read(error)) => return Err(error),
            Err(RingError::Refused(error)) => {
                self.engine = Engine::Pread;
                self.refusals.push((Refused::IoUring, ring_refused(&error)));
            }
        }
        for (transfer, job) in transfers.iter_mut().zip(&mut self.jobs) {
            read_through(&self.io, job, &mut [], transfer.into, &mut self.counters)?;
        }
        self.notice_refusal(transfers);
        Ok(())
    }

    /// Gives up reading around the page cache once the file system refused a request.
    fn notice_refusal(&mut self, transfers: &[Transfer<'_>]) {
        if !self.direct {
            return;
        }
        let Some(place) = self.jobs.iter().position(Job::was_refused) else { return };
        self.direct = false;
        let path = self.io.files().path(transfers[place].shard);
        let reason = format!("{}: the file system refuses O_DIRECT (EINVAL)", path.display());
        self.refusals.push((Refused::Direct, reason));
    }
}
