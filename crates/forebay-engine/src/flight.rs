//! The blocks of a node that are being read at once: in the order of the plan, and no more than the width.
//!
//! Where the width is less than the number of readers, a reader begins block q only once all blocks up to q − width are
//! filled. So requests reach the storage in the order of their offsets, as far as the order of the samples allows, and a width
//! of one is a walk through the file. Where all readers may read they do not wait for each other. The width is
//! found out by `pace.rs`; the rates it needs are measured here, over all readers of the node.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_plan::{ConcurrencyTuner, Mode};

use crate::position::Position;

/// Words in shared memory; all begin as zeros.
#[repr(C, align(128))]
pub(crate) struct Flight {
    /// Position word of (pass, a block before which all are filled): a lower bound, moved on by whoever looks.
    frontier: AtomicU64,
    /// Blocks and bytes filled so far, in all passes.
    blocks: AtomicU64,
    bytes: AtomicU64,
    /// The pace, and where it was taken up.
    width: AtomicU64,
    mode: AtomicU64,
    best: AtomicU64,
    held: AtomicU64,
    rate_bits: AtomicU64,
    until_blocks: AtomicU64,
    /// Not 0: blocks that were begun at the width before are waited for.
    draining: AtomicU64,
    begun_bytes: AtomicU64,
    begun_ns: AtomicU64,
    /// Set when a reader had its turn and nothing to read, or no memory to read into: then the rate says nothing of the storage.
    starved: AtomicU32,
    /// Taken by the one process that decides on the next pace.
    deciding: AtomicU32,
}

impl Flight {
    /// Blocks that may be under way at once; `first` is how many at the beginning.
    pub(crate) fn width(&self, first: u64) -> u64 {
        match self.width.load(Ordering::Acquire) {
            0 => first,
            width => width,
        }
    }

    /// Whether block `sequence` may be begun, where `first` may be under way at the beginning and no more than `most` ever.
    /// `is_filled` tells of one block of the pass.
    pub(crate) fn may_begin(
        &self,
        pass: u64,
        sequence: u64,
        (first, most): (u64, u64),
        is_filled: impl Fn(u64) -> bool,
    ) -> bool {
        let width = self.width(first);
        if width >= most {
            return true;
        }
        loop {
            let word = self.frontier.load(Ordering::Acquire);
            let frontier = Position::from_word(word).step_in(pass);
            if sequence < frontier + width {
                return true;
            }
            if !is_filled(frontier) {
                return false;
            }
            let moved = Position::new(pass, frontier + 1).word();
            // Whoever was faster has done the same.
            let _ = self.frontier.compare_exchange(word, moved, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Notes that a reader which had its turn has to wait for something else.
    pub(crate) fn starve(&self) {
        self.starved.store(1, Ordering::Release);
    }

    /// Counts a block that was read, and decides on the next pace when it is time to.
    pub(crate) fn landed(&self, bytes: u64, (first, most): (u64, u64), now_ns: impl Fn() -> u64) {
        let bytes = self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        let blocks = self.blocks.fetch_add(1, Ordering::AcqRel) + 1;
        if blocks < self.until_blocks.load(Ordering::Acquire) || self.deciding.swap(1, Ordering::Acquire) != 0
        {
            return;
        }
        // Another process may have decided since.
        if blocks >= self.until_blocks.load(Ordering::Acquire) {
            let now = now_ns();
            let elapsed = now.saturating_sub(self.begun_ns.load(Ordering::Acquire)).max(1);
            let rate = bytes.saturating_sub(self.begun_bytes.load(Ordering::Acquire)) as f64 / elapsed as f64;
            let draining = self.draining.swap(0, Ordering::AcqRel) != 0;
            let next = match self.pace() {
                None => ConcurrencyTuner::begin(first, most),
                Some(pace) if draining || self.starved.load(Ordering::Acquire) != 0 => pace,
                Some(pace) => pace.next(rate, most),
            };
            // What was begun at another width says nothing of this one.
            let under_way = self.width(first);
            let drain = if next.width == under_way { 0 } else { under_way };
            self.draining.store(drain, Ordering::Release);
            self.mode.store(next.mode as u64, Ordering::Release);
            self.best.store(next.best, Ordering::Release);
            self.held.store(next.held, Ordering::Release);
            self.rate_bits.store(next.rate.to_bits(), Ordering::Release);
            self.starved.store(0, Ordering::Release);
            self.begun_bytes.store(bytes, Ordering::Release);
            self.begun_ns.store(now, Ordering::Release);
            self.width.store(next.width, Ordering::Release);
            let until = if drain > 0 { drain } else { next.blocks() };
            self.until_blocks.store(blocks + until, Ordering::Release);
        }
        self.deciding.store(0, Ordering::Release);
    }

    /// The pace; `None` before the first decision.
    fn pace(&self) -> Option<ConcurrencyTuner> {
        let width = self.width.load(Ordering::Acquire);
        (width > 0).then(|| ConcurrencyTuner {
            width,
            mode: Mode::from_number(self.mode.load(Ordering::Acquire)),
            best: self.best.load(Ordering::Acquire),
            held: self.held.load(Ordering::Acquire),
            rate: f64::from_bits(self.rate_bits.load(Ordering::Acquire)),
        })
    }
}
