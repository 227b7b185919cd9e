//! Which samples the draws of a mixture are: passes over each source, in the order of the loader.
//!
//! - `sequential`: draw k of a source of n samples is its sample k mod n.
//! - `shuffle`: pass ⌊k/n⌋ is a permutation keyed by (seed, epoch, source, pass), and draw k is
//!   its value at k mod n.
//! - `group`: lane l of L has its own sequence of positions. It draws from its slice of each pass:
//!   [⌊(l·n + r)/L⌋, ⌊((l + 1)·n + r)/L⌋) of the permuted groups laid end to end, with
//!   r = a·pass mod L and the stride a of `tree`. So each pass has every sample once, and after L
//!   passes each lane has drawn n samples, also where n < L; before, it is a few samples apart from
//!   the others. The lane shuffles windows of its positions: what a window draws of
//!   a pass of a source is contiguous in the slice, and a permutation keyed by (seed, epoch,
//!   source, pass, lane, window) shuffles it.
//!
//! Samples of source i are counted on from those of the sources before it.

use std::ops::Range;

use forebay_types::SampleId;

use super::Mixture;
use super::tree::{Phases, stride};
use crate::order::group::Sequence;
use crate::permutation::{Key, Permutation, Purpose};

/// The draws of one epoch of `sequential` or `shuffle`, with the permutations that were used last.
#[derive(Clone, Debug)]
pub(crate) struct Draws {
    phases: Phases,
    /// Key of the epoch; `None` for `sequential`.
    key: Option<Key>,
    /// Number and permutation of a pass over each source.
    passes: Vec<Option<(u64, Permutation)>>,
}

impl Draws {
    pub(crate) fn new(mixture: &Mixture, seed: u64, epoch: u64, is_shuffled: bool) -> Self {
        let key = Key::new(seed, Purpose::MixtureSamples).with(epoch);
        Self {
            phases: mixture.tree.phases(0, 1),
            key: is_shuffled.then_some(key),
            passes: vec![None; mixture.sources().len()],
        }
    }

    /// The sample at a position of the epoch.
    pub(crate) fn sample(&mut self, mixture: &Mixture, position: u64) -> u64 {
        let (source, draw) = mixture.tree.draw(position, &self.phases);
        let samples = mixture.sources()[source].samples;
        let (pass, place) = (draw / samples, draw % samples);
        let Some(key) = self.key else { return mixture.firsts[source] + place };
        let known = &mut self.passes[source];
        let permutation = match known {
            Some((number, permutation)) if *number == pass => permutation,
            _ => {
                let key = key.with(source as u64).with(pass);
                &mut known.insert((pass, Permutation::new(key, samples))).1
            }
        };
        mixture.firsts[source] + permutation.at(place)
    }
}

/// A lane of `group` in one epoch.
#[derive(Clone, Debug)]
pub(crate) struct LaneDraws<'a> {
    mixture: &'a Mixture,
    lane: u64,
    lanes: u64,
    /// S, samples per group.
    group: u64,
    seed: u64,
    epoch: u64,
    phases: Phases,
}

/// The groups of the pass over each source that was used last.
#[derive(Clone, Debug)]
pub(crate) struct Sequences(Vec<Option<(u64, Sequence)>>);

impl Sequences {
    pub(crate) fn new(mixture: &Mixture) -> Self {
        Self(vec![None; mixture.sources().len()])
    }
}

/// For each source, what the window that was used last draws of a pass over it.
#[derive(Clone, Debug)]
pub(crate) struct WindowDraws(Vec<Option<(Part, Permutation)>>);

impl WindowDraws {
    pub(crate) fn new(mixture: &Mixture) -> Self {
        Self(vec![None; mixture.sources().len()])
    }
}

/// What a window draws of one pass over a source.
#[derive(Clone, Debug)]
struct Part {
    window: u64,
    pass: u64,
    draws: Range<u64>,
    /// Where they are in the groups of the pass, laid end to end.
    positions: Range<u64>,
    /// Key of the permutation of the positions.
    key: Key,
}

