//! How many reads at once: found out by trying, because storage does not tell.
//!
//! Flash behind a network needs many requests side by side to hide its latency; a disk array loses by each one that comes
//! out of turn. So all readers begin, and soon two of them are tried: what is lost by that on flash is little, what is won on
//! disks is several times the rate. Where reads are large and announced a block ahead, one reader begins, and soon two are tried. Only a width that is clearly faster is taken. Later other widths are tried again,
//! narrower and wider by turns, for storage changes as its other users come and go; the longer the more has been tried in vain.

/// Another width must be faster by this factor to be taken.
const GAIN: f64 = 1.1;
/// Blocks before the first trial.
const FIRST: u64 = 8;
/// Blocks for which a width is held: after a trial that found a better one, and after many in vain.
const HELD: std::ops::RangeInclusive<u64> = 64..=4096;
/// A trial in vain makes it so many times longer.
const LONGER: u64 = 8;
/// Blocks of a trial, and the same per unit of width.
const TRIED: u64 = 6;
const TRIED_EACH: u64 = 2;
/// The narrower width that is tried where more are under way.
const NARROW: u64 = 2;

/// What the present width is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is kept; the next trial is a narrower one.
    HeldBeforeNarrower,
    /// It is kept; the next trial is a wider one.
    HeldBeforeWider,
    /// Another width is tried.
    Trying,
}

impl Mode {
    const ALL: [Self; 3] = [Self::HeldBeforeNarrower, Self::HeldBeforeWider, Self::Trying];

    /// The mode that was stored as a number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self::ALL[(number % Self::ALL.len() as u64) as usize]
    }
}

/// The width, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConcurrencyTuner {
    /// Blocks that may be under way at once.
    pub width: u64,
    /// What it is for.
    pub mode: Mode,
    /// The best width so far; the same as `width` while it is held.
    pub best: u64,
    /// Rate of the best width \[bytes/ns\].
    pub rate: f64,
    /// Blocks for which a width is held.
    pub held: u64,
}

impl ConcurrencyTuner {
    /// The pace at the beginning: `first` blocks, where `most` is the widest that can be.
    #[must_use]
    pub fn begin(first: u64, most: u64) -> Self {
        let mode = if first < most { Mode::HeldBeforeWider } else { Mode::HeldBeforeNarrower };
        Self { width: first, mode, best: first, rate: 0.0, held: FIRST }
    }

    /// Blocks until the next decision.
    #[must_use]
    pub fn blocks(self) -> u64 {
        match self.mode {
            Mode::Trying => TRIED.max(TRIED_EACH * self.width),
            Mode::HeldBeforeWider | Mode::HeldBeforeNarrower => self.held,
        }
    }

    /// What comes after blocks that came at `rate`, where `most` is the widest that can be.
    #[must_use]
    pub fn next(self, rate: f64, most: u64) -> Self {
        let try_width = |width| Self { width, mode: Mode::Trying, best: self.width, rate, ..self };
        match self.mode {
            Mode::HeldBeforeNarrower if self.width > NARROW => try_width(NARROW),
            Mode::HeldBeforeNarrower if self.width > 1 => try_width(1),
            Mode::HeldBeforeNarrower => Self { mode: Mode::HeldBeforeWider, rate, ..self },
            Mode::HeldBeforeWider if self.width * 2 <= most => try_width(self.width * 2),
            Mode::HeldBeforeWider => Self { mode: Mode::HeldBeforeNarrower, rate, ..self },
            Mode::Trying => {
                let is_better = rate > GAIN * self.rate;
                let is_wider = self.width > self.best;
                let (best, rate) = if is_better { (self.width, rate) } else { (self.best, self.rate) };
                let held = if is_better { 0 } else { LONGER * self.held };
                // Further in the direction that did good, else in the other one.
                let mode =
                    if is_better == is_wider { Mode::HeldBeforeWider } else { Mode::HeldBeforeNarrower };
                Self { width: best, mode, best, rate, held: held.clamp(*HELD.start(), *HELD.end()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pace after so many decisions on storage whose rate follows from the width.
    fn settled(decisions: usize, most: u64, rate: impl Fn(u64) -> f64) -> ConcurrencyTuner {
        (0..decisions).fold(ConcurrencyTuner::begin(most, most), |pace, _| pace.next(rate(pace.width), most))
    }

    #[test]
    fn storage_with_latency_keeps_all_readers_after_one_short_trial() {
        let pace = settled(2, 8, |width| width as f64);
        assert!(pace.mode != Mode::Trying && pace.width == 8, "{pace:?}");
    }

    #[test]
    fn storage_that_suffers_from_width_gets_one_after_the_other() {
        let pace = settled(2, 8, |width| if width <= 2 { 1.0 } else { 0.3 });
        assert!(pace.mode != Mode::Trying && pace.width == 2, "{pace:?}");
        let pace = settled(4, 8, |width| if width == 1 { 1.0 } else { 0.3 / width as f64 });
        assert!(pace.mode != Mode::Trying && pace.width == 1, "{pace:?}");
    }

    #[test]
    fn one_that_begins_is_joined_by_others_where_that_is_faster() {
        let joined = |rate: fn(u64) -> f64| {
            (0..2).fold(ConcurrencyTuner::begin(1, 2), |pace, _| pace.next(rate(pace.width), 2)).width
        };
        assert_eq!(joined(|width| width as f64), 2);
        assert_eq!(joined(|width| 1.0 / width as f64), 1);
    }

    #[test]
    fn trials_become_rare_where_they_find_nothing() {
        let pace = settled(40, 8, |_| 1.0);
        assert_eq!((pace.best, pace.held), (8, *HELD.end()));
    }

    #[test]
    fn the_width_follows_storage_that_changes() {
        let mut pace = settled(5, 8, |width| width as f64);
        for _ in 0..12 {
            pace = pace.next(1.0 / pace.width as f64, 8);
        }
        assert!(pace.width <= 2, "{pace:?}");
        for _ in 0..12 {
            pace = pace.next(pace.width as f64, 8);
        }
        assert!(pace.width >= 4, "{pace:?}");
    }

    #[test]
    fn the_width_stays_between_one_and_the_most() {
        for most in 1..=9 {
            let mut pace = ConcurrencyTuner::begin(1 + most / 2, most);
            for number in 0..200_u64 {
                // Rates without any sense.
                pace = pace.next((number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64, most);
                assert!((1..=most).contains(&pace.width) && pace.blocks() > 0, "{pace:?} of {most}");
            }
        }
    }

    #[test]
    fn a_mode_survives_as_a_number() {
        for mode in Mode::ALL {
            assert_eq!(Mode::from_number(mode as u64), mode);
        }
    }
}
