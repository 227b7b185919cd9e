//! The search for commits that follow no rhythm: leaf by leaf, going back where a choice leads
//! nowhere.
//!
//! A leaf that comes out right without a commit is taken so; else a commit is tried at each place
//! of it, else two. Places that lead to the same state of the writer are one choice, which keeps
//! the search narrow: mostly there is one. Work is counted in records put, and bounded.

use crate::candidate::{Candidate, Truth};
use crate::facts::Recipe;

/// Most commits within one leaf that the search tries.
const MAX_COMMITS: usize = 2;

/// A search.
pub(crate) struct CommitSearch<'a> {
    truth: &'a Truth<'a>,
    recipe: &'a Recipe,
    /// Transactions of the file.
    transactions: u64,
    /// Records that may still be put.
    budget: u64,
    bytes: Vec<u8>,
}

/// A writer after a correct leaf, and its last commit.
struct Choice<'a> {
    candidate: Candidate<'a>,
    commits: Option<usize>,
}

/// What becomes of a leaf.
enum LeafResult {
    Right,
    Wrong,
    /// It was the last one and all is right.
    End,
    /// The work exceeds its bound.
    Spent,
}

impl<'a> CommitSearch<'a> {
    pub(crate) fn new(truth: &'a Truth<'a>, recipe: &'a Recipe, transactions: u64, budget: u64) -> Self {
        Self { truth, recipe, transactions, budget, bytes: Vec::new() }
    }

    /// Searches for commits that lead from `start` to the file, and returns the number of records
    /// before each.
    pub(crate) fn run(&mut self, start: Candidate<'a>) -> Result<Option<Vec<u64>>, String> {
        // Commits made, each with the one before it.
        let mut trail: Vec<(Option<usize>, u64)> = Vec::new();
        let mut choices = vec![Choice { candidate: start, commits: None }];
        while let Some(choice) = choices.pop() {
            for most in 0..=MAX_COMMITS {
                let mut found = Vec::new();
                let mut places = Vec::new();
                let end = self.leaf(&choice.candidate, most, &mut places, &mut found)?;
                if self.budget == 0 && !end {
                    return Ok(None);
                }
                let note = |trail: &mut Vec<(Option<usize>, u64)>, places: &[u64]| {
                    places.iter().fold(choice.commits, |before, place| {
                        trail.push((before, *place));
                        Some(trail.len() - 1)
                    })
                };
                if end {
                    let mut last = note(&mut trail, &places);
                    let mut commits = Vec::new();
                    while let Some((before, place)) = last.map(|last| trail[last]) {
                        commits.push(place);
                        last = before;
                    }
                    commits.reverse();
                    return Ok(Some(commits));
                }
                if found.is_empty() {
                    continue;
                }
                // The first one found is tried first.
                for (candidate, places) in found.into_iter().rev() {
                    let commits = note(&mut trail, &places);
                    choices.push(Choice { candidate, commits });
                }
                break;
            }
        }
        Ok(None)
    }

    /// Tries the next leaf with `commits` commits after `places`, and adds writers that get it
    /// right to `found`. Returns whether the end was reached, with the commits in `places`.
    fn leaf(
        &mut self,
        from: &Candidate<'a>,
        commits: usize,
        places: &mut Vec<u64>,
        found: &mut Vec<(Candidate<'a>, Vec<u64>)>,
    ) -> Result<bool, String> {
        if commits == 0 {
            let mut candidate = from.clone();
            match self.finish_leaf(&mut candidate)? {
                LeafResult::End => return Ok(true),
                LeafResult::Right if found.iter().all(|(other, _)| !other.is_like(&candidate)) => {
                    found.push((candidate, places.clone()));
                }
                LeafResult::Right | LeafResult::Wrong | LeafResult::Spent => {}
            }
            return Ok(false);
        }
        if from.writing.insertion.transaction() + commits as u64 > self.transactions {
            return Ok(false);
        }
        let mut candidate = from.clone();
        loop {
            let entries = candidate.writing.insertion.entries();
            if entries > 0 && places.last() != Some(&entries) && entries < self.recipe.records {
                let mut committed = candidate.clone();
                committed.writing.commit()?;
                places.push(entries);
                if self.leaf(&committed, commits - 1, places, found)? {
                    return Ok(true);
                }
                places.pop();
            }
            if entries == self.recipe.records || self.budget == 0 {
                return Ok(false);
            }
            self.budget -= 1;
            if candidate.writing.put()?.is_some() {
                return Ok(false);
            }
        }
    }

    /// Puts records until the leaf is finished.
    fn finish_leaf(&mut self, candidate: &mut Candidate<'a>) -> Result<LeafResult, String> {
        while candidate.writing.insertion.entries() < self.recipe.records {
            if self.budget == 0 {
                return Ok(LeafResult::Spent);
            }
            self.budget -= 1;
            if let Some(finished) = candidate.writing.put()? {
                let right = self.truth.is_right(candidate.leaves, finished.page, &mut self.bytes);
                candidate.leaves += 1;
                return Ok(if right { LeafResult::Right } else { LeafResult::Wrong });
            }
        }
        let ends = self.truth.ends_well(candidate, &mut self.bytes)?;
        Ok(if ends { LeafResult::End } else { LeafResult::Wrong })
    }
}
