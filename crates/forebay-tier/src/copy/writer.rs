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
//! The threads give way to reads. They have a low priority. While the program reads the level that
//! they write to, each rests after a request for as long as that took. Reads of the source use
//! another device: a copy that waited for them would find its buffer needed for the next.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use forebay_host::{ThreadError, fork};
use forebay_plan::{COPY_THREADS, DIRTY_PART_BYTES, rest_after};
use forebay_types::CHUNK_BYTES;

use crate::copy::flush::DirtyParts;
use crate::copy::offer::{Copied, Offer, OfferedChunk, OfferedPiece, Publisher};
use crate::error::TierError;
use crate::level::health::{Health, LevelOperation};
use crate::level::storage::LevelStorage;
use crate::log::PieceSum;
use crate::table::LevelState;
use crate::table::entry::SlotId;
use crate::thread_priority::lower_own_priority;

/// Most bytes of one request \[bytes\]: a chunk, so that a whole one is written at once.
const REQUEST_BYTES: usize = CHUNK_BYTES as usize;

/// A thread takes further offers until it has so much [bytes]: enough for one message to the daemon
/// to cost little beside the writes.
const BATCH_BYTES: usize = 4 << 20;

/// Chunks are published at the latest after the chunk that ends so much later.
const PUBLISH_AFTER: Duration = Duration::from_millis(5);

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
    limits: Limits,
    levels: Vec<TargetLevel>,
    publisher: Arc<dyn Publisher>,
    health: Arc<Health>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Bounds that tests set lower.
#[derive(Clone, Copy)]
struct Limits {
    /// Of one request \[bytes\].
    block_bytes: usize,
    /// Of dirty pages: `flush.rs` \[bytes\].
    part_bytes: u64,
    /// See [`STUCK`].
    stuck: Duration,
}

struct TargetLevel {
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
    /// Starts what writes to `levels`.
    ///
    /// # Errors
    /// The system refuses the thread.
    pub fn start(
        levels: Vec<Arc<dyn LevelStorage>>,
        publisher: Arc<dyn Publisher>,
        health: Arc<Health>,
    ) -> Result<Self, TierError> {
        let limits = Limits { block_bytes: REQUEST_BYTES, part_bytes: DIRTY_PART_BYTES, stuck: STUCK };
        Self::start_within(limits, COPY_THREADS, levels, publisher, health)
    }

