//! Derives the recipe of an existing file.
//!
//! A scan gives lengths of keys and values, and for each leaf its page, its number of records and a
//! hash of their locations ([`Observed`]): 24 bytes per leaf. A scan does not show the append flag
//! and the commits. Both leave traces, because a commit makes the next record take new pages for
//! the path to the last leaf:
//!
//! 1. A writer without commits repeats the insertions. The first leaf that comes out differently is
//!    the one during which the real writer committed first.
//! 2. Every rhythm that begins there and fits the number of transactions is tried. A wrong one
//!    differs soon, so all of them together cost little more than the right one.
//! 3. If no rhythm fits, commits are searched leaf by leaf
//!    ([`commit_search`](crate::commit_search)): none in this leaf, else one at each place, with
//!    backtracking, until the work exceeds a bound.
//!
//! The result is compared in full with the scan, so it is right or there is none.

use forebay_format::lmdb::{Identity, Record, Value};
use xxhash_rust::xxh3::xxh3_64;

use crate::candidate::{Candidate, ObservedLeaf, PLACE_BYTES, Truth, put_place};
use crate::check::compare_facts;
use crate::commit_search::CommitSearch;
use crate::facts::{NamedDatabase, Recipe, SplitClass, Transactions};
use crate::layout::{Offsets, PlaceDigest, Writing};
use crate::lengths::LengthsBuilder;

/// Records that are put again in the search for commits without a rhythm, besides a multiple of
/// those in the file: a second's work.
const SEARCH_RECORDS: u64 = 20_000_000;

/// Rhythms that may have several commits during one leaf: no leaf holds more records \[records\].
const MAX_SHORT_RHYTHM: u64 = 6000;

/// The multiple.
const SEARCH_PASSES: u64 = 40;

/// Observations of the scan of one file.
pub(crate) struct Observed {
    offsets: Offsets,
    page_bytes: u64,
    header_bytes: u64,
    keys: LengthsBuilder,
    values: LengthsBuilder,
    leaves: Vec<ObservedLeaf>,
    /// Places on the leaf that is being read.
    pending: Vec<u8>,
    pending_leaf: u64,
    digest: PlaceDigest,
    records: u64,
    excluded: Vec<(u8, u64)>,
}

impl Observed {
    /// Before the scan of the file of this identity.
    pub(crate) fn new(identity: &Identity) -> Self {
        let header_bytes = identity.dialect.header_bytes();
        Self {
            offsets: Offsets::new(identity.page_bytes, header_bytes),
            page_bytes: u64::from(identity.page_bytes),
            header_bytes: u64::from(header_bytes),
            keys: LengthsBuilder::default(),
            values: LengthsBuilder::default(),
            leaves: Vec::new(),
            pending: Vec::new(),
            pending_leaf: 0,
            digest: PlaceDigest::default(),
            records: 0,
            excluded: Vec::new(),
        }
    }

    /// Takes the next record of the scan; `excluded` is the number of a record's name that is no
    /// sample.
    pub(crate) fn add(&mut self, record: &Record<'_>, excluded: Option<u8>) {
        if record.leaf != self.pending_leaf {
            self.end_leaf();
            self.pending_leaf = record.leaf;
        }
        let (offset, length) = match record.value {
            Value::Inline { offset, length } => (offset, length),
            Value::Big { page, length } => (page * self.page_bytes + self.header_bytes, length),
        };
        put_place(&mut self.pending, offset, length);
        self.digest.push(offset, length);
        self.keys.push(record.key.len() as u32);
        self.values.push(length as u32);
        if let Some(name) = excluded {
            self.excluded.push((name, self.records));
        }
        self.records += 1;
    }

    fn end_leaf(&mut self) {
        if !self.pending.is_empty() {
            let records = (self.pending.len() / PLACE_BYTES) as u32;
            self.leaves.push(ObservedLeaf { page: self.pending_leaf, hash: xxh3_64(&self.pending), records });
            self.pending.clear();
        }
    }

    /// Digest of where all records lie.
    pub(crate) fn digest(&self) -> u128 {
        self.digest.finish()
    }

    /// Searches for a recipe that leads to the file, or returns why there is none.
    pub(crate) fn find(mut self, identity: &Identity) -> Result<(Recipe, u128), String> {
        self.end_leaf();
        let digest = self.digest.finish();
        let recipe = Recipe {
            dialect: identity.dialect,
            page_bytes: identity.page_bytes,
            checksum_bytes: identity.checksum_bytes,
            split_class: SplitClass::Modern,
            append: false,
            database: identity.database.clone().map(|name| NamedDatabase { name, own_transaction: true }),
            records: self.records,
            keys: self.keys.finish(),
            key_pattern: None,
            values: self.values.finish(),
            transactions: Transactions::default(),
            excluded: self.excluded,
        };
        if recipe.records != identity.tree.entries {
            return Err("it has databases with names among its records".to_owned());
        }
        compare_facts(&recipe, identity)
            .map_err(|difference| format!("{}: {}", difference.what, difference.found))?;
        let truth = Truth { leaves: &self.leaves, offsets: self.offsets, identity };
        for recipe in variants(&recipe) {
            if let Some(transactions) = truth.search(&recipe)? {
                return Ok((Recipe { transactions, ..recipe }, digest));
            }
        }
        Err("no history of insertions in the order of the keys leads to this layout: records were deleted, overwritten or \
             put in another order, a reader was alive while the writer committed, or the commits follow no rhythm"
            .to_owned())
    }
}

