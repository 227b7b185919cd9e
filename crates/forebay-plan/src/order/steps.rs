//! How the samples of an epoch are cut into steps, and each step into the parts of ranks or lanes.
//!
//! How it works, in order:
//! 1. The first steps are whole: each takes G samples, the same number of each part.
//! 2. With `partial`, what no whole step takes is shared out over one or two steps, the tail:
//!    - R = N mod G samples that suffice for all ranks (R ≥ W) are one step.
//!    - Fewer (0 < R < W) would leave ranks without a sample. So the tail is the last whole step
//!      and the rest, G + R samples in two steps.
//!    - With B = 1 two steps would need 2·W samples and have fewer. So the tail is one step of
//!      G + R samples: R ranks take two ([`Steps::largest_batch`]).
//! 3. Part p of P parts, ranks or lanes in their order, takes ⌊(p+1)·N/P⌋ − ⌊p·N/P⌋ samples of an
//!    epoch. In a tail of two steps, the first takes half of what the tail has for parts 0 to p,
//!    rounded down, less the same for parts 0 to p − 1.
//!
//! Promises, with `partial`: the steps have N samples in all; in each, the samples of ranks, and in
//! an epoch those of ranks and lanes, differ by at most one; no rank has an empty step. A rank has
//! as many samples in a step as its lanes together. The steps depend on W only where 0 < R < W.

use super::LastBatch;

/// The steps of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    /// N.
    samples: u64,
    /// W.
    ranks: u64,
    /// G.
    global_batch: u64,
    /// T.
    pub(crate) count: u64,
    /// Steps with G samples each; at most two others follow.
    pub(crate) whole: u64,
    /// Most samples of a rank in a step.
    pub(crate) largest_batch: u64,
}

impl Steps {
    /// For N samples and batches of `batch` on each of `ranks` ranks. There are no steps where N is
    /// too small for one.
    pub(crate) fn new(last: LastBatch, samples: u64, batch: u64, ranks: u64) -> Self {
        let global_batch = batch * ranks;
        let full = samples / global_batch;
        let rest = samples % global_batch;
        let (count, whole) = match last {
            LastBatch::Drop => (full, full),
            LastBatch::Fill | LastBatch::Carry if samples < global_batch => (0, 0),
            LastBatch::Fill | LastBatch::Carry => {
                (samples.div_ceil(global_batch), samples.div_ceil(global_batch))
            }
            LastBatch::Partial if samples < ranks => (0, 0),
            LastBatch::Partial if rest == 0 => (full, full),
            LastBatch::Partial if rest >= ranks => (full + 1, full),
            LastBatch::Partial if batch == 1 => (full, full - 1),
            LastBatch::Partial => (full + 1, full - 1),
        };
        let has_more = whole < count && batch == 1;
        Self { samples, ranks, global_batch, count, whole, largest_batch: batch + u64::from(has_more) }
    }

    /// `count` whole steps, those of a mixture.
    pub(crate) fn all_whole(self, count: u64) -> Self {
        Self { samples: count * self.global_batch, count, whole: count, ..self }
    }

    /// W.
    pub(crate) fn ranks(&self) -> u64 {
        self.ranks
    }

    /// Samples of an epoch that parts 0 to `part` − 1 of `parts` take before `step`.
    pub(crate) fn taken(&self, step: u64, part: u64, parts: u64) -> u64 {
        let in_whole = |steps: u64| part * (self.global_batch / parts) * steps;
        if step <= self.whole {
            return in_whole(step);
        }
        let all = (u128::from(part) * u128::from(self.samples) / u128::from(parts)) as u64;
        if step == self.count { all } else { in_whole(self.whole) + (all - in_whole(self.whole)) / 2 }
    }

    /// Samples of all ranks before `step`.
    pub(crate) fn start(&self, step: u64) -> u64 {
        self.taken(step, 1, 1)
    }

    /// Samples of one of `parts` parts before `step`.
    pub(crate) fn part_start(&self, step: u64, part: u64, parts: u64) -> u64 {
        self.taken(step, part + 1, parts) - self.taken(step, part, parts)
    }

    /// The step before which the ranks have taken `samples`, if there is one.
    pub(crate) fn starting_at(&self, samples: u64) -> Option<u64> {
        let near = (samples / self.global_batch).min(self.whole);
        (near..=self.count).find(|step| self.start(*step) == samples)
    }
}
