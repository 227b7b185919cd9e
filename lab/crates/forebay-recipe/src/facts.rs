//! The recipe: the few facts from which an LMDB file's layout can be computed.
//!
//! It describes the insertions and commits of a history that only inserts, in the order of the
//! keys. As bytes it takes 20 to 60 for data of one size (`encoding.rs`); lists of lengths lie
//! beside it and are named by their digest. Users declare it as TOML (`declared.rs`). A recipe is
//! no statement about a file until its layout has been compared with that file.

use std::sync::Arc;

use forebay_format::lmdb::{Dialect, Version};

use crate::lengths::{LengthList, Lengths};

/// Which libraries put records in the same places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitClass {
    /// LMDB 0.9.11 and later, and LMDB 1.0.
    Modern,
    /// LMDB 0.9.9 and 0.9.10, which let values one byte longer stay on a leaf.
    V0_9_9,
}

/// When the writer committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transactions {
    /// The first transactions: records in each, and how many of them follow each other.
    pub first: Vec<(u64, u64)>,
    /// Records in every later transaction, of which the last may have fewer; `None`: one for all
    /// the rest.
    pub then: Option<u64>,
}

impl Transactions {
    /// A commit after every `records` records.
    pub fn every(records: u64) -> Self {
        Self { first: Vec::new(), then: Some(records) }
    }

    /// Transactions of these sizes, and one for what is left.
    pub fn sizes(sizes: &[u64]) -> Self {
        let mut first: Vec<(u64, u64)> = Vec::new();
        for size in sizes {
            match first.last_mut() {
                Some((records, times)) if records == size => *times += 1,
                _ => first.push((*size, 1)),
            }
        }
        Self { first, then: None }
    }

    /// Sizes of the transactions, without an end where the last ones repeat.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        let first = self.first.iter().flat_map(|(records, times)| {
            std::iter::repeat_n(*records, usize::try_from(*times).unwrap_or(usize::MAX))
        });
        first.chain(std::iter::repeat(self.then.unwrap_or(u64::MAX)))
    }
}

/// Texts of keys: a prefix, the record's number in decimal digits, a suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPattern {
    /// Before the number.
    pub prefix: Vec<u8>,
    /// Digits of the number, zeros in front.
    pub digits: u32,
    /// After the number.
    pub suffix: Vec<u8>,
    /// The number of record 0.
    pub start: u64,
}

impl KeyPattern {
    /// The key of record `record`.
    pub fn key(&self, record: u64) -> Vec<u8> {
        let number = format!("{:0width$}", self.start.saturating_add(record), width = self.digits as usize);
        [&self.prefix, number.as_bytes(), &self.suffix].concat()
    }

    /// Length of all keys; `None` if the numbers of this many records need more digits.
    pub(crate) fn key_bytes(&self, records: u64) -> Option<u32> {
        let last = self.start.checked_add(records.saturating_sub(1))?;
        (last.to_string().len() <= self.digits as usize)
            .then_some(self.prefix.len() as u32 + self.digits + self.suffix.len() as u32)
    }
}

/// A database with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDatabase {
    /// Its name.
    pub name: String,
    /// Whether it was made in a separate transaction, before that of the first record.
    pub own_transaction: bool,
}

/// What was inserted, and when it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// How the file writes its structures.
    pub dialect: Dialect,
    /// Length of a page \[bytes\].
    pub page_bytes: u32,
    /// Length of the checksum of each page \[bytes\].
    pub checksum_bytes: u32,
    /// Which libraries make this layout.
    pub split_class: SplitClass,
    /// Whether records were put with `MDB_APPEND`.
    pub append: bool,
    /// The database, if it is not the main one.
    pub database: Option<NamedDatabase>,
    /// Records, excluded ones included.
    pub records: u64,
    /// Lengths of the keys \[bytes\].
    pub keys: Lengths,
    /// Their texts, where these follow a pattern.
    pub key_pattern: Option<KeyPattern>,
    /// Lengths of the values \[bytes\].
    pub values: Lengths,
    /// When the writer committed.
    pub transactions: Transactions,
    /// Records that are no samples: number of the name among those that the index excludes, and
    /// number of the record.
    pub excluded: Vec<(u8, u64)>,
}

