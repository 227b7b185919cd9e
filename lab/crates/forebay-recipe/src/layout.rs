//! From a recipe to offsets: repeats the work of the writer, record by record, and returns each
//! finished leaf.
//!
//! Memory: one leaf, one page per level, a stretch of each list. 50 million records take seconds.

use xxhash_rust::xxh3::Xxh3;

use crate::facts::Recipe;
use crate::free_list::Outgrown;
use crate::insertion::{Insertion, InsertionResult, LeafPage, Placed};
use crate::lengths::LengthReader;
use crate::pages::PageRules;

/// A leaf that will not change any more.
pub(crate) struct Finished<'a> {
    /// Number of its first record.
    pub(crate) first: u64,
    /// The leaf.
    pub(crate) page: &'a LeafPage,
    /// Last page of the file so far.
    pub(crate) last_page: u64,
}

/// A writer on its way through the records of a recipe.
#[derive(Clone)]
pub(crate) struct Writing<'a> {
    pub(crate) insertion: Insertion,
    keys: LengthReader<'a>,
    values: LengthReader<'a>,
    longest_key_bytes: u64,
    /// The first record of the last leaf.
    first: u64,
}

impl<'a> Writing<'a> {
    /// The file before the first record.
    pub(crate) fn begin(recipe: &'a Recipe) -> Result<Self, String> {
        recipe.check()?;
        let Recipe { dialect, page_bytes, checksum_bytes, split_class, .. } = *recipe;
        let rules = PageRules::new(dialect, page_bytes, checksum_bytes, split_class)?;
        let mut insertion = Insertion::new(rules, recipe.append);
        if let Some(named) = &recipe.database {
            insertion.make_database();
            if named.own_transaction {
                insertion.commit().map_err(outgrown)?;
            }
        }
        Ok(Self {
            insertion,
            keys: recipe.keys.reader(),
            values: recipe.values.reader(),
            longest_key_bytes: rules.longest_key_bytes(),
            first: 0,
        })
    }

    /// Puts the next record. Returns the leaf that this finished, if it did.
    #[inline]
    pub(crate) fn put(&mut self) -> Result<Option<Finished<'_>>, String> {
        let (key_bytes, value_bytes) = (self.keys.next()?, self.values.next()?);
        if key_bytes == 0 || u64::from(key_bytes) > self.longest_key_bytes {
            let longest = self.longest_key_bytes;
            return Err(format!("a key of {key_bytes} bytes where LMDB takes 1 to {longest}"));
        }
        if !self.insertion.put(key_bytes as u16, value_bytes) {
            return Ok(None);
        }
        let page = self.insertion.finished();
        let first = self.first;
        self.first += page.records.len() as u64;
        Ok(Some(Finished { first, page, last_page: self.insertion.last_page() }))
    }

    /// Ends the transaction.
    pub(crate) fn commit(&mut self) -> Result<(), String> {
        self.insertion.commit().map_err(outgrown)
    }

    /// Ends the last transaction. The last leaf is final now.
    pub(crate) fn finish(&mut self) -> Result<(InsertionResult, Finished<'_>), String> {
        let outcome = self.insertion.finish().map_err(outgrown)?;
        let last = Finished { first: self.first, page: self.insertion.leaf(), last_page: outcome.last_page };
        Ok((outcome, last))
    }
}

fn outgrown(_: Outgrown) -> String {
    "the list of free pages outgrows its page".to_owned()
}

/// Computes the layout that `recipe` leads to. `each` gets the leaves in key order; an error of it
/// ends the work.
pub(crate) fn compute<E: From<String>>(
    recipe: &Recipe,
    mut each: impl FnMut(&Finished<'_>) -> Result<(), E>,
) -> Result<InsertionResult, E> {
    let mut writing = Writing::begin(recipe)?;
    let mut transactions = recipe.transactions.iter();
    let mut left = transactions.next().unwrap_or(u64::MAX);
    for _ in 0..recipe.records {
        if let Some(finished) = writing.put()? {
            each(&finished)?;
        }
        left -= 1;
        if left == 0 {
            writing.commit()?;
            left = transactions.next().unwrap_or(u64::MAX);
        }
    }
    let (outcome, last) = writing.finish()?;
    each(&last)?;
    Ok(outcome)
}

impl Recipe {
    /// Computes where all records lie, and calls `each` in key order: where the value starts in the
    /// file \[bytes\], its length \[bytes\], and whether it has pages of its own. Returns the
    /// number of pages of the file.
    pub fn places(&self, each: impl FnMut(u64, u64, bool)) -> Result<u64, String> {
        self.places_by_leaf(|_| (), each)
    }

    /// Like [`Recipe::places`]; `leaf` gets the number of each leaf's page, before its records.
    pub fn places_by_leaf(
        &self,
        mut leaf: impl FnMut(u64),
        mut each: impl FnMut(u64, u64, bool),
    ) -> Result<u64, String> {
        let offsets = Offsets::new(self.page_bytes, self.dialect.header_bytes());
        let outcome = compute(self, |found| {
            leaf(found.page.page);
            for record in &found.page.records {
                each(offsets.value(found.page.page, record), u64::from(record.value_bytes), record.big);
            }
            Ok::<(), String>(())
        })?;
        Ok(outcome.last_page + 1)
    }
}

/// Digest of where all records lie: 128 bits over the offset and length of each value, in key
/// order.
#[derive(Clone, Default)]
pub(crate) struct PlaceDigest {
    hash: Xxh3,
    pending: Vec<u8>,
}

impl PlaceDigest {
    /// Takes the next value, which starts at `offset` of the file.
    #[inline]
    pub(crate) fn push(&mut self, offset: u64, length: u64) {
        self.pending.extend_from_slice(&offset.to_le_bytes());
        self.pending.extend_from_slice(&length.to_le_bytes());
        if self.pending.len() >= DIGEST_BYTES {
            self.hash.update(&self.pending);
            self.pending.clear();
        }
    }

    /// The digest of all values so far.
    pub(crate) fn finish(&self) -> u128 {
        let mut hash = self.hash.clone();
        hash.update(&self.pending);
        hash.digest128()
    }
}

/// Bytes that are hashed at once: a call costs more than a few numbers.
const DIGEST_BYTES: usize = 4096;

/// What turns places on pages into places in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offsets {
    page_bytes: u64,
    header_bytes: u64,
}

