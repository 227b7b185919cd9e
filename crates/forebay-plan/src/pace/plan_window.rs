//! When a segment is planned, and when planning ends.
//!
//! A segment is planned once gather threads need it, or while the readers are about to run out of
//! work. Nothing is planned behind the epoch after that of the slowest rank: a dataset that fits
//! the staging ring many times would be read many times ahead.

use crate::config::{AccessChoice, IoMode, Mapping, Settings};
use crate::order::OrderKind;

/// Segments planned ahead of the readers: one that they can begin at once, and the next one.
pub const SEGMENTS_AHEAD: usize = 2;

/// Epochs that are read ahead: that of the slowest rank, and the next one.
const EPOCHS_AHEAD: u64 = 2;

/// What bounds planning.
#[derive(Clone, Copy, Debug)]
pub struct PlanWindow {
    /// [`wanted_end`].
    pub wanted_end: u64,
    /// [`read_ahead_end`].
    pub read_ahead_end: u64,
    /// The step that a gather thread will claim next; `None` where none may claim.
    pub claim: Option<u64>,
}

impl PlanWindow {
    /// Whether the segment that begins at `first_step` should be planned now. `ahead` counts the
    /// planned segments ([`segments_ahead`]); it is asked only where it decides.
    #[must_use]
    pub fn wants(&self, first_step: u64, ahead: impl FnOnce() -> usize) -> bool {
        first_step < self.wanted_end
            && (self.claim.is_some_and(|step| step >= first_step)
                || (first_step < self.read_ahead_end && ahead() < SEGMENTS_AHEAD))
    }
}

/// First step that is not needed, as far as known: after the `epochs` that the user declared, and
/// after `end`, where a requested epoch ends.
#[must_use]
pub fn wanted_end(epochs: Option<u64>, steps_per_epoch: u64, end: u64) -> u64 {
    epochs.map_or(u64::MAX, |epochs| epochs.saturating_mul(steps_per_epoch).max(end))
}

/// First step that is not read ahead, where the slowest rank has gathered the steps before
/// `slowest`: the end of the epoch after. Nothing is read ahead while all ranks are detached.
#[must_use]
pub fn read_ahead_end(slowest: Option<u64>, steps_per_epoch: u64) -> u64 {
    let steps = steps_per_epoch.max(1);
    slowest.map_or(0, |step| (step / steps + EPOCHS_AHEAD) * steps)
}

/// Segments ahead of the readers, which have begun the blocks before `begun`: those whose last
/// block none has begun; without blocks, those after step `claim`. `planned` are first step and
/// last block of the planned segments, the newest first.
pub fn segments_ahead(
    planned: impl Iterator<Item = (u64, Option<u64>)>,
    begun: u64,
    claim: Option<u64>,
) -> usize {
    let is_ahead = |(first_step, last_block): &(u64, Option<u64>)| match last_block {
        Some(last) => *last >= begun,
        None => claim.is_none_or(|step| *first_step > step),
    };
    planned.take_while(is_ahead).count()
}

/// Whether planning may end because the files are in the page cache: where ranks would copy from
/// mappings if they had been there when the loader was made (`config/io_mode.rs`), and nothing but
/// the source has samples. `is_coded`: samples are in units that have to be decoded.
/// `has_own_levels`: storage tiers or memory of the loader have samples, too.
///
/// In `local-shuffle` each rank would deal a whole pool for each of its steps.
#[must_use]
pub fn may_end_planning(settings: &Settings, kind: OrderKind, is_coded: bool, has_own_levels: bool) -> bool {
    settings.mode == IoMode::Planned { roots: false }
        && settings.access == AccessChoice::Auto
        && settings.mapping != Mapping::None
        && !settings.direct
        && !is_coded
        && !matches!(kind, OrderKind::LocalShuffle { .. })
        && !has_own_levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_planned_when_it_is_claimed_or_the_readers_run_out() {
        let window = PlanWindow { wanted_end: 100, read_ahead_end: 40, claim: Some(10) };
        for (window, first_step, ahead, expected) in [
            (window, 12, 0, true),
            (window, 12, 1, true),
            (window, 12, 2, false),
            // A gather thread needs it.
            (window, 10, 9, true),
            (window, 4, 9, true),
            // Behind what is read ahead, unless a gather thread comes there.
            (window, 40, 0, false),
            (PlanWindow { claim: Some(40), ..window }, 40, 9, true),
            // Nobody needs it.
            (window, 100, 0, false),
            (PlanWindow { claim: Some(100), ..window }, 100, 0, false),
            // Nobody may claim: it is read ahead all the same.
            (PlanWindow { claim: None, ..window }, 12, 1, true),
        ] {
            assert_eq!(window.wants(first_step, || ahead), expected, "{window:?}, {first_step}, {ahead}");
        }
    }

    #[test]
    fn steps_are_needed_up_to_the_declared_epochs_or_where_a_requested_one_ends() {
        for (epochs, end, expected) in
            [(None, 30, u64::MAX), (Some(2), 0, 20), (Some(2), 30, 30), (Some(u64::MAX), 0, u64::MAX)]
        {
            assert_eq!(wanted_end(epochs, 10, end), expected, "{epochs:?}, {end}");
        }
    }

    #[test]
    fn reading_ahead_ends_with_the_epoch_after_that_of_the_slowest_rank() {
        for (slowest, steps, expected) in
            [(None, 10, 0), (Some(0), 10, 20), (Some(9), 10, 20), (Some(10), 10, 30), (Some(3), 0, 5)]
        {
            assert_eq!(read_ahead_end(slowest, steps), expected, "{slowest:?} of {steps}");
        }
    }

    #[test]
    fn segments_are_ahead_until_a_reader_begins_their_last_block() {
        let blocks = [(8, Some(11)), (4, Some(7)), (0, Some(3))];
        let without = [(8, None), (4, None), (0, None)];
        for (planned, begun, claim, expected) in [
            (blocks, 0, None, 3),
            (blocks, 3, None, 3),
            (blocks, 4, None, 2),
            (blocks, 12, None, 0),
            (without, 0, None, 3),
            (without, 0, Some(0), 2),
            (without, 0, Some(5), 1),
        ] {
            assert_eq!(segments_ahead(planned.into_iter(), begun, claim), expected, "{begun}, {claim:?}");
        }
    }
}
