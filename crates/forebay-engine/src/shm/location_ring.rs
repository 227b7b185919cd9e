//! Locations of the samples of the next steps, from the roots of a node to all its planners.
//!
//! A ring of steps in shared memory, each with one location per (local rank, slot). Its rules are
//! those of the staging ring (`block_state.rs`), and its words are also positions:
//!
//! 1. A root locates the samples of its own steps (step mod roots = its number), writes their
//!    locations, and publishes a position (`found`) past them:
//!    [`publish_position`](crate::shm::block_state::publish_position).
//! 2. A planner reads the locations of a step only when each root is past it
//!    ([`is_behind`](crate::shm::block_state::is_behind)). After reading all of them it publishes a
//!    position (`taken`).
//! 3. A root overwrites a step only when the planners of all remaining processes are past it.
//!
//! A root that moves to another process continues at its `found`: it writes the same values again
//! for a step that was not published. `tests/loom_locations.rs` checks all interleavings.

use forebay_host::sync::atomic::{AtomicU64, Ordering};
use forebay_plan::config::LOCATION_WORDS as WORDS;
use forebay_types::{Extent, SampleLocation, ShardId};

/// In place of an offset: the root could not locate the sample; the planner uses the index.
const UNKNOWN: u64 = u64::MAX;

/// The ring; see the module header.
#[derive(Clone, Copy, Debug)]
pub struct LocationRing<'a> {
    words: &'a [AtomicU64],
    steps: u64,
    step_needs: u64,
}

impl<'a> LocationRing<'a> {
    /// Number of words of a ring of `steps` steps of `step_needs` samples each.
    #[must_use]
    pub const fn words(steps: u64, step_needs: u64) -> usize {
        steps as usize * step_needs as usize * WORDS
    }

    /// A ring in `words`, of which there must be [`LocationRing::words`].
    #[must_use]
    pub fn new(words: &'a [AtomicU64], steps: u64, step_needs: u64) -> Self {
        assert_eq!(words.len(), Self::words(steps, step_needs), "words of a ring of locations");
        Self { words, steps, step_needs }
    }

    /// Steps that the ring holds.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The step whose locations are lost when those of `step` are written, in a session that began
    /// at `start`.
    #[must_use]
    pub fn overwrites(&self, step: u64, start: u64) -> Option<u64> {
        step.checked_sub(self.steps).filter(|lost| *lost >= start)
    }

    /// Writes the location of sample `number` of a step; `None` where it is not known.
    pub fn put(&self, step: u64, number: u64, location: Option<SampleLocation>) {
        let words = self.at(step, number);
        let Some(location) = location else { return words[1].store(UNKNOWN, Ordering::Relaxed) };
        let Extent { shard, offset, length } = location.extent;
        words[0].store(u64::from(shard.0) << 32 | u64::from(location.head_bytes), Ordering::Relaxed);
        words[1].store(offset, Ordering::Relaxed);
        words[2].store(length, Ordering::Relaxed);
        words[3].store(location.guard, Ordering::Relaxed);
    }

    /// The location of sample `number` of a step.
    #[must_use]
    pub fn get(&self, step: u64, number: u64) -> Option<SampleLocation> {
        let [shard_and_head, offset, length, guard] =
            std::array::from_fn(|word| self.at(step, number)[word].load(Ordering::Relaxed));
        (offset != UNKNOWN).then_some(SampleLocation {
            extent: Extent { shard: ShardId((shard_and_head >> 32) as u32), offset, length },
            head_bytes: shard_and_head as u32,
            guard,
        })
    }

    fn at(&self, step: u64, number: u64) -> &'a [AtomicU64] {
        assert!(number < self.step_needs, "sample {number} of a step of {}", self.step_needs);
        let first = ((step % self.steps) * self.step_needs + number) as usize * WORDS;
        &self.words[first..first + WORDS]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_read_back_until_its_words_are_reused() {
        let words: Vec<AtomicU64> = (0..LocationRing::words(3, 2)).map(|_| AtomicU64::new(0)).collect();
        let ring = LocationRing::new(&words, 3, 2);
        let location = |offset| SampleLocation {
            extent: Extent { shard: ShardId(7), offset, length: 3089 },
            head_bytes: 16,
            guard: offset / 4096,
        };
        for step in 10..13 {
            for number in 0..2 {
                ring.put(step, number, Some(location(step * 100 + number)));
            }
        }
        ring.put(11, 1, None);
        assert_eq!(ring.get(10, 1), Some(location(1001)));
        assert_eq!(ring.get(11, 0), Some(location(1100)));
        assert_eq!(ring.get(11, 1), None);
        assert_eq!((ring.overwrites(12, 10), ring.overwrites(13, 10)), (None, Some(10)));
        ring.put(13, 1, Some(location(5)));
        assert_eq!(ring.get(13, 1), Some(location(5)));
    }
}
