//! How random the draws of the order `opportunistic` are, and which windows make them random
//! enough.
//!
//! Each sample of a step is drawn from its class on its node: the resident samples that are left,
//! or those left in the window. The paper (Zhu et al.) gives no formula; these estimates are
//! Forebay's own:
//!
//! 1. **Order entropy** H = \[Σ log (candidates of a draw) + Σ log (g! / Π h!)\] / log N!. The
//!    first sum is the logarithm of the number of sequences that the draws can make. It is log R!
//!    for R resident samples of a node. For streamed ones it is Σ log (K! / Π k!) over the
//!    sections, where turns take k samples each of the K of a section, and Σ log T! over the turns,
//!    of T samples: about log(w·S) − 1 per sample. The second sum is over the steps and the two
//!    classes: g samples of a step are of a class, h of them drawn by one node. Which of the nodes
//!    draws first makes no other step, so it is counted as free, as in `local-shuffle`. On one node
//!    the second sum is 0.
//! 2. **Cross-entropy** = mean log (samples left / candidates): what a draw lacks to one of a full
//!    shuffle \[nats\]. As the samples left are N, N − 1, ..., 1, it is (1 − H)·log N! / N.
//!
//! With `drop`, which leaves samples out, N counts the draws, and log N! is that of as many draws
//! from all samples.
//!
//! Not counted: which units share a window. Units are taken as all of the mean size, and g as even
//! over the steps; where nodes differ in phase, that understates H.
//!
//! H rises with w, but for roundings. So a smallest window for a bound is found by halving.

use serde::{Deserialize, Serialize};

use crate::ln_factorial::ln_factorial;
use crate::order::opportunistic::{NodePart, Opportunistic, streamed_before};
use crate::stream::sections::Sections;

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
            let candidates = ln_factorial(part.resident) + ln_draws(parts, streamed, window);
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

/// Logarithm of the number of sequences of a slice of `streamed` samples.
fn ln_draws(parts: &Opportunistic, streamed: u64, window: u64) -> f64 {
    if streamed == 0 {
        return 0.0;
    }
    let units = ((streamed as f64 / parts.mean_unit().max(1.0)).round() as u64).clamp(1, streamed);
    let sections = Sections::new(units, window, parts.turns(window));
    let edge = |section| share_end(streamed, units, sections.first_unit(section));
    let (mut found, mut from) = (0.0, 0);
    for section in 0..sections.count() {
        let length = edge(section + 1) - from;
        from += length;
        // Its turns take the one number of samples or the next one.
        let turns = sections.turns_of(section);
        let turns = turns.end - turns.start;
        let (each, more) = (length / turns, length % turns);
        found += ln_factorial(length) - (turns - more) as f64 * ln_factorial(each);
        found -= more as f64 * ln_factorial(each + 1);
    }
    let mut start = 0;
    for turn in 1..=sections.count() {
        let end = if turn == sections.count() { streamed } else { sections.turn_start(turn, edge) };
        found += ln_factorial(end - start);
        start = end;
    }
    found
}

/// Samples of the first `units` of `all` equal units that have `samples` together.
fn share_end(samples: u64, all: u64, units: u64) -> u64 {
    (u128::from(samples) * u128::from(units) / u128::from(all)) as u64
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
    use std::collections::{BTreeMap, HashSet};
    use std::sync::Arc;

    use forebay_types::{Rank, SampleId};

    use super::*;
    use crate::nodes::shares::{NodeShares, ShareUnit};
    use crate::order::opportunistic::Finder;
    use crate::permutation::{Key, Permutation, Purpose, shuffle};

    /// Nodes with one rank each that take the same number of samples, in units of 3.
    fn parts(samples: u64, nodes: u32, window: u64, resident: impl Fn(usize) -> bool) -> Opportunistic {
        let unit = |first| ShareUnit { first_sample: SampleId(first), bytes: 3 };
        let units: Vec<ShareUnit> = (0..samples).step_by(3).map(unit).collect();
        let ranks: Vec<Vec<Rank>> = (0..nodes).map(|rank| vec![Rank(rank)]).collect();
        let shares = Arc::new(NodeShares::new(samples, &units, &ranks, 4));
        Opportunistic::new(1, window, 1, shares, resident, |_| samples / u64::from(nodes))
    }

    #[test]
    fn on_one_node_the_draws_make_as_many_sequences_as_counted() {
        for (samples, window, kept) in [(60, 2, 3), (90, 1, 2), (90, 30, 5), (1200, 4, 40), (3000, 50, 0)] {
            let parts = parts(samples, 1, window, |unit| unit % 5 < kept);
            let (stream, part) = (parts.stream(3), &parts.nodes()[0]);
            let (slice, mut finder) = (parts.slice(&stream, 0), Finder::new(&parts, &stream, 0));
            // Samples by section and turn, as they come.
            let mut cells: BTreeMap<(u64, u64), u64> = BTreeMap::new();
            for entry in 0..part.streamed() {
                let (section, _) = finder.streamed(entry);
                *cells.entry((section, slice.turn_at(entry))).or_default() += 1;
            }
            let of = |pick: fn(&(u64, u64)) -> u64| {
                let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
                for (cell, count) in &cells {
                    *sums.entry(pick(cell)).or_default() += count;
                }
                sums.into_values().map(ln_factorial).sum::<f64>()
            };
            let cut = of(|cell| cell.0) - cells.values().copied().map(ln_factorial).sum::<f64>();
            let found = ln_factorial(part.resident) + cut + of(|cell| cell.1);
            let entropy = DrawEntropy::of(&parts, 4, window);
            let (full, expected) = (ln_factorial(samples), found / ln_factorial(samples));
            assert!(
                (entropy.order_entropy - expected).abs() < 1e-9,
                "{samples} {window}: {entropy:?}, {expected}"
            );
            let cross = (1.0 - expected) * full / samples as f64;
            assert!((entropy.cross_entropy - cross).abs() < 1e-9, "{samples} {window}: {entropy:?}");
        }
    }

    #[test]
    fn all_sequences_that_are_counted_come() {
        // Sections of one unit of 3 samples, in windows of 2: the keys of the permutations differ.
        let seeds = 0..4000_u64;
        let sequences: HashSet<Vec<u64>> = seeds
            .map(|seed| {
                let sections = Sections::new(2, 2, 2);
                let edge = |section: u64| 3 * section.min(2);
                let shuffles = [0, 1]
                    .map(|section| Permutation::new(Key::new(seed, Purpose::StreamSection).with(section), 3));
                let mut sequence = Vec::new();
                for turn in 0..sections.count() {
                    let mut drawn: Vec<u64> = sections
                        .drawn_in(turn)
                        .flat_map(|section| {
                            let part = sections.drawn_before(section, 3, turn)
                                ..sections.drawn_before(section, 3, turn + 1);
                            let shuffle = &shuffles[section as usize];
                            part.map(move |place| edge(section) + shuffle.at(place)).collect::<Vec<u64>>()
                        })
                        .collect();
                    shuffle(Key::new(seed, Purpose::StreamTurn).with(turn), &mut drawn);
                    sequence.extend(drawn);
                }
                sequence
            })
            .collect();
        // Turn 0 takes section 0 and 1 of the 3 samples of section 1, which can be any; turn 1 the
        // rest.
        assert_eq!(sequences.len(), 3 * 24 * 2);
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
