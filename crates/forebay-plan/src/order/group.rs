//! The group order: contiguous groups laid end to end in a permuted sequence, dealt to lanes,
//! shuffled in windows.
//!
//! How it works, in order:
//! 1. The dataset is cut into n = ⌈N/S⌉ groups of S contiguous samples; only the last group may be
//!    shorter.
//! 2. A permutation keyed by (seed, epoch) lays the groups end to end, the short one wherever it
//!    falls: a sequence of N.
//! 3. Lane l owns the slice [⌊l·N/L⌋, ⌊(l+1)·N/L⌋) of the sequence; lanes are equal to ± 1 sample.
//! 4. Inside its slice a lane shuffles windows of w·S positions by a permutation keyed by (seed,
//!    epoch, lane, window). The first window of lane l is shortened by ⌊l·w·S/L⌋, so that the
//!    lanes' window edges, and with them the reads, are spread evenly over the steps; the last
//!    window is what is left.
//!
//! Everything is a pure function of (seed, epoch, position) that keeps no array of the dataset's
//! size.

use std::ops::Range;

use crate::permutation::{Key, Permutation, Purpose, is_table, shuffle};

/// The sizes that define a group order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// N.
    pub(crate) samples: u64,
    /// S.
    pub(crate) group: u64,
    /// w·S \[positions\].
    pub(crate) window: u64,
    /// L.
    pub(crate) lanes: u64,
}

impl Shape {
    /// n, the number of groups.
    pub(crate) fn groups(&self) -> u64 {
        self.samples.div_ceil(self.group)
    }

    /// The slice of the sequence that a lane owns.
    pub(crate) fn lane(&self, lane: u64) -> Range<u64> {
        share(self.samples, self.lanes, lane)
    }

    /// Positions of a lane.
    pub(crate) fn lane_positions(&self, lane: u64) -> u64 {
        let slice = self.lane(lane);
        slice.end - slice.start
    }

    /// Positions of a lane's first window, if the lane is long enough.
    fn first_window(&self, lane: u64) -> u64 {
        self.window - (u128::from(lane) * u128::from(self.window) / u128::from(self.lanes)) as u64
    }

    /// Number and positions of the window that holds `position` of `lane`.
    pub(crate) fn window_at(&self, lane: u64, position: u64) -> (u64, Range<u64>) {
        let first = self.first_window(lane);
        let end = self.lane_positions(lane);
        if position < first {
            (0, 0..first.min(end))
        } else {
            let number = (position - first) / self.window;
            let start = first + number * self.window;
            (number + 1, start..start.saturating_add(self.window).min(end))
        }
    }

    /// The sequence of an epoch.
    pub(crate) fn sequence(&self, seed: u64, epoch: u64) -> Sequence {
        Sequence::new(Key::new(seed, Purpose::Groups).with(epoch), self.samples, self.group)
    }

    /// The permutation of one window of `positions` positions.
    pub(crate) fn window_key(seed: u64, epoch: u64, lane: u64, window: u64) -> Key {
        Key::new(seed, Purpose::Window).with(epoch).with(lane).with(window)
    }

    /// The samples of a window, in the order in which they are delivered.
    pub(crate) fn window_samples(
        &self,
        seed: u64,
        epoch: u64,
        sequence: &Sequence,
        lane: u64,
        (window, positions): (u64, Range<u64>),
        out: &mut Vec<u64>,
    ) {
        let start = self.lane(lane).start;
        let key = Self::window_key(seed, epoch, lane, window);
        sequence.window_samples(start + positions.start..start + positions.end, key, out);
    }
}

/// Part `part` of `total` things cut into `parts` parts that differ by at most one.
pub(crate) fn share(total: u64, parts: u64, part: u64) -> Range<u64> {
    let edge = |part: u64| (u128::from(part) * u128::from(total) / u128::from(parts)) as u64;
    edge(part)..edge(part + 1)
}

/// The groups of one epoch, laid end to end.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    permutation: Permutation,
    /// S.
    group: u64,
    /// The group that may be short.
    last: u64,
    /// Its samples; S where it is not short.
    short_samples: u64,
    /// Where it stands among the groups.
    short_place: u64,
}

impl Sequence {
    /// Of `samples` samples in groups of `group`, permuted by `key`.
    pub(crate) fn new(key: Key, samples: u64, group: u64) -> Self {
        let groups = samples.div_ceil(group);
        let permutation = Permutation::new(key, groups);
        Self {
            group,
            last: groups - 1,
            short_samples: samples - (groups - 1) * group,
            short_place: permutation.position_of(groups - 1),
            permutation,
        }
    }

