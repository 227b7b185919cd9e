//! A recipe as bytes: 20 to 60 for data of one size; to the byte in `docs/provenance.md`.
//!
//! The bytes are untrusted input: counts are bounded before use, and impossible values are refused.

use std::sync::Arc;

use forebay_format::lmdb::Dialect;
use forebay_format::varint::{Bytes, put};

use crate::facts::{KeyPattern, NamedDatabase, Recipe, RecipeError, SplitClass, Transactions};
use crate::lengths::{LengthList, Lengths, MAX_RUNS};

/// First byte of an encoded recipe.
const VERSION: u8 = 1;

/// Longest name of a database, and longest string of a key pattern \[bytes\].
const MAX_TEXT_BYTES: u64 = 1 << 11;

/// Most runs of transactions and most records that are no samples.
const MAX_ITEMS: u64 = 1 << 20;

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
    ) -> Result<Self, RecipeError> {
        let mut bytes = Bytes::new(bytes);
        let recipe = decode(&mut bytes, lists)?;
        if bytes.left() > 0 {
            return Err(RecipeError(format!("{} bytes too many", bytes.left())));
        }
        recipe.check().map_err(RecipeError)?;
        Ok(recipe)
    }
}

fn decode(
    bytes: &mut Bytes<'_>,
    lists: &dyn Fn(u128) -> Option<Arc<LengthList>>,
) -> Result<Recipe, RecipeError> {
    let short = || RecipeError("it ends too early".to_owned());
    let wrong = |text: String| Err(RecipeError(text));
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
            return wrong("a name that is not UTF-8".to_owned());
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

fn take_text(bytes: &mut Bytes<'_>) -> Result<Vec<u8>, RecipeError> {
    let length = bytes.varint().filter(|length| *length <= MAX_TEXT_BYTES);
    let text = length.and_then(|length| bytes.take(length as usize));
    text.map(<[u8]>::to_vec).ok_or_else(|| RecipeError("a string that is truncated or too long".to_owned()))
}

fn put_pairs(out: &mut Vec<u8>, pairs: impl ExactSizeIterator<Item = (u64, u64)>) {
    put(out, pairs.len() as u64);
    for (left, right) in pairs {
        put(out, left);
        put(out, right);
    }
}

fn take_pairs(bytes: &mut Bytes<'_>) -> Result<Vec<(u64, u64)>, RecipeError> {
    // A pair takes two bytes or more.
    let most = MAX_ITEMS.min(bytes.left() as u64 / 2);
    let pairs = bytes.varint().filter(|count| *count <= most).and_then(|count| {
        (0..count).map(|_| Some((bytes.varint()?, bytes.varint()?))).collect::<Option<Vec<_>>>()
    });
    pairs.ok_or_else(|| RecipeError("a truncated list".to_owned()))
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
) -> Result<Lengths, RecipeError> {
    let wrong = |text: String| Err(RecipeError(text));
    let length =
        |length: u64| u32::try_from(length).map_err(|_| RecipeError(format!("a length of {length} bytes")));
    match bytes.byte() {
        Some(0) => match bytes.varint() {
            Some(constant) => Ok(Lengths::Constant(length(constant)?)),
            None => wrong("it ends too early".to_owned()),
        },
        Some(1) => {
            let pairs = take_pairs(bytes)?;
            if pairs.len() > MAX_RUNS {
                return wrong(format!("{} runs of lengths, at most {MAX_RUNS} are written", pairs.len()));
            }
            let runs = pairs.into_iter().map(|(bytes, count)| Ok((length(bytes)?, count)));
            Ok(Lengths::Runs(runs.collect::<Result<_, RecipeError>>()?))
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
    use crate::facts::tests::{full, recipe};

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
        let error = Recipe::decode(&with_list.encode(), &|_| None).expect_err("no list");
        assert!(error.to_string().contains("is not beside it"), "{error}");
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
