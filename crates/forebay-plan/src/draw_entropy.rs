//! How random the draws of the order `opportunistic` are, and which windows make them random
//! enough.
//!
//! Each sample of a step is drawn from its class on its node: the resident samples that are left,
//! or those left in the window. These are its candidates. The paper (Zhu et al.) gives no formula;
//! these estimates are Forebay's own:
//!
//! 1. **Order entropy** H = \[Σ log (candidates of a draw) + Σ log (g! / Π h!)\] / log N!. The
//!    first sum is log R! for R resident samples of a node, and log K! for a window of K samples.
//!    The second one is over the steps and the two classes: g samples of a step are of a class, h
//!    of them drawn by one node. Which of the nodes draws first makes no other step, so it is
//!    counted as free, as in `local-shuffle`. On one node the second sum is 0.
//! 2. **Cross-entropy** = mean log (samples left / candidates): what a draw lacks to one of a full
//!    shuffle \[nats\]. As the samples left are N, N − 1, ..., 1, it is (1 − H)·log N! / N.
//!
//! With `drop`, which leaves samples out, N counts the draws, and log N! is that of as many draws
//! from all samples.
//!
//! Not counted: which units share a window. Windows are taken as w units of the mean size, and g as
//! even over the steps; where nodes differ in phase, that understates H.
//!
//! H rises with w: a longer window replaces parts of shorter ones. So the smallest window for a
//! bound is found by halving.

use serde::{Deserialize, Serialize};

use crate::ln_factorial::ln_factorial;
use crate::opportunistic::{NodePart, Opportunistic, streamed_before};

/// How random the draws of an order are; see the module header.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawEntropy {
    /// H: 1 for a full shuffle, 0 for a fixed order.
    pub order_entropy: f64,
    /// Cross-entropy of a draw \[nats\]: 0 for a full shuffle.
    pub cross_entropy: f64,
}

/// No window is large enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OutOfReach {
    /// H of the longest window that is allowed.
    pub(crate) reached: f64,
    /// H of one window over all streamed units.
    pub(crate) highest: f64,
}

impl DrawEntropy {
    /// Of windows of `window` units, at `global_batch` samples per step.
    pub(crate) fn of(parts: &Opportunistic, global_batch: u64, window: u64) -> Self {
        let all = parts.shares().samples();
        let draws: u64 = parts.nodes().iter().map(|part| part.samples).sum();
        let full = ln_factorial(all) - ln_factorial(all - draws);
        if full <= 0.0 {
            return Self { order_entropy: 1.0, cross_entropy: 0.0 };
        }
        let rank_batch = global_batch / parts.shares().ranks();
        let of_node = |part: &NodePart| {
            let streamed = part.streamed();
            let candidates = ln_factorial(part.resident) + ln_windows(parts, streamed, window);
            candidates - ln_step_orders(part.samples, streamed, rank_batch * part.ranks)
        };
        let streamed = parts.nodes().iter().map(NodePart::streamed).sum();
        let found =
            parts.nodes().iter().map(of_node).sum::<f64>() + ln_step_orders(draws, streamed, global_batch);
        let order_entropy = (found / full).clamp(0.0, 1.0);
        Self { order_entropy, cross_entropy: (1.0 - order_entropy) * full / draws as f64 }
    }