    /// The samples at `positions`, shuffled by `key`.
    pub(crate) fn window_samples(&self, positions: Range<u64>, key: Key, out: &mut Vec<u64>) {
        self.fill(positions, out);
        let length = out.len() as u64;
        if is_table(length) {
            shuffle(key, out);
        } else {
            let permutation = Permutation::new(key, length);
            *out = (0..length).map(|position| out[permutation.at(position) as usize]).collect();
        }
    }

    /// The place among the groups that holds position `position` of the sequence, and the offset in
    /// that group.
    fn place(&self, position: u64) -> (u64, u64) {
        let short_start = self.short_place * self.group;
        if position < short_start {
            (position / self.group, position % self.group)
        } else if position - short_start < self.short_samples {
            (self.short_place, position - short_start)
        } else {
            let rest = position - short_start - self.short_samples;
            (self.short_place + 1 + rest / self.group, rest % self.group)
        }
    }

    /// The sample at a position of the sequence.
    pub(crate) fn sample(&self, position: u64) -> u64 {
        let (place, offset) = self.place(position);
        self.permutation.at(place) * self.group + offset
    }

    /// The samples at `positions`, group by group.
    fn fill(&self, positions: Range<u64>, out: &mut Vec<u64>) {
        out.clear();
        let mut left = positions.end - positions.start;
        if left == 0 {
            return;
        }
        let (mut place, mut offset) = self.place(positions.start);
        while left > 0 {
            let group = self.permutation.at(place);
            let samples = if group == self.last { self.short_samples } else { self.group };
            let taken = (samples - offset).min(left);
            let first = group * self.group + offset;
            out.extend(first..first + taken);
            left -= taken;
            place += 1;
            offset = 0;
        }
    }
}

/// Smallest group \[bytes\]: a group is one read or a few, and reads below 1 MiB cost rate
/// (readers: 64 KiB halves it).
const GROUP_BYTES: f64 = 1024.0 * 1024.0;
/// Samples of a group below which the shuffle suffers: as long as a window stays within
/// [`LARGE_WINDOW_BYTES`].
const GROUP_SAMPLES: u64 = 64;
/// Window of small samples \[bytes\]: gathering out of windows up to 8 MiB is 3 times as fast as
/// out of larger ones.
const WINDOW_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
/// Window of large samples \[bytes\]: 16 lanes hold 256 MiB, a tenth of the default budget of a
/// node.
const LARGE_WINDOW_BYTES: f64 = 16.0 * 1024.0 * 1024.0;
/// Fewest groups per window of more than one sample: fewer mix too little (same-group pairs fall as
/// 1/w).
pub(crate) const WINDOW_GROUPS: u64 = 4;
/// Groups of a small dataset: with fewer, a lane would see much the same samples in every epoch.
pub(crate) const MIN_GROUPS: u64 = 256;
/// Windows of a small dataset: one for each of the lanes that an order has by default.
const MIN_WINDOWS: u64 = 8;

/// Samples per group S and groups per window w that suit a dataset: (S, w).
///
/// They follow from the number of samples, their mean size \[bytes\] and how many of them are
/// decoded together (`unit_samples`) only, never from memory, ranks or a measurement, because the
/// order depends on them:
/// - a group is 1 to 2 MiB, so that it is read in large requests; at least 64 samples where four
///   such groups stay within 16 MiB, else as many as do; never so large that there are fewer than
///   256 groups;
/// - a window is at most 8 MiB where the samples allow that, because then it is gathered out of the
///   cache, which is 4 to 8 groups (more in a small dataset, but at most an eighth of it), and at
///   least 4 groups;
/// - S is a power of two, rounded up to a multiple of `unit_samples`, so that a chunk is read and
///   decoded once. Samples above 2 MiB, and those of tiny datasets, stand alone: then the order is
///   a full shuffle, and the window only says how many are read together.
#[must_use]
pub fn default_group(samples: u64, mean_sample_bytes: f64, unit_samples: u64) -> (u64, u64) {
    let mean = if mean_sample_bytes.is_finite() { mean_sample_bytes.max(1.0) } else { 1.0 };
    let reading = ((GROUP_BYTES / mean).ceil() as u64).next_power_of_two();
    let mixing = floor_power_of_two((LARGE_WINDOW_BYTES / WINDOW_GROUPS as f64 / mean) as u64);
    let group = reading.max(mixing.min(GROUP_SAMPLES)).min(floor_power_of_two(samples / MIN_GROUPS));
    let group = group.next_multiple_of(unit_samples.clamp(1, samples.max(1)));
    let window = (WINDOW_BYTES / (group as f64 * mean)) as u64;
    let window = window.min(samples / (MIN_WINDOWS * group));
    (group, window.max(if group == 1 { 1 } else { WINDOW_GROUPS }))
}

