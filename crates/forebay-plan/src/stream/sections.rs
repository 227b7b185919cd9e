//! How a node goes through its slice of the stream of `opportunistic`: section by section, and
//! turn by turn.
//!
//! How it works, in order:
//! 1. A window is w consecutive units, cut into P sections: the units from ⌊k·w/P⌋ to ⌊(k+1)·w/P⌋
//!    of the slice are section k. A section is read at once.
//! 2. There are as many turns as sections. Section k is drawn from in the P turns from k − ⌊P/2⌋
//!    on, as far as there are such turns: 1/P of its samples in each. So P sections, a window, are
//!    drawn from in each turn. After each one the oldest section leaves memory, and the next one
//!    comes.
//! 3. The first turns take more of the sections that come first, the last turns more of the last
//!    ones. So the window is as long as elsewhere there, while the end of an epoch and the start of
//!    the next one together take no more memory.
//!
//! How many turns a section is drawn in, P, follows from the window ([`TurnRule`]).

use std::ops::Range;

use crate::nodes::shares::NodeShares;

/// Most turns of a section: with P of them, memory holds P + 1 sections to draw from P.
const MAX_TURNS: u64 = 16;

/// Least samples of a unit for each turn of a section: fixed numbers of samples per turn cost
/// entropy if they are few.
const SAMPLES_PER_TURN: u64 = 8;

/// In how many turns a section is drawn from. Depends on the dataset and the ranks alone, not on
/// what is resident.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnRule {
    /// S, mean samples of a unit.
    unit_samples: u64,
    /// Most samples of a node in a step.
    step_samples: u64,
}

impl TurnRule {
    /// At `batch` samples per rank and step.
    pub(crate) fn new(shares: &NodeShares, batch: u64) -> Self {
        let ranks = shares.nodes().map(<[_]>::len).max().unwrap_or(1) as u64;
        Self {
            unit_samples: shares.samples() / shares.units().max(1) as u64,
            step_samples: batch.saturating_mul(ranks).max(1),
        }
    }

    /// P of windows of `window` units. A section is one unit at least, and a turn as long as a
    /// step, or more sections than fit would be needed in one step.
    pub(crate) fn turns(&self, window: u64) -> u64 {
        let samples = u128::from(window) * u128::from(self.unit_samples);
        let steps = (samples / u128::from(self.step_samples)).min(u128::from(MAX_TURNS)) as u64;
        steps.min(window).min(self.unit_samples / SAMPLES_PER_TURN).max(1)
    }
}

/// Most units of a section of windows of `window` units that is drawn from in `turns` turns.
pub(crate) fn section_units(window: u64, turns: u64) -> u64 {
    window.div_ceil(turns.max(1))
}

/// See the module header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sections {
    /// Units of the slice; the first and the last may be cut.
    units: u64,
    /// w.
    window: u64,
    /// P.
    turns: u64,
}

impl Sections {
    /// Of a slice of `units` units.
    pub(crate) fn new(units: u64, window: u64, turns: u64) -> Self {
        debug_assert!(1 <= turns && turns <= window, "{turns} turns of {window} units");
        Self { units, window, turns }
    }

    /// How many there are; as many turns.
    pub(crate) fn count(&self) -> u64 {
        (u128::from(self.units) * u128::from(self.turns)).div_ceil(u128::from(self.window)) as u64
    }

    /// The first unit of a section, counted from the start of the slice; its end if there is no
    /// such section.
    pub(crate) fn first_unit(&self, section: u64) -> u64 {
        let unit = u128::from(section) * u128::from(self.window) / u128::from(self.turns);
        unit.min(u128::from(self.units)) as u64
    }

    /// The turns in which a section is drawn from.
    pub(crate) fn turns_of(&self, section: u64) -> Range<u64> {
        let before = self.turns / 2;
        section.saturating_sub(before)..(section + self.turns - before).min(self.count())
    }

    /// The sections that are drawn from in a turn.
    pub(crate) fn drawn_in(&self, turn: u64) -> Range<u64> {
        let end = turn + self.turns / 2 + 1;
        end.saturating_sub(self.turns)..end.min(self.count())
    }

