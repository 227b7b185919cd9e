//! The shared region of a node: one sealed memfd, laid out the same way in every process.
//!
//! ```text
//! header (event counts) | a slot per rank | a slot per reader | a word per block
//! | sample locations | staging ring | batch buffers per rank
//! ```
//!
//! The region begins as zeros. The control part holds atomics only; staging bytes and batch buffers
//! are plain memory. The protocol (`block_state.rs`) and the pool of batch buffers
//! (`batch/buffer_pool.rs`) decide which thread may use them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_host::{EventCount, HostError, Map};
use forebay_plan::config::{
    RANK_SLOT_BYTES, READER_SLOT_BYTES, REGION_HEADER_BYTES, RegionLayout, RegionSizes,
};

use crate::error::Error;
use crate::mesh::{Conflict, PeerFailure};
use crate::shm::location_ring::LocationRing;
use crate::shm::mapped_epochs::MappedEpochs;
use crate::shm::position::BlockSeq;
use crate::shm::read_gate::ReadGate;
use crate::shm::readahead_cursor::ReadaheadCursor;

/// Alignment of everything that is read into or handed out \[bytes\]: a page, which `O_DIRECT`
/// needs.
pub const ALIGN: u64 = 4096;
/// Words for counters per rank; `counters.rs` names them.
pub const COUNTER_WORDS: usize = 96;
/// Delivery times stored per rank, to measure the skew.
pub const DELIVERY_TIMES: usize = 64;

#[repr(C, align(128))]
struct RegionHeader {
    /// Notified when a block is complete or a plan grows: gather threads wait here.
    filled: EventCount,
    _apart: [u8; 56],
    /// Notified when a position or a plan grows, or a rank leaves or wants another session: readers
    /// wait here.
    gathered: EventCount,
    _far_apart: [u8; 56],
    /// Notified when a reader begins another segment or a gather thread lacks one: planners wait
    /// here.
    planning: EventCount,
    /// Blocks that the kernel was asked to prefetch.
    readahead: ReadaheadCursor,
    /// Whether readers may read, where only some nodes may at a time.
    gate: ReadGate,
    /// Epochs that are copied from the page cache.
    mapped_epochs: MappedEpochs,
    /// [`PeerFailure`] word of the first process of the job that was lost; 0 for none.
    lost: AtomicU64,
    /// A node that began the iteration at a different step.
    conflict: ConflictWords,
}

/// A [`Conflict`] in shared memory, for the ranks that are at its start.
#[repr(C)]
pub struct ConflictWords {
    theirs: AtomicU64,
    node: AtomicU64,
    /// The own step + 1, written last; 0 for none.
    own: AtomicU64,
}

impl ConflictWords {
    /// Records a conflict; only the leader's I/O thread calls this.
    pub fn set(&self, conflict: Conflict) {
        self.theirs.store(conflict.theirs, Ordering::Relaxed);
        self.node.store(conflict.node as u64, Ordering::Relaxed);
        // SYNC: conflict (release) pairs with the acquire in `at`.
        self.own.store(conflict.own + 1, Ordering::Release);
    }

    /// Clears the conflict: all ranks of the node agreed on another start.
    pub fn clear(&self) {
        self.own.store(0, Ordering::Release);
    }

    /// The conflict of an iteration that began at step `own`.
    pub fn at(&self, own: u64) -> Option<Conflict> {
        // SYNC: conflict (acquire) pairs with the release in `set`.
        (self.own.load(Ordering::Acquire) == own + 1).then(|| Conflict {
            own,
            node: self.node.load(Ordering::Relaxed) as usize,
            theirs: self.theirs.load(Ordering::Relaxed),
        })
    }
}

/// Words that a rank publishes.
#[repr(C, align(128))]
pub struct RankSlot {
    /// See [`crate::shm::block_state::Presence`].
    pub left: AtomicU32,
    /// When this process was last known to run [ns of the monotonic clock].
    pub alive: AtomicU64,
    /// [`crate::shm::stall::Doing`] word: the first wait of the rank.
    pub doing: AtomicU64,
    /// Whether the program of the rank waits for a batch now.
    pub waits: AtomicU32,
    /// Number + 1 of the rank for which this rank waits in another loader; 0 while it does not
    /// (`loader/elsewhere.rs`).
    pub elsewhere: AtomicU32,
    /// [`crate::shm::position::Position`] word of the session that the rank wants, and where it
    /// starts.
    pub want: AtomicU64,
    /// Position word of the session the rank is in, and the first step after the epoch that it
    /// started last.
    pub reached: AtomicU64,
    /// The session up to which this process's threads are at rest.
    pub quiet: AtomicU64,
    /// Position word (`block_state.rs`).
    pub position: AtomicU64,
    /// Position word: this process's planner has taken the locations of all steps before it
    /// (`location_ring.rs`).
    pub taken: AtomicU64,
    /// Steps delivered to the user since the loader was created; index of `delivery_times`.
    pub delivered: AtomicU64,
    /// Digests of the orders given for the last two epochs, by parity: (epoch + 1) in the upper
    /// half, digest in the lower.
    pub given: [AtomicU64; 2],
    /// Counters (`counters.rs`).
    pub counters: [AtomicU64; COUNTER_WORDS],
    /// When the last steps were delivered [ns of the monotonic clock].
    pub delivery_times: [AtomicU64; DELIVERY_TIMES],
}

