//! The Arrow schema that writers of Parquet keep in the footer: what Parquet itself does not say.

use std::collections::HashMap;

use forebay_types::Field;

use super::leaf::{Candidate, NestingKind, candidates};
use super::message::schema_of;

/// Fields by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrowFields {
    pub(crate) fields: HashMap<String, Field>,
    /// Lengths of the lists around the values of those that are arrays, from the outermost.
    pub(crate) lists: HashMap<String, Vec<u64>>,
}

impl ArrowFields {
    /// Reads a message in base64. What it does not say is left out: it only refines types.
    pub(crate) fn of_base64(text: &str) -> Self {
        let mut found = Self::default();
        let Some(schema) = decode_base64(text).and_then(|bytes| schema_of(&bytes).ok()) else { return found };
        for Candidate { name, leaf, .. } in candidates(&schema).0 {
            let Ok(leaf) = leaf else { continue };
            let lengths: Option<Vec<u64>> = leaf
                .levels
                .iter()
                .filter_map(|level| match &level.kind {
                    NestingKind::FixedList { length } => Some(Some(*length)),
                    NestingKind::List { length, .. } => Some(*length),
                    _ => None,
                })
                .collect();
            if let Some(lengths) = lengths.filter(|lengths| !lengths.is_empty()) {
                found.lists.insert(name.clone(), lengths);
            }
            found.fields.insert(name, leaf.field);
        }
        found
    }
}

/// The bytes of base64 (RFC 4648); `None` if it is none.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').bytes().map(|byte| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    });
    let digits: Vec<u8> = digits.collect::<Option<_>>()?;
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let bits = group
            .iter()
            .enumerate()
            .fold(0_u32, |bits, (place, digit)| bits | u32::from(*digit) << (18 - 6 * place));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len().max(1)]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_any_length_is_decoded() {
        for (text, bytes) in
            [("", &b""[..]), ("AA==", b"\0"), ("Zm8=", b"fo"), ("Zm9v", b"foo"), ("/+8", b"\xff\xef")]
        {
            assert_eq!(decode_base64(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(decode_base64("a b"), None);
    }

    #[test]
    fn what_is_no_schema_says_nothing() {
        for text in ["", "AAAA", "/////wAAAAA=", "?"] {
            assert!(ArrowFields::of_base64(text).fields.is_empty(), "{text}");
        }
    }
}