/// The largest power of two that is at most `number`; 1 for 0.
fn floor_power_of_two(number: u64) -> u64 {
    1 << number.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn shapes()(samples in 1_u64..600, group in 1_u64..60, window in 1_u64..6, lanes in 1_u64..9) -> Shape {
            Shape { samples, group, window: window * group, lanes }
        }
    }

    proptest! {
        #[test]
        fn the_sequence_is_the_permuted_groups_end_to_end(shape in shapes(), seed: u64, epoch in 0_u64..4) {
            let sequence = shape.sequence(seed, epoch);
            let permutation = Permutation::new(Key::new(seed, Purpose::Groups).with(epoch), shape.groups());
            let plain: Vec<u64> = (0..shape.groups())
                .map(|place| permutation.at(place) * shape.group)
                .flat_map(|start| start..(start + shape.group).min(shape.samples))
                .collect();
            let mut filled = Vec::new();
            sequence.fill(0..shape.samples, &mut filled);
            prop_assert_eq!(&filled, &plain);
            for (position, sample) in plain.iter().enumerate() {
                prop_assert_eq!(sequence.sample(position as u64), *sample);
            }
            let (one, other) = (seed % (shape.samples + 1), epoch * 100 % (shape.samples + 1));
            let part = one.min(other)..one.max(other);
            sequence.fill(part.clone(), &mut filled);
            prop_assert_eq!(&filled[..], &plain[part.start as usize..part.end as usize]);
        }

        #[test]
        fn windows_tile_a_lane_and_are_full_but_for_the_first_and_the_last(shape in shapes()) {
            for lane in 0..shape.lanes {
                let end = shape.lane_positions(lane);
                let mut reached = 0;
                let mut number = 0;
                while reached < end {
                    let (found, positions) = shape.window_at(lane, reached);
                    prop_assert_eq!(found, number);
                    prop_assert_eq!(positions.start, reached);
                    prop_assert!(positions.end > reached && positions.end <= end);
                    prop_assert_eq!(shape.window_at(lane, positions.end - 1), (number, positions.clone()));
                    if number > 0 && positions.end < end {
                        prop_assert_eq!(positions.end - positions.start, shape.window);
                    }
                    reached = positions.end;
                    number += 1;
                }
            }
        }

        #[test]
        fn lanes_are_equal_to_one_sample_and_own_everything(shape in shapes()) {
            let lengths: Vec<u64> = (0..shape.lanes).map(|lane| shape.lane_positions(lane)).collect();
            prop_assert_eq!(lengths.iter().sum::<u64>(), shape.samples);
            prop_assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1);
        }

        #[test]
        fn default_groups_keep_their_bounds(samples in 0_u64..1 << 40, mean in 0.0_f64..1e9) {
            let (group, window) = default_group(samples, mean, 1);
            prop_assert!(group >= 1 && window >= 1 && group.is_power_of_two());
            prop_assert!(window >= 4 || group == 1);
            prop_assert!(group == 1 || samples / group >= 256);
            let bytes = group as f64 * window as f64 * mean.max(1.0);
            prop_assert!(bytes <= 16.0 * 1024.0 * 1024.0 || (group, window) == (1, 1), "{} bytes", bytes);
        }
    }

    #[test]
    fn groups_are_whole_chunks() {
        assert_eq!(default_group(100_000, 4096.0, 100), (300, 6));
        assert_eq!(default_group(1_000, 100_000.0, 250), (250, 4));
        assert_eq!(default_group(3, 8.0, 64), (3, 4), "a chunk that is larger than the dataset");
    }

    #[test]
    fn default_groups_of_common_datasets() {
        // These are part of what a dataset means to a run: an order changes with them.
        for (what, samples, mean, expected) in [
            ("CIFAR-10 as Datum", 50_000, 3_085.0, (128, 21)),
            ("ImageNet, 110 KB", 1_281_167, 110_000.0, (32, 4)),
            ("200,000 of 3 KB", 200_000, 3_090.0, (512, 5)),
            ("50 million of 3 KB", 50_000_000, 3_090.0, (512, 5)),
            ("words", 100_000_000, 40.0, (32_768, 6)),
            ("volumes of 16 MiB", 10_000, 16.0 * 1024.0 * 1024.0, (1, 1)),
            ("one sample", 1, 100.0, (1, 1)),
            ("a hundred", 100, 3_000.0, (1, 12)),
            ("unknown size", 10_000, f64::NAN, (32, 39)),
        ] {
            assert_eq!(default_group(samples, mean, 1), expected, "{what}");
        }
    }
}
