//! How well an order shuffles, as numbers; a third one, the epochs that groups are good for, is in
//! `convergence`.
//!
//! 1. **Order entropy** relative to a full shuffle: H = \[log n! + (n/w)·(log (w·S)! − log w!)\] /
//!    log N!, about log(w·S) / log N. The number of sequences that the order can produce, on a
//!    logarithmic scale. This estimate is Forebay's own.
//! 2. **Same-group pairs**: the chance that two samples of one global batch come from the same
//!    group, P = \[L·b·(b−1) / (G·(G−1))\]·(S−1) / (w·S−1) with b = G/L. This is what hurts where
//!    files are sorted by class; more lanes and wider windows help equally. Measured
//!    (`tests/order_quality.rs`) it is up to 15 % lower with w ≥ 4, because window edges fall
//!    inside groups and batches, a third lower with w = 1, and up to 30 % higher where a lane has
//!    only three windows, because its first and last are cut. Where there are fewer windows than
//!    lanes, W < L, pairs of two lanes have the same window with a chance of (L/W−1) / (L−1).
//!
//! Where the order `local-shuffle` deals the samples of K steps together, each step takes g of a
//! node that has 1/W of the ranks, instead of any. Of the (K·G)! / (G!)^K ways to cut a pool into
//! steps, the product of (K·g)! / (g!)^K over the nodes is left. The logarithm of the rest, for
//! each pool, is missing in H. A group is a unit of the nodes' shares (`node_shares`), and a node a
//! lane of them: P = \[Σ g·(g−1) / (G·(G−1))\]·(S−1) / (N/W−1).
//!
//! In the order `opportunistic`, H is that of `draw_entropy`. A group is a unit; g samples of a
//! step are drawn from M candidates of their class on their node, resident ones or a window:
//! P = \[Σ g·(g−1) / (G·(G−1))\]·(S−1) / (M−1).
//!
//! Letters: N samples, S samples per group, n = ⌈N/S⌉ groups, w groups per window, L lanes, G
//! global batch.

use serde::{Deserialize, Serialize};

use crate::ln_factorial::ln_factorial;
use crate::nodes::shares::NodeShares;
use crate::order::draw_entropy::{DrawEntropy, window_samples};
use crate::order::opportunistic::Opportunistic;

/// The shuffle quality of an order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Order entropy relative to a full shuffle: 1 for that, 0 for a fixed order; `None` where the
    /// order is given.
    pub order_entropy: Option<f64>,
    /// Chance that two samples of a global batch come from the same group; `None` where nothing is
    /// grouped.
    pub same_group_pairs: Option<f64>,
    /// The same chance in a full shuffle of the same groups; `None` where nothing is grouped.
    pub full_shuffle_same_group_pairs: Option<f64>,
}

impl Quality {
    /// An order that is a full shuffle.
    pub(crate) const SHUFFLE: Self =
        Self { order_entropy: Some(1.0), same_group_pairs: None, full_shuffle_same_group_pairs: None };
    /// An order that is the same in every epoch.
    pub(crate) const FIXED: Self = Self { order_entropy: Some(0.0), ..Self::SHUFFLE };
    /// An order that nothing is known about.
    pub(crate) const UNKNOWN: Self = Self { order_entropy: None, ..Self::SHUFFLE };

    /// Of N `samples` in groups of S = `group`, windows of w = `window` groups, L = `lanes` and a
    /// global batch of G = `global_batch`.
    pub(crate) fn of_groups(samples: u64, group: u64, window: u64, lanes: u64, global_batch: u64) -> Self {
        Self {
            order_entropy: Some(order_entropy(samples, group, window)),
            same_group_pairs: Some(same_group_pairs(samples, group, window, lanes, global_batch)),
            full_shuffle_same_group_pairs: Some(pair_chance(group.min(samples), samples)),
        }
    }

    /// Of `local-shuffle` with pools of K = `steps` steps and batches of `batch`.
    pub(crate) fn of_pools(shares: &NodeShares, batch: u64, steps: u64) -> Self {
        let samples = shares.samples();
        let nodes: Vec<u64> = shares.nodes().map(|ranks| ranks.len() as u64).collect();
        let unit = samples.div_ceil(shares.units() as u64);
        let global_batch = shares.ranks() * batch;
        let same_node: f64 = nodes
            .iter()
            .zip(0..)
            .map(|(ranks, node)| {
                let part = (ranks * batch) as f64;
                part * (part - 1.0) * pair_chance(unit, shares.held_samples(node))
            })
            .sum();
        let pairs = global_batch as f64 * (global_batch as f64 - 1.0);
        Self {
            order_entropy: Some(pool_entropy(samples, batch, &nodes, steps)),
            same_group_pairs: Some(if global_batch < 2 { 0.0 } else { same_node / pairs }),
            full_shuffle_same_group_pairs: Some(pair_chance(unit, samples)),
        }
    }

