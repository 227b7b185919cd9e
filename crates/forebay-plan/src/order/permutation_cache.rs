//! What consecutive batches share: a shuffled table is made as a whole, and serves many of them.

use crate::order::group::{Sequence, Shape};
use crate::order::mixture::{Draws, Mixture, Sequences, WindowDraws};
use crate::permutation::Permutation;

/// The permutations of the last batch, for the next one of the same order.
///
/// A table takes 2 bytes per sample, at most 128 KiB for an epoch, or for the window of a lane.
#[derive(Debug, Default)]
pub struct PermutationCache {
    /// Whose they are.
    epoch: Option<u64>,
    /// Of an order that shuffles the epoch.
    shuffle: Option<Permutation>,
    /// Of an order that shuffles windows.
    sequence: Option<Sequence>,
    /// By place of the lane among those of the rank.
    windows: Vec<Option<Window>>,
    /// Of a mixture without lanes.
    draws: Option<Draws>,
    /// Of a mixture that shuffles windows.
    sequences: Option<Sequences>,
    /// With their lanes, by place.
    lane_draws: Vec<(u64, WindowDraws)>,
}

#[derive(Debug)]
struct Window {
    lane: u64,
    number: u64,
    permutation: Permutation,
}

impl PermutationCache {
    /// Forgets those of another epoch.
    fn begin(&mut self, epoch: u64) {
        if self.epoch != Some(epoch) {
            *self = Self { epoch: Some(epoch), ..Self::default() };
        }
    }

    /// The permutation of an epoch, which `make` makes.
    pub(super) fn shuffle(&mut self, epoch: u64, make: impl FnOnce() -> Permutation) -> &Permutation {
        self.begin(epoch);
        self.shuffle.get_or_insert_with(make)
    }

    /// The sequence and the windows of an epoch.
    pub(super) fn windows(&mut self, shape: &Shape, seed: u64, epoch: u64) -> (&Sequence, Windows<'_>) {
        self.begin(epoch);
        let sequence = self.sequence.get_or_insert_with(|| shape.sequence(seed, epoch));
        (sequence, Windows { kept: &mut self.windows, seed, epoch })
    }

    /// The draws of an epoch of a mixture without lanes, which `make` makes.
    pub(super) fn draws(&mut self, epoch: u64, make: impl FnOnce() -> Draws) -> &mut Draws {
        self.begin(epoch);
        self.draws.get_or_insert_with(make)
    }

    /// The sequences of an epoch of a mixture, and what its lanes draw.
    pub(super) fn lane_draws(
        &mut self,
        epoch: u64,
        mixture: &Mixture,
    ) -> (&mut Sequences, &mut Vec<(u64, WindowDraws)>) {
        self.begin(epoch);
        let sequences = self.sequences.get_or_insert_with(|| Sequences::new(mixture));
        (sequences, &mut self.lane_draws)
    }
}

/// The windows of one epoch.
pub(super) struct Windows<'a> {
    kept: &'a mut Vec<Option<Window>>,
    seed: u64,
    epoch: u64,
}

impl Windows<'_> {
    /// The permutation of window `number` of `lane`, which has `length` positions. `place` counts
    /// the lanes of a batch.
    pub(super) fn permutation(&mut self, place: usize, lane: u64, number: u64, length: u64) -> &Permutation {
        if self.kept.len() <= place {
            self.kept.resize_with(place + 1, || None);
        }
        let kept = &mut self.kept[place];
        if kept.as_ref().is_some_and(|kept| (kept.lane, kept.number) != (lane, number)) {
            *kept = None;
        }
        let make = || {
            let key = Shape::window_key(self.seed, self.epoch, lane, number);
            Window { lane, number, permutation: Permutation::new(key, length) }
        };
        &kept.get_or_insert_with(make).permutation
    }
}
