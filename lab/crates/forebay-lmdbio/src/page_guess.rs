//! Predicts the pages of the next slice of samples from the previous slices (LMDBIO-LMM-DM).
//!
//! A root that waits for the cursor does not know where its slice begins, but pages follow samples
//! nearly linearly: with `n` samples up to page `P` (the two meta pages come first), a sample takes
//! `b = (P − 2) / n` pages, and the slice of the samples `q .. q + count` lies in `2 + b·q − low ..
//! 2 + b·(q + count) + high`. The margins are running deviations of the 0.5th and 99.5th percentile
//! of the pages that were needed: they follow a wider miss at once and fall by a tenth per slice.
//! Percentiles, because one outlier would make the range many times too wide.
//!
//! A wrong guess costs needless reads and page faults, but never a wrong sample.

use std::ops::Range;

/// Bytes of what is guessed in: pages of the processor, whatever the file's are.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Pages before the first that a sample can need.
const FIRST_PAGE: f64 = 2.0;
/// Part of a margin that is left after a slice that did not need it.
const DECAY: f64 = 0.9;
/// Part of a slice's pages that each margin leaves out.
const TAIL: f64 = 0.005;
/// Maximum size of a guess: a multiple of the slice's average size, plus some pages. It bounds the
/// cost of a wrong guess. The margins of measured databases give a ratio of 1.2 to 2.6.
const MAX_RATIO: f64 = 4.0;
const MAX_EXTRA_PAGES: f64 = 256.0;

/// The history of a root in one shard.
#[derive(Debug, Default)]
pub struct PageGuess {
    pages_per_sample: Option<f64>,
    low: f64,
    high: f64,
    /// The guess for the current slice.
    pages: Range<u64>,
}

/// As many pages as a guess has, well away from them.
fn wrong(right: &Range<u64>) -> Range<u64> {
    let length = right.end - right.start;
    match right.start.checked_sub(2 * length) {
        Some(before) => before..before + length,
        None => right.end + length..right.end + 2 * length,
    }
}

/// Quality of a guess, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuessOutcome {
    /// Pages that were needed and guessed.
    pub hits: u64,
    /// Pages that were needed and not guessed.
    pub misses: u64,
}

impl PageGuess {
    /// Guesses the pages of the samples `first .. first + count` of the shard; an empty range
    /// without a history.
    pub fn pages(&mut self, first: u64, count: u64) -> Range<u64> {
        self.pages = match self.pages_per_sample {
            None => 0..0,
            Some(each) => {
                let most = MAX_RATIO * each * count as f64 + MAX_EXTRA_PAGES;
                let from = (FIRST_PAGE + each * first as f64 - self.low).max(0.0);
                let to = (FIRST_PAGE + each * (first + count) as f64 + self.high).clamp(from, from + most);
                from.floor() as u64..to.ceil() as u64
            }
        };
        self.pages.clone()
    }

    /// Moves the last guess away from the needed pages, to test the cost of a wrong one.
    pub(crate) fn spoil(&mut self) -> Range<u64> {
        self.pages = wrong(&self.pages);
        self.pages.clone()
    }

    /// Records the locations of the samples `first ..` of the shard: offset and length of each
    /// \[bytes\].
    pub fn learn(&mut self, first: u64, extents: &[(u64, u64)]) -> GuessOutcome {
        let mut outcome = GuessOutcome { hits: 0, misses: 0 };
        let mut starts: Vec<u64> = Vec::with_capacity(extents.len());
        let mut ends: Vec<u64> = Vec::with_capacity(extents.len());
        for (offset, length) in extents {
            let pages = offset / PAGE_BYTES..(offset + (*length).max(1)).div_ceil(PAGE_BYTES);
            let (from, to) = (pages.start.max(self.pages.start), pages.end.min(self.pages.end));
            let hits = to.saturating_sub(from);
            outcome.hits += hits;
            outcome.misses += pages.end - pages.start - hits;
            starts.push(pages.start);
            ends.push(pages.end);
        }
        if extents.is_empty() {
            return outcome;
        }
        starts.sort_unstable();
        ends.sort_unstable();
        let outside = (extents.len() as f64 * TAIL) as usize;
        let (lowest, highest) = (starts[outside] as f64, ends[extents.len() - 1 - outside] as f64);
        let behind = (first + extents.len() as u64) as f64;
        if let Some(each) = self.pages_per_sample {
            let low = FIRST_PAGE + each * first as f64 - lowest;
            let high = highest - (FIRST_PAGE + each * behind);
            self.low = low.max(DECAY * self.low);
            self.high = high.max(DECAY * self.high);
        }
        self.pages_per_sample = Some((highest - FIRST_PAGE).max(0.0) / behind);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of `pages` pages each, one behind the other from page 3 on.
    fn slice(first: u64, count: u64, pages: u64) -> Vec<(u64, u64)> {
        let extent = |sample| ((3 + sample * pages) * PAGE_BYTES, pages * PAGE_BYTES - 900);
        (first..first + count).map(extent).collect()
    }

    #[test]
    fn even_records_are_guessed_from_the_second_slice_on() {
        let mut guess = PageGuess::default();
        assert_eq!(guess.pages(0, 64), 0..0);
        assert_eq!(guess.learn(0, &slice(0, 64, 2)), GuessOutcome { hits: 0, misses: 128 });
        for number in 1..20 {
            let pages = guess.pages(number * 64, 64);
            assert!(pages.end - pages.start < 128 + 16, "{pages:?}");
            let outcome = guess.learn(number * 64, &slice(number * 64, 64, 2));
            assert!(outcome.misses <= 2, "slice {number}: {outcome:?}");
        }
    }

    #[test]
    fn a_guess_that_is_wrong_widens_and_a_right_one_narrows_again() {
        let mut guess = PageGuess::default();
        guess.pages(0, 64);
        guess.learn(0, &slice(0, 64, 2));
        // From here on records are three times as long, and lie further back every time.
        guess.pages(64, 64);
        assert!(guess.learn(64, &slice(64, 64, 6)).misses > 0);
        let wide = guess.pages(128, 64);
        assert!(wide.end - wide.start > 3 * 128);
        for number in 2..40 {
            guess.pages(number * 64, 64);
            guess.learn(number * 64, &slice(number * 64, 64, 6));
        }
        let narrow = guess.pages(40 * 64, 64);
        assert!(narrow.end - narrow.start < 64 * 6 + 32, "{narrow:?}");
    }

    #[test]
    fn no_history_leads_to_a_range_without_bound() {
        let mut guess = PageGuess::default();
        for first in [0, 1, 1 << 40] {
            guess.pages(first, 1);
            guess.learn(first, &[(1 << 50, 10), (0, 10)]);
        }
        let each = (1_u64 << 38) as f64 / (1_u64 << 40) as f64;
        let pages = guess.pages(100, 8);
        assert!((pages.end - pages.start) as f64 <= 4.0 * each * 8.0 + 258.0, "{pages:?}");
    }

    #[test]
    fn one_value_far_away_does_not_widen_the_guess() {
        let mut guess = PageGuess::default();
        for number in 0..10 {
            let mut extents = slice(number * 400, 400, 1);
            extents[200].0 = 0;
            guess.pages(number * 400, 400);
            guess.learn(number * 400, &extents);
        }
        let pages = guess.pages(4000, 400);
        assert!(pages.end - pages.start < 420, "{pages:?}");
    }
}
