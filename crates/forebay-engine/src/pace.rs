//! How many reads at once: found out by trying, because storage does not tell.
//!
//! Flash behind a network needs many requests side by side to hide its latency; a disk array loses by each one that comes
//! out of turn. So all readers begin, then half of them, and so on as long as that does no harm; the width that was fastest is
//! kept, a narrower one where it is nearly as fast, since that is kinder to the file system. Later its neighbours are tried
//! again, by turns, for storage changes as its other users come and go.

/// A wider width must be faster by this factor to be kept.
const GAIN: f64 = 1.1;
/// A narrower one that reaches this share of the rate is kept.
const KEEP: f64 = 0.97;
/// A width below this share of the best rate does harm: narrower ones are not tried.
const HARM: f64 = 0.75;
/// Blocks per unit of width while a width is tried.
const TRIED: u64 = 2;
/// Blocks before another one is tried: after the first trials, and after many that found nothing better.
const HELD: std::ops::RangeInclusive<u64> = 128..=2048;

/// What the present width is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is halved from the widest on.
    Falling,
    /// It is kept; the next trial is a wider one.
    HeldBeforeWider,
    /// It is kept; the next trial is a narrower one.
    HeldBeforeNarrower,
    /// Another width is tried.
    Trying,
}

impl Mode {
    const ALL: [Self; 4] = [Self::Falling, Self::HeldBeforeWider, Self::HeldBeforeNarrower, Self::Trying];

    pub(crate) fn from_number(number: u64) -> Self {
        Self::ALL[(number % Self::ALL.len() as u64) as usize]
    }
}

/// The width, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pace {
    /// Blocks that may be under way at once.
    pub(crate) width: u64,
    pub(crate) mode: Mode,
    /// The best width so far; the same as `width` while it is held.
    pub(crate) best: u64,
    /// Rate of the best width \[bytes/ns\].
    pub(crate) rate: f64,
    /// Blocks for which a width is held; they double with every trial in vain.
    pub(crate) held: u64,
}

impl Pace {
    /// The pace at the beginning, where `most` is the widest that can be.
    pub(crate) fn begin(most: u64) -> Self {
        Self { width: most, mode: Mode::Falling, best: most, rate: 0.0, held: *HELD.start() }
    }

    /// Blocks until the next decision.
    pub(crate) fn blocks(self) -> u64 {
        match self.mode {
            Mode::Falling => self.width.max(4),
            Mode::Trying => (TRIED * self.width).max(4),
            Mode::HeldBeforeWider | Mode::HeldBeforeNarrower => self.held,
        }
    }

    /// What comes after blocks that came at `rate`, where `most` is the widest that can be.
    pub(crate) fn next(self, rate: f64, most: u64) -> Self {
        let is_better =
            if self.width > self.best { rate > GAIN * self.rate } else { rate >= KEEP * self.rate };
        let (best, best_rate) = if is_better { (self.width, rate) } else { (self.best, self.rate) };
        let hold = |mode, held: u64| Self {
            width: best,
            mode,
            best,
            rate: best_rate,
            held: held.clamp(*HELD.start(), *HELD.end()),
        };
        let try_width = |width| Self { width, mode: Mode::Trying, best: self.width, rate, ..self };
        match self.mode {
            Mode::Falling if rate >= HARM * best_rate && self.width > 1 => {
                Self { width: self.width / 2, best, rate: best_rate, ..self }
            }
            Mode::Falling => hold(Mode::HeldBeforeNarrower, self.held),
            Mode::HeldBeforeWider if self.width * 2 <= most => try_width(self.width * 2),
            Mode::HeldBeforeNarrower if self.width > 1 => try_width(self.width / 2),
            Mode::HeldBeforeWider => Self { mode: Mode::HeldBeforeNarrower, rate, ..self },
            Mode::HeldBeforeNarrower => Self { mode: Mode::HeldBeforeWider, rate, ..self },
            // In the direction that did good, else in the other one.
            Mode::Trying => {
                let wider = is_better == (self.width > self.best);
                let mode = if wider { Mode::HeldBeforeWider } else { Mode::HeldBeforeNarrower };
                hold(mode, if is_better { 0 } else { 2 * self.held })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The width after so many decisions on storage whose rate follows from the width.
    fn settled(decisions: usize, most: u64, rate: impl Fn(u64) -> f64) -> Pace {
        (0..decisions).fold(Pace::begin(most), |pace, _| pace.next(rate(pace.width), most))
    }

    fn is_held(pace: Pace) -> bool {
        matches!(pace.mode, Mode::HeldBeforeWider | Mode::HeldBeforeNarrower)
    }

    #[test]
    fn storage_with_latency_keeps_the_width_that_hides_it() {
        let pace = settled(2, 8, |width| width as f64);
        assert!(is_held(pace) && pace.width == 8, "{pace:?}");
        // Four hide it; eight are not needed.
        let pace = settled(3, 8, |width| width.min(4) as f64);
        assert!(is_held(pace) && pace.width == 4, "{pace:?}");
    }

    #[test]
    fn storage_that_suffers_from_width_gets_one_after_the_other() {
        let pace = settled(4, 8, |width| if width == 1 { 1.0 } else { 0.3 });
        assert!(is_held(pace) && pace.width == 1, "{pace:?}");
    }

    #[test]
    fn noise_on_the_way_down_does_not_end_it() {
        let pace = [0.3, 0.28, 1.0, 0.9].iter().fold(Pace::begin(8), |pace, rate| pace.next(*rate, 8));
        assert!(is_held(pace) && pace.width == 2, "{pace:?}");
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
            let mut pace = Pace::begin(most);
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
