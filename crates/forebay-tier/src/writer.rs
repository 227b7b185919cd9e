//! The threads that write copies.
//!
//! A read offers bytes of the source and goes on. A thread takes what is queued, up to a few MiB:
//! 1. It leaves out offers whose source has changed and levels that take no copies.
//! 2. It asks the [`Publisher`] for slots of all chunks in one call.
//! 3. It writes the pieces of each chunk, with the checksum of each, and bounds dirty pages
//!    (`flush.rs`).
//! 4. It publishes together what it has written in a few milliseconds: others wait for it.
//!
//! Promises: each claim that was offered is published or given up exactly once, whatever fails,
//! also if a call panics. A published byte was written to its slot. An error of a level goes to
//! [`Health`], not to a read.
//!
//! The threads give way to reads. They have a low priority. While the program reads the source, or
//! the level that they write to, each rests after a request for as long as that took.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use forebay_host::{ThreadError, fork};

use crate::chunk::CHUNK_BYTES;
use crate::entry::SlotId;
use crate::error::TierError;
use crate::flush::{DirtyParts, PART_BYTES};
use crate::health::{Action, Health};
use crate::log::PieceSum;
use crate::offer::{Copied, Offer, OfferedChunk, OfferedPiece, Publisher};
use crate::storage::LevelStorage;
use crate::table::LevelState;
use crate::thread_priority::lower_own_priority;

/// A thread takes further offers until it has so much [bytes]: enough for one message to the daemon
/// to cost little beside the writes.
const BATCH_BYTES: usize = 4 << 20;

/// Chunks are published at the latest after the chunk that ends so much later.
const PUBLISH_AFTER: Duration = Duration::from_millis(5);

/// Longest rest after a request: one request that hangs must not stop the copies for as long.
const MAX_REST: Duration = Duration::from_millis(20);

/// How long the end of a writer waits for a thread that a level keeps in a system call. Then it is
/// left behind.
const STUCK: Duration = Duration::from_secs(10);

/// The threads of a process that copy to levels. When it is dropped, they end after the chunk that
/// they are writing, and the rest is given up.
pub struct Writer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The process that has the threads ([`fork`]).
    generation: u64,
}

struct Shared {
    block_bytes: usize,
    levels: Vec<Level>,
    publisher: Arc<dyn Publisher>,
    health: Arc<Health>,
    /// Reads of the source that are under way.
    reads: AtomicUsize,
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Level {
    storage: Arc<dyn LevelStorage>,
    dirty: DirtyParts,
}

#[derive(Default)]
struct Queue {
    offers: VecDeque<Offer>,
    /// Offers that are queued or being written.
    pending: usize,
    /// Their buffers \[bytes\].
    pending_bytes: usize,
    /// Threads that have not ended.
    running: usize,
    stopping: bool,
}

/// A chunk of a batch, whose claim is held until it is published or given up.
struct Task<'a> {
    offer: &'a Offer,
    chunk: &'a OfferedChunk,
    is_published: bool,
}

impl Writer {
    /// Starts threads that write to `levels` in requests of at most `block_bytes`. If the system
    /// refuses some of the threads, the others do the work.
    ///
    /// # Errors
    /// The system refuses all threads.
    pub fn start(
        threads: usize,
        block_bytes: usize,
        levels: Vec<Arc<dyn LevelStorage>>,
        publisher: Arc<dyn Publisher>,
        health: Arc<Health>,
    ) -> Result<Self, TierError> {
        Self::start_flushing(threads, block_bytes, levels, publisher, health, PART_BYTES)
    }

