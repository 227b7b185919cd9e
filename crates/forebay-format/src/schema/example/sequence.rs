//! `TensorFlow`'s `tf.train.SequenceExample`, which is refused by name.
//!
//! Field 1 is the context, laid out like the features of an Example. A reader of Examples that
//! ignores unknown fields therefore drops all else: field 2, a message whose field 1 is repeated,
//! once per list: key 1 is the name, value 2 a message whose field 1 is repeated, one feature per
//! step. Source: tensorflow's `example.proto` and `feature.proto`.

use super::super::wire::{Fields, Message, Piece, Unknown};
use super::{Span, list_of};
use crate::SchemaError;

/// The field of the lists.
const LISTS: u64 = 2;

/// Names that a message lists.
const NAMED: usize = 4;

/// The names of the lists that a field of a message holds; `None` where it holds none.
pub(super) fn lists_of(message: &mut impl Message, number: u64, piece: Piece) -> Option<Vec<String>> {
    let Piece::Bytes { at, length } = piece else { return None };
    if number != LISTS || length == 0 {
        return None;
    }
    read(message, Span { at, length }).ok().filter(|names| !names.is_empty())
}

/// The error of a record that has such lists from byte `at` on.
pub(super) fn refusal(at: u64, lists: &[String]) -> SchemaError {
    let mut named: Vec<String> = lists.iter().take(NAMED).map(|name| format!("{name:?}")).collect();
    if lists.len() > NAMED {
        named.push(format!("{} more", lists.len() - NAMED));
    }
    let found = format!("a tf.train.SequenceExample with the feature lists {}", named.join(", "));
    SchemaError::new("record", at, "a tf.train.Example", found)
}

/// Reads lists to the last feature; what has any other field is something else.
fn read(message: &mut impl Message, lists: Span) -> Result<Vec<String>, SchemaError> {
    let mut names = Vec::new();
    let mut entries = lists.fields();
    while let Some((number, piece)) = entries.next(message)? {
        let mut entry = only(1, number, piece, &entries)?.fields();
        let mut name = Span::NONE;
        while let Some((number, piece)) = entry.next(message)? {
            if number == 1 {
                name = Span::of(piece, entry.place(), "name")?;
                continue;
            }
            let mut steps = only(2, number, piece, &entry)?.fields();
            while let Some((number, piece)) = steps.next(message)? {
                let feature = only(1, number, piece, &steps)?;
                list_of(message, feature, &Unknown::Refuse)?;
            }
        }
        let name = name.read(message)?;
        let name = String::from_utf8(name).map_err(|error| SchemaError::new("name", 0, "UTF-8", error))?;
        names.push(name);
    }
    Ok(names)
}

/// The range of the single field that is allowed there.
fn only(wanted: u64, number: u64, piece: Piece, fields: &Fields) -> Result<Span, SchemaError> {
    if number == wanted {
        Span::of(piece, fields.place(), "feature lists")
    } else {
        Err(SchemaError::new("feature lists", fields.place(), format!("field {wanted}"), number))
    }
}