/// The recipe with all combinations of facts that a scan does not show.
fn variants(recipe: &Recipe) -> Vec<Recipe> {
    let mut variants = Vec::new();
    for append in [false, true] {
        for own_transaction in if recipe.database.is_some() { &[true, false][..] } else { &[false] } {
            let mut variant = Recipe { append, ..recipe.clone() };
            if let Some(database) = &mut variant.database {
                database.own_transaction = *own_transaction;
            }
            variants.push(variant);
        }
    }
    variants
}

impl Truth<'_> {
    /// Number of transactions with records, by the meta page.
    fn transactions(&self, recipe: &Recipe) -> u64 {
        let all = self.identity.transactions[0].max(self.identity.transactions[1]);
        let own = recipe.database.as_ref().is_some_and(|database| database.own_transaction);
        all.saturating_sub(u64::from(own))
    }

    /// Looks for transactions with which `recipe` leads to the file.
    fn search(&self, recipe: &Recipe) -> Result<Option<Transactions>, String> {
        let transactions = self.transactions(recipe);
        if transactions == 0 || transactions > recipe.records {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let mut candidate = Candidate { writing: Writing::begin(recipe)?, leaves: 0 };
        let mut right = candidate.clone();
        let mut wrong_at = recipe.records;
        while candidate.writing.insertion.entries() < recipe.records {
            let Some(finished) = candidate.writing.put()? else { continue };
            if !self.is_right(candidate.leaves, finished.page, &mut bytes) {
                wrong_at = candidate.writing.insertion.entries();
                break;
            }
            candidate.leaves += 1;
            right.clone_from(&candidate);
        }
        if transactions == 1 {
            let whole = wrong_at == recipe.records
                && candidate.leaves + 1 == self.leaves.len()
                && self.ends_well(&mut candidate, &mut bytes)?;
            return Ok(whole.then(Transactions::default));
        }
        let begun = right.writing.insertion.entries();
        let (shortest, longest) = rhythms(recipe.records, transactions);
        for every in shortest.max(begun).max(1)..=longest.min(wrong_at - 1) {
            if self.holds(recipe, right.clone(), every, &mut bytes)? {
                return Ok(Some(Transactions::every(every)));
            }
        }
        // With many commits per leaf, one may end on the page that it would have had without.
        if longest <= MAX_SHORT_RHYTHM {
            for every in shortest..=longest {
                let start = Candidate { writing: Writing::begin(recipe)?, leaves: 0 };
                if self.holds(recipe, start, every, &mut bytes)? {
                    return Ok(Some(Transactions::every(every)));
                }
            }
        }
        let right = if longest <= MAX_SHORT_RHYTHM {
            Candidate { writing: Writing::begin(recipe)?, leaves: 0 }
        } else {
            right
        };
        let budget = SEARCH_RECORDS.saturating_add(SEARCH_PASSES.saturating_mul(recipe.records));
        let all = self.identity.transactions[0].max(self.identity.transactions[1]);
        let mut search = CommitSearch::new(self, recipe, all, budget);
        Ok(search.run(right)?.map(|commits| Transactions::sizes(&sizes(&commits))))
    }

    /// Whether a commit every `every` records leads from here to the file.
    fn holds(
        &self,
        recipe: &Recipe,
        mut candidate: Candidate<'_>,
        every: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, String> {
        loop {
            let entries = candidate.writing.insertion.entries();
            if entries > 0 && entries.is_multiple_of(every) && entries < recipe.records {
                candidate.writing.commit()?;
            }
            if entries == recipe.records {
                return self.ends_well(&mut candidate, bytes);
            }
            if let Some(finished) = candidate.writing.put()? {
                if !self.is_right(candidate.leaves, finished.page, bytes) {
                    return Ok(false);
                }
                candidate.leaves += 1;
            }
        }
    }
}

/// The shortest and the longest rhythm that make `transactions`, two or more, of `records`.
fn rhythms(records: u64, transactions: u64) -> (u64, u64) {
    (records.div_ceil(transactions), (records - 1) / (transactions - 1))
}

/// Sizes of the transactions that end after these numbers of records.
fn sizes(commits: &[u64]) -> Vec<u64> {
    let mut before = 0;
    commits.iter().map(|commit| commit - std::mem::replace(&mut before, *commit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rhythms_are_those_that_make_so_many_transactions() {
        for (records, transactions) in [(10, 2), (1000, 7), (1000, 1000), (49_837, 50), (5, 4)] {
            let (shortest, longest) = rhythms(records, transactions);
            for every in 1..=records {
                let makes = records.div_ceil(every) == transactions;
                assert_eq!((shortest..=longest).contains(&every), makes, "{records} {transactions} {every}");
            }
        }
    }
}
