//! Allocates slots of the staging ring, each with the step after which it may be filled.
//!
//! Slots are allocated in pages, first in, first out. As a pure function, the ring does not know
//! whether space is free *now*; it computes when it will be. A slot may be filled after each rank
//! of the node has gathered all steps up to `after_step`, the last step that needs the bytes that
//! the slot overwrites. The same holds for the block's word: at most `capacity_blocks` slots are
//! alive.
//!
//! A block that cannot be staged without deadlock, because its slot is needed for a step before
//! `after_step` can end, gets no slot (`None`): it is read in place.

use std::collections::VecDeque;

/// Alignment of slots \[bytes\]: a page, which `O_DIRECT` needs.
const ALIGN: u64 = 4096;

/// A slot for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingSlot {
    /// First byte in the ring.
    pub offset: u64,
    /// Number of the block, counted from 0 since the ring was created.
    pub sequence: u64,
    /// The block may be filled after each rank has gathered all steps up to this one; `None`: at
    /// once.
    pub after_step: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    start: u64,
    end: u64,
    last_step: u64,
}

/// The ring, simulated.
#[derive(Clone, Debug)]
pub struct StagingRing {
    capacity_bytes: u64,
    capacity_blocks: u64,
    head: u64,
    sequence: u64,
    live: VecDeque<Live>,
    /// Largest last step of all released slots: each later slot waits for it, because the ring is
    /// first in, first out.
    given_up: Option<u64>,
}

impl StagingRing {
    /// An empty ring. A capacity of 0 places nothing.
    #[must_use]
    pub fn new(capacity_bytes: u64, capacity_blocks: u64) -> Self {
        Self {
            capacity_bytes: capacity_bytes / ALIGN * ALIGN,
            capacity_blocks,
            head: 0,
            sequence: 0,
            live: VecDeque::new(),
            given_up: None,
        }
    }

    /// Places a block of `bytes` bytes that is needed from `first_step` to `last_step` (inclusive).
    ///
    /// First steps must not decrease from call to call.
    pub fn place(&mut self, bytes: u64, first_step: u64, last_step: u64) -> Option<StagingSlot> {
        let length = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        if length > self.capacity_bytes || self.capacity_blocks == 0 {
            return None;
        }
        // A block never wraps around the end of the ring.
        let start = if self.head + length > self.capacity_bytes { 0 } else { self.head };
        let end = start + length;
        let skipped = (start != self.head).then_some((self.head, self.capacity_bytes));
        let overlaps = |live: &Live| {
            (live.start < end && start < live.end)
                || skipped.is_some_and(|(from, to)| live.start < to && from < live.end)
        };
        let by_words = (self.live.len() as u64 + 1).saturating_sub(self.capacity_blocks) as usize;
        let by_bytes = self.live.iter().rposition(overlaps).map_or(0, |last| last + 1);
        let victims = by_words.max(by_bytes);
        let after_step = self.live.range(..victims).map(|live| live.last_step).chain(self.given_up).max();
        if after_step.is_some_and(|step| step >= first_step) {
            return None;
        }
        self.live.drain(..victims);
        self.given_up = after_step;
        self.live.push_back(Live { start, end, last_step });
        self.head = end;
        self.sequence += 1;
        Some(StagingSlot { offset: start, sequence: self.sequence - 1, after_step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = ALIGN;

    #[test]
    fn the_ring_goes_round_and_tells_what_to_wait_for() {
        let mut staging = StagingRing::new(3 * PAGE, 10);
        let place =
            |staging: &mut StagingRing, pages: u64, first, last| staging.place(pages * PAGE, first, last);
        assert_eq!(
            place(&mut staging, 2, 0, 1),
            Some(StagingSlot { offset: 0, sequence: 0, after_step: None })
        );
        assert_eq!(
            place(&mut staging, 1, 1, 1),
            Some(StagingSlot { offset: 2 * PAGE, sequence: 1, after_step: None })
        );
        assert_eq!(
            place(&mut staging, 1, 2, 5),
            Some(StagingSlot { offset: 0, sequence: 2, after_step: Some(1) })
        );
        assert_eq!(place(&mut staging, 3, 3, 5), None, "would wait for step 5");
        assert_eq!(place(&mut staging, 3, 6, 6).map(|slot| slot.after_step), Some(Some(5)));
        assert_eq!(place(&mut staging, 4, 9, 9), None, "larger than the ring");
        assert_eq!(StagingRing::new(0, 0).place(1, 0, 0), None);
    }

    #[test]
    fn no_more_blocks_are_alive_than_there_are_words() {
        let mut staging = StagingRing::new(100 * PAGE, 2);
        assert_eq!(staging.place(1, 0, 0).unwrap().after_step, None);
        assert_eq!(staging.place(1, 1, 1).unwrap().after_step, None);
        assert_eq!(staging.place(1, 2, 2).unwrap().after_step, Some(0));
        assert_eq!(staging.place(1, 3, 3).unwrap().after_step, Some(1));
    }

    proptest! {
        #[test]
        fn bytes_are_overwritten_only_after_the_last_step_that_needs_them(
            capacity in 1_u64..12, words in 1_u64..12,
            requests in proptest::collection::vec((1_u64..6, 0_u64..3, 0_u64..6), 1..60),
        ) {
            let mut staging = StagingRing::new(capacity * PAGE, words);
            // By page and by word: the last step that needs it.
            let mut pages = vec![None::<u64>; capacity as usize];
            let mut held = vec![None::<u64>; words as usize];
            let mut step = 0;
            for (length, later, lasts) in requests {
                step += later;
                let Some(slot) = staging.place(length * PAGE, step, step + lasts) else { continue };
                let first = (slot.offset / PAGE) as usize;
                let word = (slot.sequence % words) as usize;
                for needed in pages[first..first + length as usize].iter().chain([&held[word]]).flatten() {
                    prop_assert!(slot.after_step.is_some_and(|after| after >= *needed));
                }
                // Never waits for a step that the slot itself must come before.
                prop_assert!(slot.after_step.is_none_or(|after| after < step));
                pages[first..first + length as usize].fill(Some(step + lasts));
                held[word] = Some(step + lasts);
            }
        }
    }
}