impl<'a> LaneDraws<'a> {
    pub(crate) fn new(
        mixture: &'a Mixture,
        (lane, lanes): (u64, u64),
        group: u64,
        seed: u64,
        epoch: u64,
    ) -> Self {
        let phases = mixture.tree.phases(lane, lanes);
        Self { mixture, lane, lanes, group, seed, epoch, phases }
    }

    /// The samples at some positions of the lane, which `window_at` says the windows of.
    pub(crate) fn samples(
        &self,
        positions: Range<u64>,
        window_at: impl Fn(u64) -> (u64, Range<u64>),
        sequences: &mut Sequences,
        known: &mut WindowDraws,
        out: &mut Vec<SampleId>,
    ) {
        out.extend(positions.map(|position| {
            let (window, positions) = window_at(position);
            let (source, draw) = self.mixture.tree.draw(position, &self.phases);
            let (part, permutation) = match &mut known.0[source] {
                Some(known) if known.0.window == window && known.0.draws.contains(&draw) => known,
                other => {
                    let part = self.part(source, draw, window, &self.draws(source, &positions));
                    let permutation = Permutation::new(part.key, part.draws.end - part.draws.start);
                    other.insert((part, permutation))
                }
            };
            let sequence = match &mut sequences.0[source] {
                Some((pass, sequence)) if *pass == part.pass => sequence,
                other => &mut other.insert((part.pass, self.sequence(source, part.pass))).1,
            };
            let place = part.positions.start + permutation.at(draw - part.draws.start);
            SampleId(self.mixture.firsts[source] + sequence.sample(place))
        }));
    }

    /// The samples of a window, in the order in which they are delivered.
    pub(crate) fn window_samples(&self, (window, positions): (u64, Range<u64>), out: &mut Vec<u64>) {
        let sources = 0..self.mixture.sources().len();
        let drawn: Vec<_> = sources.map(|source| self.source_samples(source, window, &positions)).collect();
        let mut drawn: Vec<_> = drawn.into_iter().map(Vec::into_iter).collect();
        out.clear();
        out.extend(positions.map(|position| {
            let (source, _) = self.mixture.tree.draw(position, &self.phases);
            drawn[source].next().expect("the counts of the tree are those of its draws")
        }));
    }

    /// The samples of a window that are of a source.
    fn source_samples(&self, source: usize, window: u64, positions: &Range<u64>) -> Vec<u64> {
        let draws = self.draws(source, positions);
        let first = self.mixture.firsts[source];
        let (mut found, mut of_part) = (Vec::new(), Vec::new());
        let mut draw = draws.start;
        while draw < draws.end {
            let part = self.part(source, draw, window, &draws);
            draw = part.draws.end;
            self.sequence(source, part.pass).window_samples(part.positions, part.key, &mut of_part);
            found.extend(of_part.iter().map(|sample| first + sample));
        }
        found
    }

    /// The draws from a source at some positions of the lane.
    fn draws(&self, source: usize, positions: &Range<u64>) -> Range<u64> {
        let count = |positions| self.mixture.tree.count(source, positions, &self.phases);
        count(positions.start)..count(positions.end)
    }

    /// The part of a window's draws from a source that holds a draw.
    fn part(&self, source: usize, draw: u64, window: u64, draws: &Range<u64>) -> Part {
        let pass = Pass::of(self.mixture.sources()[source].samples, (self.lane, self.lanes), draw);
        let end = pass.first_draw + (pass.slice.end - pass.slice.start);
        let draws = draws.start.max(pass.first_draw)..draws.end.min(end);
        let at = |draw: u64| pass.slice.start + (draw - pass.first_draw);
        let positions = at(draws.start)..at(draws.end);
        let key = self.key(Purpose::MixtureWindow, source, pass.number).with(self.lane).with(window);
        Part { window, pass: pass.number, draws, positions, key }
    }

    /// The groups of a pass over a source, laid end to end.
    fn sequence(&self, source: usize, pass: u64) -> Sequence {
        let samples = self.mixture.sources()[source].samples;
        Sequence::new(self.key(Purpose::MixtureGroups, source, pass), samples, self.group)
    }

    fn key(&self, purpose: Purpose, source: usize, pass: u64) -> Key {
        Key::new(self.seed, purpose).with(self.epoch).with(source as u64).with(pass)
    }
}

