//! From a recipe to offsets: runs the writer again, record by record, and hands out every finished leaf.
//!
//! Memory: one leaf, one page per level, a stretch of each list. 50 million records take seconds.

use xxhash_rust::xxh3::Xxh3;

use super::free_list::Outgrown;
use super::insertion::{Insertion, LeafPage, Outcome, Placed};
use super::lengths::LengthReader;
use super::pages::PageRules;
use super::recipe::Recipe;

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
pub(super) struct Writing<'a> {
    pub(super) insertion: Insertion,
    keys: LengthReader<'a>,
    values: LengthReader<'a>,
    longest_key_bytes: u64,
    /// The first record of the last leaf.
    first: u64,
}

impl<'a> Writing<'a> {
    /// The file in front of the first record.
    pub(super) fn begin(recipe: &'a Recipe) -> Result<Self, String> {
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
    pub(super) fn put(&mut self) -> Result<Option<Finished<'_>>, String> {
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
    pub(super) fn commit(&mut self) -> Result<(), String> {
        self.insertion.commit().map_err(outgrown)
    }

    /// Ends the last transaction. The last leaf is final now.
    pub(super) fn finish(&mut self) -> Result<(Outcome, Finished<'_>), String> {
        let outcome = self.insertion.finish().map_err(outgrown)?;
        let last = Finished { first: self.first, page: self.insertion.leaf(), last_page: outcome.last_page };
        Ok((outcome, last))
    }
}

fn outgrown(_: Outgrown) -> String {
    "the list of free pages outgrows its page".to_owned()
}

/// Computes the layout that `recipe` leads to. `each` gets the leaves in key order; an error of it ends the work.
pub(crate) fn compute<E: From<String>>(
    recipe: &Recipe,
    mut each: impl FnMut(&Finished<'_>) -> Result<(), E>,
) -> Result<Outcome, E> {
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

/// Digest of where all records lie: 128 bits over the offset and length of each value, in key order.
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