    /// The smallest window of at most `most` units with which H is `least`.
    pub(crate) fn smallest_window(
        parts: &Opportunistic,
        global_batch: u64,
        least: f64,
        most: u64,
    ) -> Result<u64, OutOfReach> {
        let reaches = |window| Self::of(parts, global_batch, window).order_entropy;
        let units = (parts.streamed_units().len() as u64).max(1);
        let most = most.clamp(1, units);
        if reaches(most) < least {
            return Err(OutOfReach { reached: reaches(most), highest: reaches(units) });
        }
        let (mut low, mut high) = (1, most);
        while low < high {
            let middle = low + (high - low) / 2;
            if reaches(middle) < least {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

/// Samples of a window of `window` units, of a slice of `streamed` samples.
pub(crate) fn window_samples(parts: &Opportunistic, streamed: u64, window: u64) -> u64 {
    ((window as f64 * parts.mean_unit()).round() as u64).clamp(1, streamed.max(1))
}

/// Σ log K! over the windows of a slice.
fn ln_windows(parts: &Opportunistic, streamed: u64, window: u64) -> f64 {
    let length = window_samples(parts, streamed, window);
    (streamed / length) as f64 * ln_factorial(length) + ln_factorial(streamed % length)
}

/// Σ log g! over the steps of a sequence of `samples`, of which `streamed` are streamed, and over
/// both classes, where a step takes `batch`.
fn ln_step_orders(samples: u64, streamed: u64, batch: u64) -> f64 {
    if samples == 0 {
        return 0.0;
    }
    let steps = samples / batch;
    let in_steps = streamed_before(streamed, samples, steps * batch);
    let last = (samples - steps * batch, streamed - in_steps);
    let of_last = ln_factorial(last.1) + ln_factorial(last.0 - last.1);
    if steps == 0 {
        return of_last;
    }
    let (each, more) = (in_steps / steps, in_steps % steps);
    let of_step = |each: u64| ln_factorial(each) + ln_factorial(batch.saturating_sub(each));
    (steps - more) as f64 * of_step(each) + more as f64 * of_step(each + 1) + of_last
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use forebay_types::{Rank, SampleId};

    use super::*;
    use crate::node_shares::{NodeShares, ShareUnit};
    use crate::opportunistic::{Entry, Finder};

    /// Nodes with one rank each that take the same number of samples, in units of 3.
    fn parts(samples: u64, nodes: u32, window: u64, resident: impl Fn(usize) -> bool) -> Opportunistic {
        let unit = |first| ShareUnit { first_sample: SampleId(first), bytes: 3 };
        let units: Vec<ShareUnit> = (0..samples).step_by(3).map(unit).collect();
        let ranks: Vec<Vec<Rank>> = (0..nodes).map(|rank| vec![Rank(rank)]).collect();
        let shares = Arc::new(NodeShares::new(samples, &units, &ranks, 4));
        Opportunistic::new(1, window, shares, resident, |_| samples / u64::from(nodes))
    }

    #[test]
    fn on_one_node_the_candidates_are_those_of_each_draw() {
        for (samples, window, kept) in [(60, 2, 3), (90, 1, 2), (90, 30, 5), (120, 4, 40), (120, 3, 0)] {
            let parts = parts(samples, 1, window, |unit| unit % 5 < kept);
            let (stream, part) = (parts.stream(3), &parts.nodes()[0]);
            let mut finder = Finder::new(&parts, &stream, 0);
            let delivered: Vec<SampleId> = (0..samples).map(|position| finder.sample(position)).collect();
            let (mut found, mut cross) = (0.0, 0.0);
            for position in 0..samples {
                // All that this draw could be: what is not drawn yet of its class.
                let mut candidates: Vec<SampleId> = match part.entry(position) {
                    Entry::Resident(_) => {
                        (0..part.resident).map(|number| parts.resident_sample(0, number)).collect()
                    }
                    Entry::Streamed(entry) => {
                        let entries = parts.window_at(&stream, 0, entry).entries;
                        entries.map(|entry| parts.streamed_sample(&stream, 0, entry)).collect()
                    }
                };
                candidates.retain(|sample| !delivered[..position as usize].contains(sample));
                assert!(candidates.contains(&delivered[position as usize]));
                found += (candidates.len() as f64).ln();
                cross += ((samples - position) as f64 / candidates.len() as f64).ln() / samples as f64;
            }
            let entropy = DrawEntropy::of(&parts, 4, window);
            let expected = found / ln_factorial(samples);
            assert!((entropy.order_entropy - expected).abs() < 1e-9, "{samples} {window}: {entropy:?}");
            assert!((entropy.cross_entropy - cross).abs() < 1e-9, "{samples} {window}: {entropy:?}");
        }
    }

    /// All sequences of `items`.
    fn sequences(items: &[u64]) -> Vec<Vec<u64>> {
        if items.is_empty() {
            return vec![vec![]];
        }
        let first = |place: usize| {
            let mut rest = items.to_vec();
            let item = rest.remove(place);
            sequences(&rest).into_iter().map(move |mut tail| {
                tail.insert(0, item);
                tail
            })
        };
        (0..items.len()).flat_map(first).collect()
    }

    #[test]
    fn on_several_nodes_steps_are_counted_as_sets() {
        // Two nodes keep 6 samples each and draw 2 of them per step.
        let parts = parts(12, 2, 1, |_| true);
        assert_eq!(parts.nodes().iter().map(|part| part.resident).collect::<Vec<_>>(), [6, 6]);
        let of_node = sequences(&[0, 1, 2, 3, 4, 5]);
        let sets = |sequence: &[u64], first: u64| {
            let mut steps: Vec<Vec<u64>> =
                sequence.chunks(2).map(|step| step.iter().map(|item| item + first).collect()).collect();
            for step in &mut steps {
                step.sort_unstable();
            }
            steps
        };
        let of_nodes =
            [0, 6].map(|first| of_node.iter().map(|one| sets(one, first)).collect::<HashSet<_>>().len());
        // Each of the 3 steps has 4! sequences of its own.
        let steps = (of_nodes[0] * of_nodes[1]) as f64;
        let expected = (steps.ln() + 3.0 * 24_f64.ln()) / ln_factorial(12);
        let found = DrawEntropy::of(&parts, 4, 1);
        assert!((found.order_entropy - expected).abs() < 1e-9, "{found:?}, {expected}");
    }

    #[test]
    fn longer_windows_are_more_random_and_the_smallest_is_found() {
        let parts = parts(3000, 2, 1, |unit| unit % 2 == 0);
        let entropies: Vec<f64> =
            (1..500).map(|window| DrawEntropy::of(&parts, 20, window).order_entropy).collect();
        assert!(entropies.is_sorted(), "{entropies:?}");
        for least in [0.0, 0.6, 0.7, 0.8] {
            let smallest = (1..).zip(&entropies).find(|(_, entropy)| **entropy >= least).unwrap().0;
            assert_eq!(DrawEntropy::smallest_window(&parts, 20, least, u64::MAX), Ok(smallest));
            let refused = DrawEntropy::smallest_window(&parts, 20, least, smallest - 1);
            assert_eq!(refused.is_err(), smallest > 1, "{least}");
        }
        let refused = DrawEntropy::smallest_window(&parts, 20, 0.99, 7).unwrap_err();
        assert_eq!((refused.reached, refused.highest), (entropies[6], entropies[498]));
    }
}
