//! The number of epochs for which a group order provably does not slow down convergence, and group
//! sizes that suffice for more.
//!
//! Meng et al., "Convergence analysis of distributed stochastic gradient descent with shuffling",
//! as Lee et al. quote it (equation 1): shuffling inside subsets leaves the rate of convergence as
//! it is while epochs < N/n, with N samples in n subsets that do not overlap. Here each group is a
//! subset, so G = ⌈N/S⌉. This is conservative: the proof does not use that groups are permuted
//! in each epoch and that a window mixes several of them.
//!
//! Larger groups satisfy more epochs, as there are fewer of them. Groups of one sample, and one
//! window over everything, are a full shuffle; the condition says nothing about those, and none is
//! needed.

use serde::{Deserialize, Serialize};

use crate::order::group::{MIN_GROUPS, WINDOW_GROUPS};
use crate::order::{Order, OrderKind};

/// The condition epochs < N/n with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Convergence {
    /// Epochs of the training.
    pub epochs: u64,
    /// N, samples of the dataset.
    pub samples: u64,
    /// G, its groups.
    pub groups: u64,
    /// Samples per group and groups per window that satisfy the condition: the smallest such
    /// groups, in windows of as many samples as before or of 4 groups. `None` if the condition
    /// holds, or if fewer than 256 groups would be left, which are too few to shuffle.
    pub sufficient: Option<(u64, u64)>,
}

impl Convergence {
    /// Whether epochs < N/n.
    #[must_use]
    pub fn holds(&self) -> bool {
        u128::from(self.epochs) * u128::from(self.groups) < u128::from(self.samples)
    }

    /// The condition holds for fewer epochs than this: the least integer that is at least N/n.
    #[must_use]
    pub fn proven_epochs(&self) -> u64 {
        self.samples.div_ceil(self.groups)
    }

    /// The condition of an order for a training of `epochs`; `None` if no bound applies: for a full
    /// shuffle, for orders that do not shuffle, and for mixtures. Suggested groups are multiples of
    /// `unit_samples`, which are decoded together.
    #[must_use]
    pub fn of(order: &Order, epochs: u64, unit_samples: u64) -> Option<Self> {
        let shape = order.shape().filter(|_| order.mixture().is_none())?;
        let OrderKind::Group { samples: group, window } = order.kind() else { return None };
        let is_full_shuffle = group == 1 || (shape.lanes == 1 && shape.window >= shape.samples);
        if is_full_shuffle {
            return None;
        }
        let found = Self { epochs, samples: shape.samples, groups: shape.groups(), sufficient: None };
        let sufficient =
            if found.holds() { None } else { found.smallest_sufficient_group(group, window, unit_samples) };
        Some(Self { sufficient, ..found })
    }

    /// The smallest group for which the condition holds, and a window for it.
    fn smallest_sufficient_group(&self, group: u64, window: u64, unit_samples: u64) -> Option<(u64, u64)> {
        // G < N/epochs.
        let max_groups = (self.samples - 1) / self.epochs;
        if max_groups < MIN_GROUPS {
            return None;
        }
        let samples = self.samples.div_ceil(max_groups).next_multiple_of(unit_samples.max(1));
        let window = (group.saturating_mul(window) / samples).max(window.min(WINDOW_GROUPS));
        (self.samples.div_ceil(samples) >= MIN_GROUPS).then_some((samples, window))
    }
}
