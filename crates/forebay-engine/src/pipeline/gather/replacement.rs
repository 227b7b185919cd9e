//! Replacements of bad samples.
//!
//! The replacement of a sample that cannot be read or decoded is the nearest good one before it in
//! the order of the epoch: the previous slot, at slot 0 the last one of the previous rank, at rank
//! 0 the last one of the previous step. If there is none, it is the nearest one after it. A sample
//! that the rank knows as bad replaces no other. So each rank keeps its number of steps, and every
//! rank computes the same replacement; no communication is needed.

use forebay_types::{Rank, SampleId};

use crate::error::{Error, ErrorDetails};
use crate::pipeline::context::Context;

/// More consecutive failures than this indicate broken storage, not bad samples.
const MAX_CONSECUTIVE: usize = 64;

/// Whether an error is about one sample, so that another one may replace it.
pub(crate) fn is_of_sample(error: &Error) -> bool {
    matches!(error, Error::BadSample { .. } | Error::Format(..) | Error::Storage(..))
}

/// The candidates that may replace a sample, nearest first.
pub(crate) struct Replacements<'a> {
    context: &'a Context,
    epoch: u64,
    /// Step of the epoch, rank and slot of the last candidate.
    place: (u64, u32, usize),
    bad: (u64, u32, usize),
    backwards: bool,
    left: usize,
    loaded: Option<(u64, u32)>,
    ids: Vec<SampleId>,
    /// Why the sample is bad.
    reason: Error,
}

impl<'a> Replacements<'a> {
    /// For the sample in `slot` of this rank at an absolute step.
    pub(crate) fn new(context: &'a Context, step: u64, slot: usize, reason: Error) -> Self {
        let steps = context.order.steps_per_epoch();
        let bad = (step % steps, context.options.rank, slot);
        Self {
            context,
            epoch: step / steps,
            place: bad,
            bad,
            backwards: true,
            left: MAX_CONSECUTIVE - 1,
            loaded: None,
            ids: Vec::new(),
            reason,
        }
    }

    /// The error of the bad sample, which nothing can replace.
    pub(crate) fn none_left(&self) -> Error {
        let tried = MAX_CONSECUTIVE - 1 - self.left;
        let text = format!(
            "{}; of the {tried} samples next to it in the order, none can be read to stand in for it",
            self.reason
        );
        let hint = "loader.bad_samples() names them";
        match &self.reason {
            Error::Storage(details) => Error::Storage(details.reworded(text, hint)),
            Error::Format(details) => Error::Format(details.reworded(text, hint)),
            _ => Error::Format(ErrorDetails::new(text, Some(hint))),
        }
    }

    /// The samples of a rank at a step.
    fn load(&mut self, step: u64, rank: u32) -> usize {
        if self.loaded != Some((step, rank)) {
            let given = self.context.given.get(self.epoch);
            self.context.order.batch(self.epoch, step, Rank(rank), given.as_deref(), &mut self.ids);
            self.loaded = Some((step, rank));
        }
        self.ids.len()
    }

    /// The previous slot; `None` at the beginning of the epoch.
    fn before(&mut self, (step, rank, slot): (u64, u32, usize)) -> Option<(u64, u32, usize)> {
        if slot > 0 {
            return Some((step, rank, slot - 1));
        }
        let (mut step, mut rank) = (step, rank);
        loop {
            (step, rank) = match rank.checked_sub(1) {
                Some(rank) => (step, rank),
                None => (step.checked_sub(1)?, self.context.options.size - 1),
            };
            // A rank's part may be empty.
            if let Some(last) = self.load(step, rank).checked_sub(1) {
                return Some((step, rank, last));
            }
        }
    }

    /// The next slot; `None` at the end of the epoch.
    fn behind(&mut self, (step, rank, slot): (u64, u32, usize)) -> Option<(u64, u32, usize)> {
        let (mut step, mut rank, mut slot) = (step, rank, slot + 1);
        while slot >= self.load(step, rank) {
            slot = 0;
            (step, rank) =
                if rank + 1 < self.context.options.size { (step, rank + 1) } else { (step + 1, 0) };
            if step == self.context.order.steps_per_epoch() {
                return None;
            }
        }
        Some((step, rank, slot))
    }
}

impl Iterator for Replacements<'_> {
    type Item = SampleId;

    fn next(&mut self) -> Option<SampleId> {
        if self.left == 0 {
            return None;
        }
        if self.backwards {
            let before = self.before(self.place);
            self.backwards = before.is_some();
            self.place = before.unwrap_or(self.bad);
        }
        if !self.backwards {
            self.place = self.behind(self.place)?;
        }
        self.left -= 1;
        let (step, rank, slot) = self.place;
        self.load(step, rank);
        Some(self.ids[slot])
    }
}