    fn start_flushing(
        threads: usize,
        block_bytes: usize,
        levels: Vec<Arc<dyn LevelStorage>>,
        publisher: Arc<dyn Publisher>,
        health: Arc<Health>,
        part_bytes: u64,
    ) -> Result<Self, TierError> {
        let level = |storage| Level { storage, dirty: DirtyParts::new(part_bytes) };
        let shared = Arc::new(Shared {
            block_bytes: block_bytes.max(1),
            levels: levels.into_iter().map(level).collect(),
            publisher,
            health,
            reads: AtomicUsize::new(0),
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut writer = Self { shared, threads: Vec::new(), generation: fork::generation() };
        for number in 0..threads.max(1) {
            let shared = Arc::clone(&writer.shared);
            shared.lock().running += 1;
            let run = move || {
                let running = Running(shared);
                running.0.run();
            };
            match Builder::new().name(format!("forebay-copy-{number}")).spawn(run) {
                Ok(thread) => writer.threads.push(thread),
                // The closure, and `Running` in it, never ran.
                Err(error) => {
                    writer.shared.lock().running -= 1;
                    if writer.threads.is_empty() {
                        return Err(ThreadError::new("a thread that copies to tiers", &error).into());
                    }
                    break;
                }
            }
        }
        Ok(writer)
    }

    /// Queues bytes to be copied. The bound is that of the copy buffers.
    pub fn offer(&self, offer: Offer) {
        let mut queue = self.shared.lock();
        queue.pending += 1;
        queue.pending_bytes += offer.buffer.len();
        queue.offers.push_back(offer);
        self.shared.changed.notify_all();
    }

    /// Buffers that are queued or being written \[bytes\].
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.shared.lock().pending_bytes
    }

    /// Waits until all offers are published or given up; returns whether they are.
    #[must_use]
    pub fn finish(&self, within: Duration) -> bool {
        if fork::in_forked_child(self.generation) {
            return false;
        }
        let queue = self.shared.wait_while(self.shared.lock(), within, |queue| queue.pending > 0);
        queue.pending == 0
    }

    /// Marks a read of the source by this process, until the guard is dropped: copies give way.
    #[must_use]
    pub fn reading(&self) -> ReadingGuard<'_> {
        self.shared.reads.fetch_add(1, Ordering::Relaxed);
        ReadingGuard(&self.shared.reads)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if fork::in_forked_child(self.generation) {
            // The threads and what they copy belong to the parent.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        let rest = {
            let mut queue = self.shared.lock();
            queue.stopping = true;
            std::mem::take(&mut queue.offers)
        };
        self.shared.changed.notify_all();
        self.shared.end(rest.into(), |_| {});
        let running = self.shared.wait_while(self.shared.lock(), STUCK, |queue| queue.running > 0).running;
        if running > 0 {
            tracing::warn!(running, "threads that copy to tiers hang in a system call: left behind");
            return;
        }
        for thread in self.threads.drain(..) {
            // Panics are caught where they happen.
            let _ = thread.join();
        }
    }
}

/// A read of the source that is under way.
pub struct ReadingGuard<'a>(&'a AtomicUsize);