impl Recipe {
    /// Checks for impossible values.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.records == 0 {
            return Err("no records".to_owned());
        }
        for (what, lengths) in [("keys", &self.keys), ("values", &self.values)] {
            if let Some(count) = lengths.count().filter(|count| *count != self.records) {
                return Err(format!("lengths of {count} {what} for {} records", self.records));
            }
        }
        if let Some(pattern) = &self.key_pattern {
            let length = pattern.key_bytes(self.records);
            if length.is_none() || self.keys != Lengths::Constant(length.unwrap_or(0)) {
                return Err(format!("{} digits for the numbers of {} keys", pattern.digits, self.records));
            }
        }
        if self.transactions.first.iter().any(|(records, times)| *records == 0 || *times == 0)
            || self.transactions.then == Some(0)
        {
            return Err("a transaction without records".to_owned());
        }
        if self.database.as_ref().is_some_and(|named| named.name.is_empty()) {
            return Err("a database with an empty name".to_owned());
        }
        if !self.excluded.is_sorted_by(|left, right| left.1 < right.1)
            || self.excluded.last().is_some_and(|(_, record)| *record >= self.records)
        {
            return Err("records without samples that are out of order or not there".to_owned());
        }
        Ok(())
    }

    /// The lists that the recipe names.
    pub(crate) fn lists(&self) -> impl Iterator<Item = &Arc<LengthList>> {
        [&self.keys, &self.values].into_iter().filter_map(|lengths| match lengths {
            Lengths::List(list) => Some(list),
            _ => None,
        })
    }

    /// The recipe in one line, for people.
    pub fn describe(&self) -> String {
        let lengths = |what: &str, lengths: &Lengths| match lengths {
            Lengths::Constant(bytes) => format!("{what} of {bytes} bytes"),
            Lengths::Runs(runs) => format!("{what} in {} runs of one length", runs.len()),
            Lengths::List(list) => format!("{what} of listed lengths ({} bytes)", list.bytes().len()),
        };
        let Transactions { first, then } = &self.transactions;
        let commits = match (first.len(), then) {
            (0, None) => "one transaction".to_owned(),
            (0, Some(1)) => "a commit after every record".to_owned(),
            (0, Some(every)) => format!("a commit every {every} records"),
            (_, None) => {
                format!("{} listed transactions", first.iter().map(|(_, times)| times).sum::<u64>() + 1)
            }
            (_, Some(every)) => {
                let listed: u64 = first.iter().map(|(_, times)| times).sum();
                format!("{listed} listed transactions, then a commit every {every} records")
            }
        };
        let library = match (self.dialect.version, self.split_class) {
            (Version::V1_0, _) => "LMDB 1.0",
            (Version::V0_9, SplitClass::Modern) => "LMDB 0.9.11 or later",
            (Version::V0_9, SplitClass::V0_9_9) => "LMDB 0.9.9 or 0.9.10",
        };
        let append = if self.append { ", appended" } else { "" };
        format!(
            "{} records, {}, {}, {commits}{append}; {library}, pages of {} bytes",
            self.records,
            lengths("keys", &self.keys),
            lengths("values", &self.values),
            self.page_bytes
        )
    }
}

/// Bytes that are no recipe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a recipe: {0}")]
pub struct RecipeError(pub(crate) String);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use forebay_format::lmdb::{ByteOrder, Word};

    pub(crate) fn recipe() -> Recipe {
        Recipe {
            dialect: Dialect { version: Version::V0_9, word: Word::Bits64, byte_order: ByteOrder::Little },
            page_bytes: 4096,
            checksum_bytes: 0,
            split_class: SplitClass::Modern,
            append: false,
            database: None,
            records: 50_000_000,
            keys: Lengths::Constant(8),
            key_pattern: None,
            values: Lengths::Constant(3073),
            transactions: Transactions::every(1000),
            excluded: Vec::new(),
        }
    }

    pub(crate) fn full() -> Recipe {
        let pattern = KeyPattern {
            prefix: b"train/image-".to_vec(),
            digits: 9,
            suffix: b".jpg".to_vec(),
            start: 1_000_000,
        };
        Recipe {
            append: true,
            database: Some(NamedDatabase {
                name: "images of the training set".into(),
                own_transaction: true,
            }),
            keys: Lengths::Constant(25),
            key_pattern: Some(pattern),
            transactions: Transactions { first: vec![(10, 1), (999, 3)], then: Some(1000) },
            excluded: vec![(2, 49_999_999)],
            values: Lengths::Runs(vec![(196_630, 49_999_999), (7, 1)]),
            ..recipe()
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (wrong, what) in [
            (Recipe { records: 0, ..recipe() }, "no records"),
            (Recipe { values: Lengths::Runs(vec![(5, 7)]), ..recipe() }, "lengths of 7 values"),
            (Recipe { transactions: Transactions::every(0), ..recipe() }, "without records"),
            (Recipe { excluded: vec![(0, 50_000_000)], ..recipe() }, "not there"),
            (Recipe { keys: Lengths::Constant(26), ..full() }, "digits"),
            (Recipe { records: 999_000_001, values: Lengths::Constant(1), ..full() }, "digits"),
        ] {
            let found = wrong.check().expect_err(what);
            assert!(found.contains(what), "{found}");
        }
    }

    #[test]
    fn a_pattern_makes_the_keys_it_says() {
        let pattern = KeyPattern { prefix: b"a".to_vec(), digits: 3, suffix: b"z".to_vec(), start: 7 };
        assert_eq!(pattern.key(5), b"a012z");
        assert_eq!((pattern.key_bytes(993), pattern.key_bytes(994)), (Some(5), None));
    }
}
