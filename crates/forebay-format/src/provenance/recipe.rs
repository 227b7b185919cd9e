//! The recipe: the few facts from which an LMDB file's layout can be computed.
//!
//! It says what was inserted and when the writer committed, for histories that only insert, in the order of the keys. As
//! bytes it takes 20 to 60 for data of one size ([`Recipe::encode`]; to the byte in `docs/provenance.md`); lists of
//! lengths stand beside it and are named by their digest. As TOML a user states it ([`super::stated`]).
//!
//! Nothing in the bytes is believed: counts are bounded before anything is made of them, and a recipe says nothing about
//! a file before its layout was held against that file.

use std::sync::Arc;

use super::lengths::{LengthList, Lengths, MOST_RUNS};
use crate::lmdb::{Dialect, Version};
use crate::sidecar::varint::{Bytes, put};

/// First byte of an encoded recipe.
const VERSION: u8 = 1;

/// Longest name of a database, and longest text of a key pattern \[bytes\].
const LONGEST_TEXT_BYTES: u64 = 1 << 11;

/// Most runs of transactions and most records that are no samples.
const MOST_ITEMS: u64 = 1 << 20;

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
    /// Records in every transaction behind them, of which the last may have fewer; `None`: one for all the rest.
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
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        let first = self.first.iter().flat_map(|(records, times)| {
            std::iter::repeat_n(*records, usize::try_from(*times).unwrap_or(usize::MAX))
        });
        first.chain(std::iter::repeat(self.then.unwrap_or(u64::MAX)))
    }
}

/// Texts of keys: a prefix, the record's number in decimal digits, a suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPattern {
    /// In front of the number.
    pub prefix: Vec<u8>,
    /// Digits of the number, zeros in front.
    pub digits: u32,
    /// Behind the number.
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

    /// Length of all keys; `None` where the numbers of so many records need more digits.
    pub(super) fn key_bytes(&self, records: u64) -> Option<u32> {
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
    /// Whether it was made in a transaction of its own, before that of the first record.
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
    /// Records, those that are no samples included.
    pub records: u64,
    /// Lengths of the keys \[bytes\].
    pub keys: Lengths,
    /// Their texts, where these follow a pattern.
    pub key_pattern: Option<KeyPattern>,
    /// Lengths of the values \[bytes\].
    pub values: Lengths,
    /// When the writer committed.
    pub transactions: Transactions,
    /// Records that are no samples: number among those that the index leaves out, and which record it is.
    pub excluded: Vec<(u8, u64)>,
}