impl RankSlot {
    /// Digest of the order that the rank was given for an epoch.
    pub fn given_digest(&self, epoch: u64) -> Option<u64> {
        let word = self.given[(epoch % 2) as usize].load(Ordering::SeqCst);
        (word >> 32 == (epoch + 1) & 0xffff_ffff).then_some(word & 0xffff_ffff)
    }

    /// Records the digest of the order that the rank was given for an epoch.
    pub fn give(&self, epoch: u64, digest: u64) {
        let word = (epoch + 1) << 32 | (digest & 0xffff_ffff);
        self.given[(epoch % 2) as usize].store(word, Ordering::SeqCst);
    }
}

/// Words that a reader publishes.
#[repr(C, align(128))]
pub struct ReaderSlot {
    /// See `block_state::publish_overwritten`.
    pub overwritten: AtomicU64,
    /// Position word of (session, sequence of the last block begun + 1).
    pub begun: AtomicU64,
    /// Position word of (session, how often the reader moved to the next rank).
    pub moves: AtomicU64,
    /// Position word: the root of this number has located all samples of its steps before it
    /// (`location_ring.rs`).
    pub found: AtomicU64,
    /// [`crate::shm::stall::Doing`] word of the reader.
    pub doing: AtomicU64,
    /// [`crate::shm::stall::Doing`] word of the root of this number.
    pub seeking: AtomicU64,
}

/// [`RegionLayout`] knows their sizes. Those of a model of the memory (loom) differ.
#[cfg(not(loom))]
const _: () = assert!(
    size_of::<RegionHeader>() == REGION_HEADER_BYTES
        && size_of::<RankSlot>() == RANK_SLOT_BYTES
        && size_of::<ReaderSlot>() == READER_SLOT_BYTES
);

fn location_words(sizes: &RegionSizes) -> usize {
    LocationRing::words(sizes.location_steps, sizes.step_needs)
}

/// The mapped region.
pub struct Region {
    map: Map,
    /// The memory itself, to query how much of it is allocated.
    fd: OwnedFd,
    layout: RegionSizes,
    at: RegionLayout,
}

impl Region {
    /// Maps a region that the leader made (`sealed_memfd` of all its bytes).
    pub fn map(fd: impl AsFd, layout: RegionSizes) -> Result<Self, Error> {
        assert!(layout.staging_bytes.is_multiple_of(ALIGN) && layout.buffer_bytes.is_multiple_of(ALIGN));
        let map = Map::shared(fd.as_fd(), layout.total_bytes() as usize)?;
        let fd = fd.as_fd().try_clone_to_owned().map_err(HostError::system("keep shared memory"))?;
        let at = RegionLayout::new(&layout);
        Ok(Self { map, fd, layout, at })
    }

    /// The sizes.
    pub fn layout(&self) -> &RegionSizes {
        &self.layout
    }

    /// Size of all of it \[bytes\].
    pub fn total_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// The mapping, for touching its pages.
    pub fn memory(&self) -> &Map {
        &self.map
    }

    fn pointer<T>(&self, offset: usize) -> *const T {
        debug_assert!(offset + size_of::<T>() <= self.map.len());
        // SAFETY: `offset` lies inside the mapping: all callers compute it from the layout whose
        // total is the mapping's length.
        unsafe { self.map.as_ptr().add(offset).cast::<T>() }
    }

    fn header(&self) -> &RegionHeader {
        // SAFETY: the header is at the start of the page-aligned mapping; it is made of atomics for
        // which zeros are valid.
        unsafe { &*self.pointer::<RegionHeader>(0) }
    }

    /// Where gather threads wait for blocks and plans.
    pub fn filled(&self) -> &EventCount {
        &self.header().filled
    }

    /// Where readers wait for positions.
    pub fn gathered(&self) -> &EventCount {
        &self.header().gathered
    }

    /// Where planners wait until readers or gather threads need another segment.
    pub fn planning(&self) -> &EventCount {
        &self.header().planning
    }

    /// Blocks that the kernel was asked to prefetch.
    pub(crate) fn readahead(&self) -> &ReadaheadCursor {
        &self.header().readahead
    }