impl Offsets {
    pub(crate) fn new(page_bytes: u32, header_bytes: u32) -> Self {
        Self { page_bytes: u64::from(page_bytes), header_bytes: u64::from(header_bytes) }
    }

    /// Where a value starts in the file, of a record on leaf `leaf` \[bytes\].
    #[inline]
    pub(crate) fn value(&self, leaf: u64, record: &Placed) -> u64 {
        if record.big {
            record.at * self.page_bytes + self.header_bytes
        } else {
            leaf * self.page_bytes + record.at
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::facts::{NamedDatabase, SplitClass, Transactions};
    use crate::lengths::Lengths;
    use forebay_format::lmdb::{Dialect, Version};

    fn recipe(records: u64, values: Lengths, transactions: Transactions) -> Recipe {
        Recipe {
            dialect: Dialect::ALL[0],
            page_bytes: 4096,
            checksum_bytes: 0,
            split_class: SplitClass::Modern,
            append: false,
            database: None,
            records,
            keys: Lengths::Constant(8),
            key_pattern: None,
            values,
            transactions,
            excluded: Vec::new(),
        }
    }

    fn outcome(recipe: &Recipe) -> InsertionResult {
        compute(recipe, |_| Ok::<(), String>(())).expect("a history that LMDB can have")
    }

    #[test]
    fn records_of_3073_bytes_committed_every_200_lie_where_lmdb_puts_them() {
        // As LMDB 0.9.36 leaves the file after each of the first transactions; the fourth uses
        // pages of the first again.
        for (records, root, last_page) in [(200, 160, 204), (400, 205, 408), (600, 409, 613), (800, 159, 815)]
        {
            let found = outcome(&recipe(records, Lengths::Constant(3073), Transactions::every(200)));
            assert_eq!((found.root, found.transaction), (root, records / 200));
            if records < 600 {
                assert_eq!(found.last_page, last_page);
            }
        }
    }

    #[test]
    fn leaves_follow_each_other_without_gap_or_overlap() {
        let recipe = recipe(10_000, Lengths::Constant(3073), Transactions::every(1000));
        let (mut records, mut pages) = (0, Vec::new());
        let outcome = compute(&recipe, |leaf| {
            assert_eq!(leaf.first, records);
            records += leaf.page.records.len() as u64;
            pages.push(leaf.page.page);
            pages.extend(leaf.page.records.iter().map(|record| record.at));
            Ok::<(), String>(())
        })
        .expect("a plain history");
        assert_eq!((records, outcome.leaf_pages, outcome.depth), (10_000, 65, 2));
        pages.sort_unstable();
        assert!(pages.windows(2).all(|pair| pair[0] < pair[1]), "no page is used twice");
        assert!(pages.iter().all(|page| (2..=outcome.last_page).contains(page)));
    }

    #[test]
    fn how_often_the_writer_committed_does_not_change_the_shape_of_the_tree() {
        let shape = |every| {
            let found = outcome(&recipe(5000, Lengths::Constant(700), Transactions::every(every)));
            (found.depth, found.leaf_pages, found.branch_pages, found.overflow_pages)
        };
        assert!([7, 100, 5000].iter().all(|every| shape(*every) == shape(1)));
    }

    proptest! {
        #[test]
        fn any_recipe_is_carried_out_or_refused(
            dialect in 0_usize..8,
            page_bits in 0_u32..17,
            checksum_bytes in prop_oneof![4 => Just(0_u32), 1 => 0_u32..400],
            records in 1_u64..600,
            keys in prop_oneof![1_u32..40, 0_u32..70_000],
            values in proptest::collection::vec(prop_oneof![0_u32..40, 0_u32..9000, any::<u32>()], 1..20),
            every in 1_u64..300,
            append: bool,
            named in proptest::option::of(any::<bool>()),
            old: bool,
        ) {
            let values: Lengths = (0..records).map(|record| values[record as usize % values.len()]).collect();
            let recipe = Recipe {
                dialect: Dialect::ALL[dialect],
                page_bytes: 1 << page_bits,
                checksum_bytes,
                split_class: if old { SplitClass::V0_9_9 } else { SplitClass::Modern },
                append,
                database: named.map(|own_transaction| NamedDatabase { name: "x".into(), own_transaction }),
                keys: Lengths::Constant(keys),
                ..recipe(records, values, Transactions::every(every))
            };
            let mut seen = 0;
            let found = compute(&recipe, |leaf| {
                for record in &leaf.page.records {
                    let end = record.at + u64::from(record.value_bytes);
                    assert!(record.big || end <= u64::from(recipe.page_bytes), "{record:?}");
                }
                seen += leaf.page.records.len() as u64;
                Ok::<(), String>(())
            });
            match found {
                Ok(outcome) => prop_assert_eq!((seen, outcome.entries), (records, records)),
                Err(reason) => {
                    let odd = page_bits < 12 || keys == 0 || keys > 400 || checksum_bytes > 0 || page_bits > 15
                        || (old && recipe.dialect.version == Version::V1_0);
                    prop_assert!(odd, "{}", reason);
                }
            }
        }
    }
}
