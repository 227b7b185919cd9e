//! Expanded blocks, as many as a budget allows.
//!
//! There is one slot per block, each with its own lock, so threads on different blocks never
//! contend. Eviction is "clock", a cheap approximation of least recently used: a hand passes over
//! the slots and empties those that were not used since its last pass. Only a thread that expands a
//! block moves the hand.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// What can be held: it knows its memory.
pub(super) trait Held {
    /// Memory that it takes \[bytes\].
    fn bytes(&self) -> u64;
}

/// Expanded blocks by number.
#[derive(Debug)]
pub(super) struct Cache<T> {
    slots: Vec<Slot<T>>,
    budget_bytes: u64,
    held_bytes: AtomicU64,
    hand: Mutex<usize>,
}

#[derive(Debug)]
struct Slot<T> {
    block: RwLock<Option<Arc<T>>>,
    used: AtomicBool,
}

impl<T: Held> Cache<T> {
    pub(super) fn new(blocks: usize, budget_bytes: u64) -> Self {
        let mut slots = Vec::new();
        slots.resize_with(blocks, || Slot { block: RwLock::new(None), used: AtomicBool::new(false) });
        Self { slots, budget_bytes, held_bytes: AtomicU64::new(0), hand: Mutex::new(0) }
    }

    /// Hands the block to `each`, expanded by `expand` if it is not here.
    ///
    /// `each` runs under a read lock, which costs less than counting the block's users; it must be
    /// short.
    pub(super) fn with<R, E>(
        &self,
        number: usize,
        expand: impl FnOnce() -> Result<T, E>,
        each: impl FnOnce(&Arc<T>) -> R,
    ) -> Result<R, E> {
        let slot = &self.slots[number];
        if let Some(block) = &*slot.block.read().unwrap_or_else(PoisonError::into_inner) {
            // Only a change is written: the line stays shared between threads.
            if !slot.used.load(Ordering::Relaxed) {
                slot.used.store(true, Ordering::Relaxed);
            }
            return Ok(each(block));
        }
        // Expanded without a lock: two threads may do the same work once, but neither waits.
        let block = Arc::new(expand()?);
        let bytes = block.bytes();
        let before = slot.block.write().unwrap_or_else(PoisonError::into_inner).replace(Arc::clone(&block));
        slot.used.store(true, Ordering::Relaxed);
        if before.is_none() {
            self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.shrink(number);
        }
        Ok(each(&block))
    }

    /// Memory of the blocks held \[bytes\].
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Empties slots, never `keep`'s, until the budget is kept.
    fn shrink(&self, keep: usize) {
        if self.held_bytes() <= self.budget_bytes {
            return;
        }
        let mut hand = self.hand.lock().unwrap_or_else(PoisonError::into_inner);
        // Twice round: the first time may only clear the marks.
        for _ in 0..2 * self.slots.len() {
            if self.held_bytes() <= self.budget_bytes {
                return;
            }
            let number = *hand;
            *hand = (number + 1) % self.slots.len();
            let slot = &self.slots[number];
            if number == keep || slot.used.swap(false, Ordering::Relaxed) {
                continue;
            }
            if let Some(block) = slot.block.write().unwrap_or_else(PoisonError::into_inner).take() {
                self.held_bytes.fetch_sub(block.bytes(), Ordering::Relaxed);
            }
        }
    }
}