    /// If the system refuses some of the threads, the others do the work.
    fn start_within(
        limits: Limits,
        threads: usize,
        levels: Vec<Arc<dyn LevelStorage>>,
        publisher: Arc<dyn Publisher>,
        health: Arc<Health>,
    ) -> Result<Self, TierError> {
        let level = |storage| TargetLevel { storage, dirty: DirtyParts::new(limits.part_bytes) };
        let shared = Arc::new(Shared {
            limits,
            levels: levels.into_iter().map(level).collect(),
            publisher,
            health,
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
        let running = self
            .shared
            .wait_while(self.shared.lock(), self.shared.limits.stuck, |queue| queue.running > 0)
            .running;
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
        let mut rest_until = Instant::now();
        while let Some(offers) = self.next_batch() {
            self.end(offers, |tasks| self.copy(tasks, &mut rest_until));
        }
    }

    /// Waits for offers; `None` when the writer stops.
    fn next_batch(&self) -> Option<Vec<Offer>> {
        let mut queue = self.lock();
        loop {
            if queue.stopping {
                return None;
            }
            // The other threads get their share of what is queued.
            let share = queue.offers.len().div_ceil(queue.running);
            let mut batch = Vec::new();
            let mut bytes = 0;
            while batch.len() < share && bytes < BATCH_BYTES {
                let Some(offer) = queue.offers.pop_front() else { break };
                bytes += offer.buffer.len();
                batch.push(offer);
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
    fn copy(&self, tasks: &mut [Task<'_>], rest_until: &mut Instant) {
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
            match self.write(&tasks[number], at, rest_until) {
                Ok(sums) => {
                    let chunk = tasks[number].chunk.chunk;
                    written.push((number, Copied { chunk, at, sums }));
                }
                Err(error) => {
                    if self.health.failed(at.level, LevelOperation::Write, &error) {
                        self.publisher.level_failed(at.level);
                    }
                }
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
    fn write(&self, task: &Task<'_>, at: SlotId, rest_until: &mut Instant) -> io::Result<Vec<PieceSum>> {
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
            for block in buffer[run[0].at..run[run.len() - 1].end()].chunks(self.limits.block_bytes) {
                self.write_block(at, offset, block, rest_until)?;
                offset += block.len() as u64;
            }
        }
        Ok(sums)
    }

    /// Makes one request. The rest comes before it, so that a copy that is written is published
    /// without a rest.
    fn write_block(&self, at: SlotId, offset: u64, block: &[u8], rest_until: &mut Instant) -> io::Result<()> {
        let level = &self.levels[usize::from(at.level)];
        let is_read = || self.health.is_reading(at.level);
        if !level.storage.is_memory() && is_read() {
            let rest = rest_until.saturating_duration_since(Instant::now());
            drop(self.wait_while(self.lock(), rest, |queue| !queue.stopping));
        }
        let begun = Instant::now();
        level.storage.write(at.slab, offset, block)?;
        level.dirty.written(&*level.storage, at.slab, offset, block.len() as u64)?;
        *rest_until = Instant::now() + rest_after(begun.elapsed());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::copy::buffers::CopyBuffers;
    use crate::copy::offer::SourceCheck;
    use forebay_types::{ChunkId, Pieces};

    const SLOTS_OF_SLAB: u64 = 3;
    const FOREVER: Duration = Duration::MAX;

    /// Fails one of all calls.
    #[derive(Clone, Copy, Debug)]
    enum Fault {
        None,
        Error,
        Panic,
    }

    /// Counts the calls of all parts.
    struct Script {
        calls: AtomicUsize,
        fails_at: usize,
        fault: Fault,
    }

    impl Script {
        fn call(&self) -> Result<(), i32> {
            if self.calls.fetch_add(1, Ordering::Relaxed) != self.fails_at {
                return Ok(());
            }
            match self.fault {
                Fault::None => Ok(()),
                Fault::Error => Err(libc::EIO),
                Fault::Panic => panic!("as the script says"),
            }
        }

        fn storage_call(&self) -> io::Result<()> {
            self.call().map_err(io::Error::from_raw_os_error)
        }

        fn daemon_call(&self, attempt: &'static str) -> Result<(), TierError> {
            self.call().map_err(|_| TierError::Daemon { attempt, problem: "as the script says".into() })
        }
    }

    /// A level in memory.
    struct Memory {
        script: Arc<Script>,
        needs_no_flush: bool,
        slabs: Mutex<HashMap<u32, Vec<u8>>>,
        /// Whether it was the end of a flush, slab, offset, bytes.
        flushes: Mutex<Vec<(bool, u32, u64, u64)>>,
        longest_write: AtomicUsize,
        /// While this is held, no write returns.
        gate: Mutex<()>,
        write_takes: Mutex<Duration>,
    }

    impl LevelStorage for Memory {
        fn slabs(&self) -> io::Result<Vec<u32>> {
            unreachable!("the daemon's")
        }
        fn create(&self, _: u32) -> io::Result<()> {
            unreachable!("the daemon's")
        }
        fn allocate(&self, _: u32, _: u64) -> io::Result<()> {
            unreachable!("the daemon's")
        }
        fn taken_bytes(&self, _: u32) -> io::Result<u64> {
            unreachable!("the daemon's")
        }
        fn remove(&self, _: u32) -> io::Result<()> {
            unreachable!("the daemon's")
        }
        fn open(&self, _: u32, _: bool) -> io::Result<Arc<OwnedFd>> {
            unreachable!("a reader's")
        }
        fn free_bytes(&self) -> io::Result<u64> {
            unreachable!("the daemon's")
        }

        fn write(&self, slab: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.script.storage_call()?;
            self.longest_write.fetch_max(bytes.len(), Ordering::Relaxed);
            drop(self.gate.lock());
            std::thread::sleep(*self.write_takes.lock().unwrap());
            let mut slabs = self.slabs.lock().unwrap();
            let slab = slabs.entry(slab).or_insert_with(|| vec![0; (SLOTS_OF_SLAB * CHUNK_BYTES) as usize]);
            slab[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            Ok(())
        }

        fn start_flush(&self, slab: u32, offset: u64, bytes: u64) -> io::Result<()> {
            self.flushes.lock().unwrap().push((false, slab, offset, bytes));
            self.script.storage_call()
        }

        fn finish_flush(&self, slab: u32, offset: u64, bytes: u64) -> io::Result<()> {
            self.flushes.lock().unwrap().push((true, slab, offset, bytes));
            self.script.storage_call()
        }

        fn is_memory(&self) -> bool {
            self.needs_no_flush
        }
    }

    /// The daemon.
    struct Daemon {
        script: Arc<Script>,
        /// Slots of each level.
        room: u64,
        slots: Mutex<HashMap<(ChunkId, u8), SlotId>>,
        places: AtomicUsize,
        /// While this is held, no call of `place` returns.
        gate: Mutex<()>,
        published: Mutex<Vec<Copied>>,
        given_up: Mutex<Vec<(ChunkId, Pieces)>>,
        failed_levels: Mutex<Vec<u8>>,
    }

    impl Publisher for Daemon {
        fn place(&self, wanted: &[(ChunkId, u8)]) -> Result<Vec<Option<SlotId>>, TierError> {
            self.places.fetch_add(1, Ordering::Relaxed);
            drop(self.gate.lock());
            self.script.daemon_call("place")?;
            let mut slots = self.slots.lock().unwrap();
            let place = |wanted: &(ChunkId, u8)| {
                let used = slots.keys().filter(|(_, level)| *level == wanted.1).count() as u64;
                if let Some(at) = slots.get(wanted) {
                    return Some(*at);
                }
                let at = SlotId {
                    level: wanted.1,
                    slab: (used / SLOTS_OF_SLAB) as u32,
                    slot: (used % SLOTS_OF_SLAB) as u16,
                };
                (used < self.room).then(|| *slots.entry(*wanted).or_insert(at))
            };
            Ok(wanted.iter().map(place).collect())
        }

        fn publish(&self, copied: &[Copied]) -> Result<(), TierError> {
            self.script.daemon_call("publish")?;
            self.published.lock().unwrap().extend_from_slice(copied);
            Ok(())
        }

        fn give_up(&self, chunk: ChunkId, pieces: Pieces) {
            self.given_up.lock().unwrap().push((chunk, pieces));
        }

        fn level_failed(&self, level: u8) {
            self.failed_levels.lock().unwrap().push(level);
        }
    }

    struct Source {
        script: Arc<Script>,
        is_unchanged: bool,
    }

    impl SourceCheck for Source {
        fn is_unchanged(&self) -> bool {
            self.script.call().is_ok() && self.is_unchanged
        }
    }

    /// A writer with two levels in memory; the second has a device.
    struct Setup {
        script: Arc<Script>,
        levels: Vec<Arc<Memory>>,
        daemon: Arc<Daemon>,
        health: Arc<Health>,
        pool: Arc<CopyBuffers>,
        writer: Writer,
        /// How often each piece was offered.
        offered: HashMap<(ChunkId, u32), usize>,
    }

    /// Number, start, bytes.
    type Piece = (u8, u32, u32);

    fn source_byte(chunk: ChunkId, offset: u32) -> u8 {
        (chunk.0.wrapping_mul(31) + u64::from(offset) / 7) as u8
    }

    fn source_bytes(chunk: ChunkId, start: u32, bytes: u32) -> Vec<u8> {
        (start..start + bytes).map(|offset| source_byte(chunk, offset)).collect()
    }

    impl Setup {
        fn new(threads: usize, room: u64, fails_at: usize, fault: Fault) -> Self {
            let script = Arc::new(Script { calls: AtomicUsize::new(0), fails_at, fault });
            let level = |needs_no_flush| {
                Arc::new(Memory {
                    script: Arc::clone(&script),
                    needs_no_flush,
                    slabs: Mutex::default(),
                    flushes: Mutex::default(),
                    longest_write: AtomicUsize::new(0),
                    gate: Mutex::default(),
                    write_takes: Mutex::default(),
                })
            };
            let levels = vec![level(true), level(false)];
            let daemon = Arc::new(Daemon {
                script: Arc::clone(&script),
                room,
                slots: Mutex::default(),
                places: AtomicUsize::new(0),
                gate: Mutex::default(),
                published: Mutex::default(),
                given_up: Mutex::default(),
                failed_levels: Mutex::default(),
            });
            let health = Health::new(&["/memory".into(), "/device".into()]);
            let storages = levels.iter().map(|level| Arc::clone(level) as Arc<dyn LevelStorage>).collect();
            let publisher = Arc::clone(&daemon) as Arc<dyn Publisher>;
            let limits = Limits { block_bytes: 5000, part_bytes: 10_000, stuck: Duration::from_millis(10) };
            let writer = Writer::start_within(limits, threads, storages, publisher, Arc::clone(&health));
            let (pool, offered) = (CopyBuffers::new(16 << 20), HashMap::new());
            Self { script, levels, daemon, health, pool, writer: writer.unwrap(), offered }
        }

        /// Offers chunks; in the buffer a few bytes lie between pieces that do not follow each
        /// other in the slot.
        fn offer(&mut self, chunks: &[(u64, u8, Vec<Piece>)], is_unchanged: bool) {
            let mut bytes: Vec<u8> = Vec::new();
            let mut offered = Vec::new();
            for (chunk, level, pieces) in chunks {
                let chunk = ChunkId(*chunk);
                let mut behind = u32::MAX;
                let mut place = |(piece, start, length): &Piece| {
                    if *start != behind {
                        bytes.extend([0xee; 5]);
                    }
                    behind = start + length;
                    let at = bytes.len();
                    bytes.extend(source_bytes(chunk, *start, *length));
                    *self.offered.entry((chunk, u32::from(*piece))).or_default() += 1;
                    OfferedPiece { piece: *piece, start: *start, bytes: *length, at }
                };
                let pieces = pieces.iter().map(&mut place).collect();
                offered.push(OfferedChunk { chunk, level: *level, pieces });
            }
            let mut buffer = self.pool.take(bytes.len()).unwrap();
            buffer.copy_from_slice(&bytes);
            let source = Arc::new(Source { script: Arc::clone(&self.script), is_unchanged });
            self.writer.offer(Offer { buffer, chunks: offered, source });
        }

        /// What was published stands in its slot; each claim ended once; all memory is free.
        /// Returns the number of pieces that were published.
        fn check(&self) -> usize {
            let mut ended = HashMap::<_, usize>::new();
            let published = self.daemon.published.lock().unwrap();
            for copied in &*published {
                let slabs = self.levels[usize::from(copied.at.level)].slabs.lock().unwrap();
                for sum in &copied.sums {
                    let expected = source_bytes(copied.chunk, sum.start, sum.bytes);
                    let first = (u64::from(copied.at.slot) * CHUNK_BYTES) as usize + sum.start as usize;
                    assert!(slabs[&copied.at.slab][first..first + expected.len()] == expected, "{copied:?}");
                    assert_eq!(sum.crc, crc32c::crc32c(&expected));
                    *ended.entry((copied.chunk, u32::from(sum.piece))).or_default() += 1;
                }
            }
            let count = ended.values().sum();
            for (chunk, pieces) in &*self.daemon.given_up.lock().unwrap() {
                pieces.iter().for_each(|piece| *ended.entry((*chunk, piece)).or_default() += 1);
            }
            assert_eq!(ended, self.offered);
            assert_eq!((self.writer.pending_bytes(), self.pool.free_bytes()), (0, 16 << 20));
            count
        }
    }

    /// Two pieces that follow each other, and one behind a gap.
    fn pieces() -> Vec<Piece> {
        vec![(0, 0, 4000), (1, 4000, 3000), (15, (CHUNK_BYTES - 100) as u32, 100)]
    }

    #[test]
    fn all_that_is_offered_is_written_and_published() {
        let mut setup = Setup::new(2, 100, 0, Fault::None);
        for chunk in 0..20 {
            setup.offer(&[(chunk, 0, pieces()), (chunk + 100, 1, pieces())], true);
        }
        assert!(setup.writer.finish(FOREVER));
        assert_eq!(setup.check(), 20 * 2 * 3);
        assert!(setup.levels.iter().all(|level| level.longest_write.load(Ordering::Relaxed) == 5000));
        assert!(setup.health.take_warnings().is_empty());
    }

    #[test]
    fn a_thread_rests_between_writes_while_its_level_is_read() {
        const WRITE: Duration = Duration::from_millis(10);
        let mut setup = Setup::new(1, 100, 0, Fault::None);
        *setup.levels[1].write_takes.lock().unwrap() = WRITE;
        let health = Arc::clone(&setup.health);
        let mark = health.begin_read(1);
        let begun = Instant::now();
        // Three requests on each level, and a rest before the second and the third.
        setup.offer(&[(0, 0, pieces()), (1, 1, pieces())], true);
        assert!(setup.writer.finish(FOREVER));
        assert!(begun.elapsed() >= 5 * WRITE);
        drop(mark);
        assert_eq!(setup.check(), 6);
    }

    #[test]
    fn a_source_that_has_changed_is_not_copied() {
        let mut setup = Setup::new(1, 100, 0, Fault::None);
        setup.offer(&[(0, 0, pieces()), (1, 1, pieces())], false);
        setup.offer(&[(2, 0, pieces())], true);
        assert!(setup.writer.finish(FOREVER));
        assert_eq!(setup.check(), 3);
        assert_eq!(setup.daemon.slots.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_chunk_without_a_slot_is_given_up_without_a_warning() {
        let mut setup = Setup::new(1, 1, 0, Fault::None);
        setup.offer(&[(0, 0, pieces()), (1, 0, pieces())], true);
        assert!(setup.writer.finish(FOREVER));
        // The chunk that has a slot can get more pieces.
        setup.offer(&[(0, 0, vec![(9, 100_000, 50)])], true);
        assert!(setup.writer.finish(FOREVER));
        assert_eq!(setup.check(), 4);
        assert!(setup.health.take_warnings().is_empty());
    }

    #[test]
    fn a_level_that_fails_gets_no_more_copies_and_others_do() {
        // Calls 0 and 1 are of the source and of the daemon.
        let mut setup = Setup::new(1, 100, 2, Fault::Error);
        setup.offer(&[(0, 1, pieces()), (1, 1, pieces()), (2, 0, pieces())], true);
        assert!(setup.writer.finish(FOREVER));
        assert_eq!(setup.check(), 3);
        assert_eq!([0, 1].map(|level| setup.health.state(level)), [LevelState::Open, LevelState::Out]);
        setup.offer(&[(3, 1, pieces())], true);
        assert!(setup.writer.finish(FOREVER));
        assert_eq!((setup.check(), setup.daemon.places.load(Ordering::Relaxed)), (3, 1));
        assert_eq!(*setup.daemon.failed_levels.lock().unwrap(), [1]);
        assert_eq!(setup.health.take_warnings().len(), 1);
    }

    #[test]
    fn each_part_is_flushed_and_awaited_when_the_next_one_is_written() {
        let mut setup = Setup::new(1, 100, 0, Fault::None);
        for chunk in 0..4 {
            setup.offer(&[(chunk, 0, vec![(0, 0, 10_000)]), (chunk, 1, vec![(0, 0, 10_000)])], true);
            assert!(setup.writer.finish(FOREVER));
        }
        assert!(setup.levels[0].flushes.lock().unwrap().is_empty());
        let slots = [(0, 0), (0, CHUNK_BYTES), (0, 2 * CHUNK_BYTES), (1, 0)];
        let of = |ended, (slab, offset)| (ended, slab, offset, 10_000);
        let expected = [
            of(false, slots[0]),
            of(false, slots[1]),
            of(true, slots[0]),
            of(false, slots[2]),
            of(true, slots[1]),
            of(false, slots[3]),
            of(true, slots[2]),
        ];
        assert_eq!(*setup.levels[1].flushes.lock().unwrap(), expected);
    }

    #[test]
    fn a_fault_of_any_call_gives_claims_up_and_hangs_nothing() {
        let run = |fails_at, fault| {
            let mut setup = Setup::new(1, 100, fails_at, fault);
            for chunk in 0..4 {
                setup.offer(&[(chunk, 1, pieces()), (chunk + 10, 0, pieces())], true);
            }
            assert!(setup.writer.finish(FOREVER));
            (setup.check(), setup.script.calls.load(Ordering::Relaxed))
        };
        let (all, calls) = run(usize::MAX, Fault::None);
        assert_eq!(all, 4 * 2 * 3);
        for fails_at in 0..calls {
            for fault in [Fault::Error, Fault::Panic] {
                run(fails_at, fault);
            }
        }
    }

    fn until(holds: impl Fn() -> bool) {
        while !holds() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_writer_that_is_dropped_gives_up_what_is_queued() {
        let mut setup = Setup::new(1, 100, 0, Fault::None);
        let daemon = Arc::clone(&setup.daemon);
        let gate = daemon.gate.lock().unwrap();
        setup.offer(&[(0, 0, pieces())], true);
        until(|| daemon.places.load(Ordering::Relaxed) == 1);
        (1..5).for_each(|chunk| setup.offer(&[(chunk, 0, pieces())], true));
        assert!(!setup.writer.finish(Duration::ZERO) && setup.writer.pending_bytes() > 0);
        let Setup { writer, pool, offered, .. } = setup;
        std::thread::scope(|scope| {
            scope.spawn(move || drop(writer));
            until(|| daemon.given_up.lock().unwrap().len() == 4);
            drop(gate);
        });
        // On a busy machine the thread is left behind, and ends later.
        until(|| pool.free_bytes() == 16 << 20);
        assert_eq!(daemon.given_up.lock().unwrap().len(), offered.len() / 3);
        assert!(daemon.published.lock().unwrap().is_empty());
    }

    #[test]
    fn a_thread_that_hangs_is_left_behind_and_ends_its_claims_later() {
        let mut setup = Setup::new(2, 100, 0, Fault::None);
        let (level, daemon) = (Arc::clone(&setup.levels[1]), Arc::clone(&setup.daemon));
        let gate = level.gate.lock().unwrap();
        setup.offer(&[(0, 1, pieces()), (1, 1, pieces())], true);
        until(|| level.longest_write.load(Ordering::Relaxed) > 0);
        let Setup { writer, pool, .. } = setup;
        drop(writer);
        assert!(daemon.given_up.lock().unwrap().is_empty() && pool.free_bytes() < 16 << 20);
        drop(gate);
        until(|| pool.free_bytes() == 16 << 20);
        // The chunk under way is finished, the other is not begun.
        assert_eq!(daemon.published.lock().unwrap().len(), 1);
        assert_eq!(*daemon.given_up.lock().unwrap(), [(ChunkId(1), Pieces(0x8003))]);
    }

    #[test]
    fn offers_that_are_queued_together_are_placed_together() {
        let mut setup = Setup::new(1, 100, 0, Fault::None);
        let daemon = Arc::clone(&setup.daemon);
        let gate = daemon.gate.lock().unwrap();
        setup.offer(&[(0, 0, pieces())], true);
        until(|| daemon.places.load(Ordering::Relaxed) == 1);
        (1..5).for_each(|chunk| setup.offer(&[(chunk, 0, pieces())], true));
        drop(gate);
        assert!(setup.writer.finish(FOREVER));
        assert_eq!((setup.check(), daemon.places.load(Ordering::Relaxed)), (15, 2));
    }

    /// Pieces of a chunk, some of which follow each other.
    fn any_pieces() -> impl Strategy<Value = Vec<Piece>> {
        let all = vec((any::<bool>(), prop_oneof![Just(300_u32), 1..300_u32]), 16);
        all.prop_map(|pieces| {
            let numbered = pieces.into_iter().enumerate();
            let piece =
                |(number, (_, bytes)): (usize, (bool, u32))| (number as u8, number as u32 * 300, bytes);
            numbered.filter(|(_, (is_offered, _))| *is_offered).map(piece).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn each_claim_ends_once_and_each_published_byte_is_right(
            offers in vec((vec((0..12_u64, 0..2_u8, any_pieces()), 0..4), prop::bool::weighted(0.9)), 1..12),
            threads in 1..4_usize,
            room in 0..14_u64,
            fails_at in 0..200_usize,
            fault in prop_oneof![Just(Fault::None), Just(Fault::Error), Just(Fault::Panic)],
        ) {
            let mut setup = Setup::new(threads, room, fails_at, fault);
            for (chunks, is_unchanged) in &offers {
                setup.offer(chunks, *is_unchanged);
            }
            prop_assert!(setup.writer.finish(FOREVER));
            setup.check();
        }
    }
}