    /// Of `length` samples of a section, those that are drawn before a turn.
    pub(crate) fn drawn_before(&self, section: u64, length: u64, turn: u64) -> u64 {
        let turns = self.turns_of(section);
        let passed = turn.clamp(turns.start, turns.end) - turns.start;
        (u128::from(length) * u128::from(passed) / u128::from(turns.end - turns.start)) as u64
    }

    /// Samples that are drawn before a turn, where section k begins at entry `edge`(k) of the
    /// slice.
    pub(crate) fn turn_start(&self, turn: u64, edge: impl Fn(u64) -> u64) -> u64 {
        let drawn = self.drawn_in(turn);
        let mut start = edge(drawn.start);
        let mut from = start;
        for section in drawn {
            let end = edge(section + 1);
            start += self.drawn_before(section, end - from, turn);
            from = end;
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn sections()(units in 1_u64..200, window in 1_u64..60)(
            units in Just(units), window in Just(window), turns in 1..=window.min(MAX_TURNS),
        ) -> Sections {
            Sections::new(units, window, turns)
        }
    }

    proptest! {
        #[test]
        fn a_window_is_drawn_from_and_one_section_more_is_in_memory(sections in sections()) {
            let Sections { units, window, turns } = sections;
            let count = sections.count();
            prop_assert_eq!((sections.first_unit(0), sections.first_unit(count)), (0, units));
            for section in 0..count {
                prop_assert!(sections.first_unit(section) < sections.first_unit(section + 1));
            }
            for turn in 0..count {
                let drawn = sections.drawn_in(turn);
                let of_turn: Vec<u64> = (0..count).filter(|section| sections.turns_of(*section).contains(&turn)).collect();
                prop_assert_eq!(drawn.clone().collect::<Vec<u64>>(), of_turn);
                prop_assert!(sections.first_unit(drawn.end) - sections.first_unit(drawn.start) <= window);
                let with_next = sections.first_unit(drawn.end + 1) - sections.first_unit(drawn.start);
                prop_assert!(with_next <= window + section_units(window, turns));
                // What comes first leaves first.
                prop_assert!(turn == 0 || sections.drawn_in(turn - 1).start <= drawn.start);
            }
            // The last turn of an epoch and the first of the next one.
            if count >= turns {
                let together = sections.drawn_in(count - 1).count() + sections.drawn_in(0).count();
                prop_assert!(together as u64 <= turns + 1);
            }
        }

        #[test]
        fn turns_draw_each_sample_once(sections in sections(), lengths in prop::collection::vec(0_u64..90, 1000)) {
            let count = sections.count();
            let edge = |section: u64| lengths[..section.min(count) as usize].iter().sum::<u64>();
            let starts: Vec<u64> = (0..=count).map(|turn| sections.turn_start(turn, edge)).collect();
            prop_assert_eq!((starts[0], starts[count as usize]), (0, edge(count)));
            for turn in 0..count {
                let parts = sections.drawn_in(turn).map(|section| {
                    let length = lengths[section as usize];
                    sections.drawn_before(section, length, turn + 1) - sections.drawn_before(section, length, turn)
                });
                prop_assert_eq!(parts.sum::<u64>(), starts[turn as usize + 1] - starts[turn as usize]);
            }
        }
    }

    #[test]
    fn a_section_is_drawn_from_in_as_many_turns_as_its_window_allows() {
        let rule = |unit_samples, step_samples| TurnRule { unit_samples, step_samples };
        for (rule, window, turns) in [
            (rule(340, 64), 48, 16),
            (rule(340, 64), 5, 5),
            (rule(64, 64), 36, 8),
            (rule(64, 1024), 36, 2),
            (rule(340, 2048), 48, 7),
            (rule(9, 64), 1000, 1),
            (rule(1, 64), 1000, 1),
            (rule(340, 64), 1, 1),
            (rule(340, 1 << 40), u64::MAX, 16),
        ] {
            assert_eq!(rule.turns(window), turns, "{rule:?} {window}");
        }
    }
}