    /// Epochs that are copied from the page cache.
    pub fn mapped_epochs(&self) -> &MappedEpochs {
        &self.header().mapped_epochs
    }

    /// The first process of the job that was lost.
    pub fn loss(&self) -> Option<PeerFailure> {
        PeerFailure::from_word(self.header().lost.load(Ordering::Acquire))
    }

    /// Records a loss unless another one was recorded before; returns the recorded one.
    pub fn record_loss(&self, loss: PeerFailure) -> PeerFailure {
        let word = &self.header().lost;
        match word.compare_exchange(0, loss.to_word(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => loss,
            Err(recorded) => PeerFailure::from_word(recorded).unwrap_or(loss),
        }
    }

    /// A node that began the iteration at a different step.
    pub fn conflict(&self) -> &ConflictWords {
        &self.header().conflict
    }

    /// The gate of this node's readers, for staggered reads.
    pub fn gate(&self) -> &ReadGate {
        &self.header().gate
    }

    /// All ranks' slots, by local rank.
    pub fn ranks(&self) -> &[RankSlot] {
        // SAFETY: the slots lie inside the mapping at a multiple of their alignment (the header is
        // 128-aligned and a multiple of 128 long); they are made of atomics for which zeros are
        // valid.
        unsafe { std::slice::from_raw_parts(self.pointer(self.at.ranks), self.layout.ranks) }
    }

    /// All readers' slots.
    pub fn readers(&self) -> &[ReaderSlot] {
        // SAFETY: as for `ranks`.
        unsafe { std::slice::from_raw_parts(self.pointer(self.at.readers), self.layout.readers) }
    }

    /// The word of the block with this sequence number.
    pub fn block_word(&self, BlockSeq(sequence): BlockSeq) -> &AtomicU64 {
        let slot = (sequence % self.layout.blocks as u64) as usize;
        // SAFETY: the words lie inside the mapping, 8-aligned (all parts before are multiples of
        // 128).
        unsafe { &*self.pointer::<AtomicU64>(self.at.words + slot * 8) }
    }

    /// Locations of samples, from the roots to the planners of the node.
    pub fn locations(&self) -> LocationRing<'_> {
        // SAFETY: the words lie inside the mapping, 8-aligned (all parts before are multiples of
        // 8).
        let words = unsafe {
            std::slice::from_raw_parts(self.pointer(self.at.locations), location_words(&self.layout))
        };
        LocationRing::new(words, self.layout.location_steps, self.layout.step_needs)
    }

    /// Returns the pages of the staging ring and of some batch buffers of a rank to the system.
    ///
    /// Their contents are lost and read as zeros afterwards. No thread may use them meanwhile.
    pub fn release(&self, rank: usize, buffers: &[usize]) -> Result<(), Error> {
        self.map.release(self.staging_range())?;
        for number in buffers {
            let start = self.buffer(rank, *number) as usize - self.map.as_ptr() as usize;
            self.map.release(start..start + self.layout.buffer_bytes as usize)?;
        }
        Ok(())
    }

    /// Bytes of the region that are allocated, because some process has touched them.
    pub fn touched_bytes(&self) -> u64 {
        rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_blocks as u64 * 512)
    }

    /// Where the staging ring lies in the mapping \[bytes\].
    pub fn staging_range(&self) -> std::ops::Range<usize> {
        self.at.staging..self.at.buffers
    }

    /// Staging bytes, to read.
    ///
    /// # Safety
    /// The caller saw a block word that covers these bytes, and has not published a position past
    /// the last step that needs them.
    pub unsafe fn staging(&self, offset: u64, length: u64) -> &[u8] {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.layout.staging_bytes));
        // SAFETY: inside the mapping by the assertion; by the caller's promise no reader writes.
        unsafe {
            std::slice::from_raw_parts(self.pointer(self.at.staging + offset as usize), length as usize)
        }
    }

    /// Staging bytes, to fill.
    ///
    /// # Safety
    /// The caller is the only reader of the block that owns these bytes, and each rank is past the
    /// block's `after_step`.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn staging_mut(&self, offset: u64, length: u64) -> &mut [u8] {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.layout.staging_bytes));
        // SAFETY: inside the mapping by the assertion; exclusive by the caller's promise.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.pointer::<u8>(self.at.staging + offset as usize).cast_mut(),
                length as usize,
            )
        }
    }

    /// A rank's batch buffer: its address, valid as long as the region.
    pub fn buffer(&self, rank: usize, number: usize) -> *mut u8 {
        assert!(rank < self.layout.ranks && number < self.layout.buffers);
        let index = rank * self.layout.buffers + number;
        self.pointer::<u8>(self.at.buffers + index * self.layout.buffer_bytes as usize).cast_mut()
    }
}