    /// Of `opportunistic`, at `global_batch` samples per step.
    pub(crate) fn of_draws(parts: &Opportunistic, global_batch: u64) -> Self {
        let shares = parts.shares();
        let (samples, window) = (shares.samples(), parts.window());
        let unit = samples.div_ceil(shares.units() as u64);
        let rank_batch = global_batch / shares.ranks();
        let mut same_class = 0.0;
        for part in parts.nodes().iter().filter(|part| part.samples > 0) {
            let streamed = part.streamed();
            for (of_class, candidates) in
                [(part.resident, part.resident), (streamed, window_samples(parts, streamed, window))]
            {
                let drawn = (rank_batch * part.ranks) as f64 * of_class as f64 / part.samples as f64;
                same_class += (drawn * (drawn - 1.0)).max(0.0) * pair_chance(unit, candidates);
            }
        }
        let pairs = global_batch as f64 * (global_batch as f64 - 1.0);
        Self {
            order_entropy: Some(DrawEntropy::of(parts, global_batch, window).order_entropy),
            same_group_pairs: Some(if global_batch < 2 { 0.0 } else { same_class / pairs }),
            full_shuffle_same_group_pairs: Some(pair_chance(unit, samples)),
        }
    }
}

/// The order entropy of pools; see the module header.
fn pool_entropy(samples: u64, batch: u64, nodes: &[u64], steps: u64) -> f64 {
    let ways = |each: u64| ln_factorial(steps * each) - steps as f64 * ln_factorial(each);
    let all: u64 = nodes.iter().sum::<u64>() * batch;
    if samples < 2 || all == 0 {
        return 1.0;
    }
    let lost = ways(all) - nodes.iter().map(|ranks| ways(ranks * batch)).sum::<f64>();
    let pools = samples as f64 / (steps * all) as f64;
    (1.0 - pools * lost / ln_factorial(samples)).clamp(0.0, 1.0)
}

/// H of the module header.
fn order_entropy(samples: u64, group: u64, window: u64) -> f64 {
    if samples < 2 {
        return 1.0;
    }
    let group = group.min(samples);
    let groups = samples.div_ceil(group);
    let window = window.min(groups);
    let inside = ln_factorial((window * group).min(samples)) - ln_factorial(window);
    let windows = groups as f64 / window as f64;
    ((ln_factorial(groups) + windows * inside) / ln_factorial(samples)).min(1.0)
}

/// P of the module header.
fn same_group_pairs(samples: u64, group: u64, window: u64, lanes: u64, global_batch: u64) -> f64 {
    if global_batch < 2 {
        return 0.0;
    }
    let (batch, lanes) = (global_batch as f64, lanes as f64);
    let part = batch / lanes;
    let same_lane = lanes * part * (part - 1.0) / (batch * (batch - 1.0));
    let window = window.saturating_mul(group).min(samples);
    let windows = samples.div_ceil(window.max(1)).max(1) as f64;
    let shared = if lanes > windows { (lanes / windows - 1.0) / (lanes - 1.0) } else { 0.0 };
    (same_lane + (1.0 - same_lane) * shared) * pair_chance(group.min(samples), window)
}

/// Chance that two of `total` shuffled samples come from the same group of `group`.
fn pair_chance(group: u64, total: u64) -> f64 {
    if total < 2 { 0.0 } else { ((group - 1) as f64 / (total - 1) as f64).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_entropy_has_the_published_values() {
        for (samples, group, window, expected) in [
            (1_281_167, 256, 4, 0.456),
            (1_281_167, 1024, 8, 0.614),
            (50_000, 512, 4, 0.678),
            (50_000_000, 1240, 8, 0.491),
        ] {
            let found = order_entropy(samples, group, window);
            assert!((found - expected).abs() < 0.001, "N {samples}, S {group}, w {window}: {found}");
        }
    }

    #[test]
    fn order_entropy_of_groups_of_one_is_that_of_a_full_shuffle() {
        for (samples, window) in [(10, 1), (1000, 4), (1_000_000, 8), (3, 100), (1, 1)] {
            assert!((order_entropy(samples, 1, window) - 1.0).abs() < 1e-9, "{samples} {window}");
        }
        assert!(
            (order_entropy(1000, 5000, 9) - 1.0).abs() < 1e-9,
            "one group in one window is shuffled as a whole"
        );
    }

    #[test]
    fn same_group_pairs_have_the_published_values() {
        for (lanes, window, expected) in [(4, 4, 0.0591), (4, 1, 0.238), (1, 4, 0.248)] {
            let found = same_group_pairs(20_000, 100, window, lanes, 64);
            assert!((found - expected).abs() < 0.0005, "L {lanes}, w {window}: {found}");
        }
        let one_group = same_group_pairs(1000, 5000, 4, 4, 64);
        assert!((one_group - 1.0).abs() < f64::EPSILON, "all samples are in the one group: {one_group}");
        let quality = Quality::of_groups(1000, 250, 4, 4, 64);
        assert_eq!(quality.same_group_pairs, quality.full_shuffle_same_group_pairs, "one window");
        let quality = Quality::of_groups(20_000, 100, 4, 4, 64);
        assert!((quality.full_shuffle_same_group_pairs.unwrap() - 0.005).abs() < 0.0001);
    }
}