impl Recipe {
    /// The recipe as bytes, without the lists that it names.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        let dialect = Dialect::ALL.iter().position(|dialect| *dialect == self.dialect).unwrap_or_default();
        let named = self.database.as_ref();
        out.push(
            dialect as u8
                | u8::from(self.append) << 3
                | u8::from(self.split_class == SplitClass::V0_9_9) << 4
                | u8::from(named.is_some()) << 5
                | u8::from(named.is_some_and(|named| named.own_transaction)) << 6
                | u8::from(self.key_pattern.is_some()) << 7,
        );
        out.push(self.page_bytes.trailing_zeros() as u8);
        put(&mut out, u64::from(self.checksum_bytes));
        put(&mut out, self.records);
        if let Some(named) = named {
            put_text(&mut out, named.name.as_bytes());
        }
        put_lengths(&mut out, &self.keys);
        if let Some(pattern) = &self.key_pattern {
            put_text(&mut out, &pattern.prefix);
            put_text(&mut out, &pattern.suffix);
            put(&mut out, u64::from(pattern.digits));
            put(&mut out, pattern.start);
        }
        put_lengths(&mut out, &self.values);
        put_pairs(&mut out, self.transactions.first.iter().copied());
        put(&mut out, self.transactions.then.unwrap_or(0));
        put_pairs(&mut out, self.excluded.iter().map(|(name, record)| (u64::from(*name), *record)));
        out
    }

    /// Reads what [`Self::encode`] wrote. `lists` finds the list with a digest.
    pub fn decode(
        bytes: &[u8],
        lists: &dyn Fn(u128) -> Option<Arc<LengthList>>,
    ) -> Result<Self, RecipeFault> {
        let mut bytes = Bytes::new(bytes);
        let recipe = decode(&mut bytes, lists)?;
        if bytes.left() > 0 {
            return Err(RecipeFault(format!("{} bytes too many", bytes.left())));
        }
        recipe.check().map_err(RecipeFault)?;
        Ok(recipe)
    }

    /// Says what cannot be.
    pub(super) fn check(&self) -> Result<(), String> {
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
    pub(super) fn lists(&self) -> impl Iterator<Item = &Arc<LengthList>> {
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
#[error("it is no recipe: {0}")]
pub struct RecipeFault(pub(super) String);

fn decode(
    bytes: &mut Bytes<'_>,
    lists: &dyn Fn(u128) -> Option<Arc<LengthList>>,
) -> Result<Recipe, RecipeFault> {
    let short = || RecipeFault("it ends too early".to_owned());
    let wrong = |text: String| Err(RecipeFault(text));
    match bytes.byte() {
        Some(VERSION) => {}
        Some(other) => return wrong(format!("version {other}; this Forebay reads version {VERSION}")),
        None => return Err(short()),
    }
    let flags = bytes.byte().ok_or_else(short)?;
    let page_bits = bytes.byte().ok_or_else(short)?;
    if page_bits > 16 {
        return wrong(format!("pages of 2^{page_bits} bytes"));
    }
    let checksum_bytes = bytes.varint().ok_or_else(short)?;
    let Ok(checksum_bytes) = u32::try_from(checksum_bytes) else {
        return wrong(format!("checksums of {checksum_bytes} bytes"));
    };
    let records = bytes.varint().ok_or_else(short)?;
    let database = if flags & 0x20 != 0 {
        let Ok(name) = String::from_utf8(take_text(bytes)?) else {
            return wrong("a name that is no text".to_owned());
        };
        Some(NamedDatabase { name, own_transaction: flags & 0x40 != 0 })
    } else {
        None
    };
    let keys = take_lengths(bytes, lists)?;
    let key_pattern = if flags & 0x80 != 0 {
        let (prefix, suffix) = (take_text(bytes)?, take_text(bytes)?);
        let digits = bytes.varint().filter(|digits| *digits <= 20).ok_or_else(short)? as u32;
        Some(KeyPattern { prefix, digits, suffix, start: bytes.varint().ok_or_else(short)? })
    } else {
        None
    };
    let values = take_lengths(bytes, lists)?;
    let first = take_pairs(bytes)?;
    let then = bytes.varint().ok_or_else(short)?;
    let mut excluded = Vec::new();
    for (name, record) in take_pairs(bytes)? {
        let Ok(name) = u8::try_from(name) else { return wrong(format!("name {name}")) };
        excluded.push((name, record));
    }
    Ok(Recipe {
        dialect: Dialect::ALL[usize::from(flags & 7)],
        page_bytes: 1 << page_bits,
        checksum_bytes,
        split_class: if flags & 0x10 == 0 { SplitClass::Modern } else { SplitClass::V0_9_9 },
        append: flags & 8 != 0,
        database,
        records,
        keys,
        key_pattern,
        values,
        transactions: Transactions { first, then: Some(then).filter(|then| *then > 0) },
        excluded,
    })
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put(out, text.len() as u64);
    out.extend(text);
}

fn take_text(bytes: &mut Bytes<'_>) -> Result<Vec<u8>, RecipeFault> {
    let length = bytes.varint().filter(|length| *length <= LONGEST_TEXT_BYTES);
    let text = length.and_then(|length| bytes.take(length as usize));
    text.map(<[u8]>::to_vec).ok_or_else(|| RecipeFault("a text that is cut short or too long".to_owned()))
}

fn put_pairs(out: &mut Vec<u8>, pairs: impl ExactSizeIterator<Item = (u64, u64)>) {
    put(out, pairs.len() as u64);
    for (left, right) in pairs {
        put(out, left);
        put(out, right);
    }
}

fn take_pairs(bytes: &mut Bytes<'_>) -> Result<Vec<(u64, u64)>, RecipeFault> {
    // A pair takes two bytes or more.
    let most = MOST_ITEMS.min(bytes.left() as u64 / 2);
    let pairs = bytes.varint().filter(|count| *count <= most).and_then(|count| {
        (0..count).map(|_| Some((bytes.varint()?, bytes.varint()?))).collect::<Option<Vec<_>>>()
    });
    pairs.ok_or_else(|| RecipeFault("a list that is cut short".to_owned()))
}

fn put_lengths(out: &mut Vec<u8>, lengths: &Lengths) {
    match lengths {
        Lengths::Constant(bytes) => {
            out.push(0);
            put(out, u64::from(*bytes));
        }
        Lengths::Runs(runs) => {
            out.push(1);
            put_pairs(out, runs.iter().map(|(bytes, count)| (u64::from(*bytes), *count)));
        }
        Lengths::List(list) => {
            out.push(2);
            out.extend(list.digest().to_le_bytes());
        }
    }
}

fn take_lengths(
    bytes: &mut Bytes<'_>,
    lists: &dyn Fn(u128) -> Option<Arc<LengthList>>,
) -> Result<Lengths, RecipeFault> {
    let wrong = |text: String| Err(RecipeFault(text));
    let length =
        |length: u64| u32::try_from(length).map_err(|_| RecipeFault(format!("a length of {length} bytes")));
    match bytes.byte() {
        Some(0) => match bytes.varint() {
            Some(constant) => Ok(Lengths::Constant(length(constant)?)),
            None => wrong("it ends too early".to_owned()),
        },
        Some(1) => {
            let pairs = take_pairs(bytes)?;
            if pairs.len() > MOST_RUNS {
                return wrong(format!("{} runs of lengths, at most {MOST_RUNS} are written", pairs.len()));
            }
            let runs = pairs.into_iter().map(|(bytes, count)| Ok((length(bytes)?, count)));
            Ok(Lengths::Runs(runs.collect::<Result<_, RecipeFault>>()?))
        }
        Some(2) => {
            let digest = bytes.take(16).and_then(|digest| <[u8; 16]>::try_from(digest).ok());
            let Some(digest) = digest.map(u128::from_le_bytes) else {
                return wrong("it ends too early".to_owned());
            };
            match lists(digest) {
                Some(list) => Ok(Lengths::List(list)),
                None => wrong(format!("the list of lengths {digest:032x} is not beside it")),
            }
        }
        other => wrong(format!("lengths of kind {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lmdb::{ByteOrder, Word};

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

    fn full() -> Recipe {
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
    fn a_recipe_of_uniform_data_takes_at_most_200_bytes() {
        assert_eq!(recipe().encode().len(), 17);
        assert!(full().encode().len() <= 200, "{} bytes", full().encode().len());
    }

    #[test]
    fn a_recipe_comes_back_and_a_cut_one_is_refused() {
        for recipe in [recipe(), full()] {
            let bytes = recipe.encode();
            assert_eq!(Recipe::decode(&bytes, &|_| None).expect("its own bytes"), recipe);
            for length in 0..bytes.len() {
                assert!(Recipe::decode(&bytes[..length], &|_| None).is_err(), "{length}");
            }
            assert!(Recipe::decode(&[&bytes[..], &[0]].concat(), &|_| None).is_err());
        }
    }

    #[test]
    fn a_list_is_found_by_its_digest() {
        let values: Lengths = (0..100).collect();
        let with_list = Recipe { records: 100, values: values.clone(), ..recipe() };
        let Lengths::List(list) = &values else { panic!("{values:?}") };
        let find = |digest| (digest == list.digest()).then(|| Arc::clone(list));
        assert_eq!(Recipe::decode(&with_list.encode(), &find), Ok(with_list.clone()));
        let fault = Recipe::decode(&with_list.encode(), &|_| None).expect_err("no list");
        assert!(fault.to_string().contains("is not beside it"), "{fault}");
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

    proptest! {
        #[test]
        fn any_bytes_are_a_recipe_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            if let Ok(recipe) = Recipe::decode(&bytes, &|_| None) {
                prop_assert!(recipe.check().is_ok());
                prop_assert!(recipe.encode().len() <= 2 * bytes.len() + 8);
            }
        }

        #[test]
        fn a_changed_recipe_is_another_recipe_or_none(at in 0_usize..200, byte: u8) {
            let mut bytes = full().encode();
            let at = at % bytes.len();
            if bytes[at] != byte {
                bytes[at] = byte;
                prop_assert_ne!(Recipe::decode(&bytes, &|_| None), Ok(full()));
            }
        }
    }
}