impl Drop for ReadingGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A thread that has not ended.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while<'a>(
        &self,
        queue: MutexGuard<'a, Queue>,
        within: Duration,
        holds: impl Fn(&Queue) -> bool,
    ) -> MutexGuard<'a, Queue> {
        let waited = self.changed.wait_timeout_while(queue, within, |queue| holds(queue));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn run(&self) {
        lower_own_priority();
        while let Some(offers) = self.next_batch() {
            self.end(offers, |tasks| self.copy(tasks));
        }
    }

    /// Waits for offers; `None` when the writer stops.
    fn next_batch(&self) -> Option<Vec<Offer>> {
        let mut queue = self.lock();
        loop {
            if queue.stopping {
                return None;
            }
            let mut batch = Vec::new();
            let mut bytes = 0;
            while let Some(offer) = queue.offers.pop_front() {
                bytes += offer.buffer.len();
                batch.push(offer);
                if bytes >= BATCH_BYTES {
                    break;
                }
            }
            if !batch.is_empty() {
                return Some(batch);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Does `work` with offers, then gives up what it did not publish.
    fn end(&self, offers: Vec<Offer>, work: impl FnOnce(&mut [Task<'_>])) {
        let mut tasks = Vec::new();
        for offer in &offers {
            tasks.extend(offer.chunks.iter().map(|chunk| Task { offer, chunk, is_published: false }));
        }
        if catch_unwind(AssertUnwindSafe(|| work(&mut tasks))).is_err() {
            tracing::error!("a copy to a tier panicked: given up");
        }
        for task in tasks.iter().filter(|task| !task.is_published) {
            let give_up = || self.publisher.give_up(task.chunk.chunk, task.chunk.numbers());
            if catch_unwind(AssertUnwindSafe(give_up)).is_err() {
                tracing::error!(chunk = task.chunk.chunk.0, "a claim of a chunk could not be released");
            }
        }
        let (pending, bytes) = (offers.len(), offers.iter().map(|offer| offer.buffer.len()).sum::<usize>());
        // Who waits for the end finds the memory free.
        drop(tasks);
        drop(offers);
        let mut queue = self.lock();
        queue.pending -= pending;
        queue.pending_bytes -= bytes;
        self.changed.notify_all();
    }

    /// Writes and publishes what it can; the rest stays unpublished.
    fn copy(&self, tasks: &mut [Task<'_>]) {
        let wanted = self.wanted(tasks);
        if wanted.is_empty() {
            return;
        }
        let asked: Vec<_> =
            wanted.iter().map(|number| (tasks[*number].chunk.chunk, tasks[*number].chunk.level)).collect();
        let slots = match self.publisher.place(&asked) {
            Ok(slots) => slots,
            Err(error) => {
                tracing::debug!(%error, "no slots for copies");
                return;
            }
        };
        let mut written = Vec::new();
        let mut since = Instant::now();
        for (number, at) in wanted.into_iter().zip(slots) {
            if self.lock().stopping {
                break;
            }
            // Without a slot the level is full.
            let Some(at) = at else { continue };
            if self.health.state(at.level) != LevelState::Open {
                continue;
            }
            match self.write(&tasks[number], at) {
                Ok(sums) => {
                    let chunk = tasks[number].chunk.chunk;
                    written.push((number, Copied { chunk, at, sums }));
                }
                Err(error) => self.health.failed(at.level, Action::Write, &error),
            }
            if since.elapsed() >= PUBLISH_AFTER {
                self.publish(std::mem::take(&mut written), tasks);
                since = Instant::now();
            }
        }
        self.publish(written, tasks);
    }

    /// The tasks whose source has not changed and whose level takes copies.
    fn wanted(&self, tasks: &[Task<'_>]) -> Vec<usize> {
        let mut wanted = Vec::new();
        let mut first = 0;
        for of_offer in tasks.chunk_by(|one, next| std::ptr::eq(one.offer, next.offer)) {
            if of_offer[0].offer.source.is_unchanged() {
                let is_open = |task: &Task<'_>| self.health.state(task.chunk.level) == LevelState::Open;
                wanted.extend(
                    (first..).zip(of_offer).filter(|(_, task)| is_open(task)).map(|(number, _)| number),
                );
            }
            first += of_offer.len();
        }
        wanted
    }

    fn publish(&self, written: Vec<(usize, Copied)>, tasks: &mut [Task<'_>]) {
        if written.is_empty() {
            return;
        }
        let (numbers, copied): (Vec<_>, Vec<_>) = written.into_iter().unzip();
        match self.publisher.publish(&copied) {
            Ok(()) => numbers.into_iter().for_each(|number| tasks[number].is_published = true),
            Err(error) => tracing::debug!(%error, "copies could not be published"),
        }
    }

    /// Writes the pieces of a chunk into its slot, and returns their checksums.
    fn write(&self, task: &Task<'_>, at: SlotId) -> io::Result<Vec<PieceSum>> {
        let buffer = &*task.offer.buffer;
        let sums: Vec<_> = task
            .chunk
            .pieces
            .iter()
            .map(|piece| {
                let crc = crc32c::crc32c(&buffer[piece.at..piece.end()]);
                PieceSum { piece: piece.piece, start: piece.start, bytes: piece.bytes, crc }
            })
            .collect();
        // Another slot would be overwritten.
        assert!(sums.iter().all(PieceSum::is_valid), "{:?}", task.chunk);
        let follows = |piece: &OfferedPiece, next: &OfferedPiece| {
            (piece.start + piece.bytes, piece.end()) == (next.start, next.at)
        };
        for run in task.chunk.pieces.chunk_by(follows) {
            let mut offset = u64::from(at.slot) * CHUNK_BYTES + u64::from(run[0].start);
            for block in buffer[run[0].at..run[run.len() - 1].end()].chunks(self.block_bytes) {
                self.write_block(at, offset, block)?;
                offset += block.len() as u64;
            }
        }
        Ok(sums)
    }

    fn write_block(&self, at: SlotId, offset: u64, block: &[u8]) -> io::Result<()> {
        let level = &self.levels[usize::from(at.level)];
        let begun = Instant::now();
        level.storage.write(at.slab, offset, block)?;
        level.dirty.written(&*level.storage, at.slab, offset, block.len() as u64)?;
        if self.reads.load(Ordering::Relaxed) > 0 || self.health.is_reading(at.level) {
            let rest = begun.elapsed().min(MAX_REST);
            drop(self.wait_while(self.lock(), rest, |queue| !queue.stopping));
        }
        Ok(())
    }
}