/// A pass of a lane over a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    number: u64,
    /// The part of the pass that the lane draws.
    slice: Range<u64>,
    /// The lane's draws from the source before this pass.
    first_draw: u64,
}

impl Pass {
    /// The part of the first pass that a lane draws.
    pub(super) fn slice(samples: u64, (lane, lanes): (u64, u64)) -> Range<u64> {
        edge(samples, lane, lanes, 0)..edge(samples, lane + 1, lanes, 0)
    }

    /// The pass of a draw of lane `lane` of `lanes` from a source of `samples` samples.
    fn of(samples: u64, (lane, lanes): (u64, u64), draw: u64) -> Self {
        // L passes give each lane n draws.
        let (rounds, draw) = (draw / samples, draw % samples);
        // The last of these passes that has no more than `draw` draws of the lane before it.
        let (mut low, mut high) = (0, lanes);
        while high - low > 1 {
            let middle = low.midpoint(high);
            if draws_before(samples, (lane, lanes), middle) <= draw { low = middle } else { high = middle }
        }
        Self {
            number: rounds * lanes + low,
            slice: edge(samples, lane, lanes, low)..edge(samples, lane + 1, lanes, low),
            first_draw: rounds * samples + draws_before(samples, (lane, lanes), low),
        }
    }
}

/// ⌊(l·n + r)/L⌋.
fn edge(samples: u64, lane: u64, lanes: u64, pass: u64) -> u64 {
    let lanes_wide = u128::from(lanes);
    let shift = u128::from(pass) * u128::from(stride(lanes)) % lanes_wide;
    ((u128::from(lane) * u128::from(samples) + shift) / lanes_wide) as u64
}

/// The draws of a lane in the first `passes` passes, at most L: a sum of differences of edges.
///
/// With b = x mod L and r = a·p mod L, ⌊(x + r)/L⌋ is ⌊x/L⌋ + ⌊(b + a·p)/L⌋ − ⌊a·p/L⌋, whose last
/// term is that of both edges.
fn draws_before(samples: u64, (lane, lanes): (u64, u64), passes: u64) -> u64 {
    let (wide, passes, stride) = (u128::from(lanes), u128::from(passes), u128::from(stride(lanes)));
    let sum = |lane: u64| {
        let start = u128::from(lane) * u128::from(samples);
        passes * (start / wide) + floor_sum(passes, wide, stride, start % wide)
    };
    (sum(lane + 1) - sum(lane)) as u64
}

/// Σ ⌊(a·p + b)/m⌋ over p below `terms`.
///
/// Each round adds the whole multiples of m in a and b in closed form. The remaining sum counts
/// lattice points below a line; exchanging the axes shortens it, as in Euclid's algorithm.
fn floor_sum(mut terms: u128, mut m: u128, mut a: u128, mut b: u128) -> u128 {
    let mut sum = 0;
    while terms > 0 {
        sum += terms * (terms - 1) / 2 * (a / m) + terms * (b / m);
        (a, b) = (a % m, b % m);
        let highest = a * terms + b;
        (terms, b) = (highest / m, highest % m);
        (m, a) = (a, m);
    }
    sum
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn passes_of_lanes_tile_the_source_and_stay_together(
            samples in 1_u64..120, lanes in 1_u64..60, passes in 1_u64..60,
        ) {
            let mut drawn = vec![0_u64; lanes as usize];
            for pass in 0..passes {
                let mut reached = 0;
                for (lane, drawn) in (0..).zip(&mut drawn) {
                    let slice = edge(samples, lane, lanes, pass % lanes)..edge(samples, lane + 1, lanes, pass % lanes);
                    prop_assert_eq!(slice.start, reached);
                    reached = slice.end;
                    for draw in 0..slice.end - slice.start {
                        let expected = Pass { number: pass, slice: slice.clone(), first_draw: *drawn };
                        prop_assert_eq!(Pass::of(samples, (lane, lanes), *drawn + draw), expected);
                    }
                    *drawn += slice.end - slice.start;
                }
                prop_assert_eq!(reached, samples);
                let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
                prop_assert!(most - least <= 12, "{} to {} draws in {} passes", least, most, pass + 1);
            }
        }
    }
}
