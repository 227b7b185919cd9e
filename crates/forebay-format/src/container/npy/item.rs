//! What an element of an array is: from the `descr` of a header to a type.

use std::collections::BTreeSet;

use forebay_types::Dtype;

use super::literal::Literal;

/// Most levels of structures within structures.
const DEEPEST: u32 = 16;

/// One element of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its size \[bytes\].
    pub bytes: u64,
    /// Its kind.
    pub kind: ItemKind,
}

/// How an element is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// As a number of this type, in the byte order of this machine.
    Number(Dtype),
    /// As bytes, of which numpy makes this type: a name such as `>f4` or `<M8[ns]`, or a list of
    /// fields as a Python literal.
    Described(String),
}

/// Why there is no such type.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ItemError {
    /// Elements that are Python objects: what is in the file is a pickle, which is never opened.
    Object,
    /// Anything else, as found.
    Unknown(String),
}

impl Item {
    /// Reads the value of `descr`.
    pub(super) fn parse(descr: &Literal) -> Result<Self, ItemError> {
        if let Literal::Text(name) = descr {
            return Self::named(name);
        }
        let bytes = bytes_of(descr, 0)?;
        Ok(Self { bytes, kind: ItemKind::Described(descr.to_string()) })
    }

    /// A type by its name: byte order, kind, size, and the unit of times.
    fn named(name: &str) -> Result<Self, ItemError> {
        let unknown = || ItemError::Unknown(format!("'{name}'"));
        let (order, rest) = match name.as_bytes().first() {
            Some(b'<' | b'|' | b'=') => ('<', &name[1..]),
            Some(b'>') => ('>', &name[1..]),
            _ => ('<', name),
        };
        let kind = rest.chars().next().ok_or_else(unknown)?;
        let (count, unit) = match rest[kind.len_utf8()..].split_once('[') {
            Some((count, unit)) => (count, unit.strip_suffix(']').ok_or_else(unknown)?),
            None => (&rest[kind.len_utf8()..], ""),
        };
        if kind == 'O' {
            return Err(ItemError::Object);
        }
        let digits = (1..=10).contains(&count.len()) && count.bytes().all(|byte| byte.is_ascii_digit());
        let count: u64 = count.parse().ok().filter(|_| digits).ok_or_else(unknown)?;
        let number = match (kind, count) {
            ('b', 1) => Some(Dtype::Bool),
            ('i', 1) => Some(Dtype::Int8),
            ('i', 2) => Some(Dtype::Int16),
            ('i', 4) => Some(Dtype::Int32),
            ('i', 8) => Some(Dtype::Int64),
            ('u', 1) => Some(Dtype::Uint8),
            ('u', 2) => Some(Dtype::Uint16),
            ('u', 4) => Some(Dtype::Uint32),
            ('u', 8) => Some(Dtype::Uint64),
            ('f', 2) => Some(Dtype::Float16),
            ('f', 4) => Some(Dtype::Float32),
            ('f', 8) => Some(Dtype::Float64),
            // Complex numbers, x86's long doubles and pairs of them, times, texts, bytes.
            ('c', 8 | 16 | 32) | ('f', 16) | ('M' | 'm', 8) | ('S' | 'a' | 'U' | 'V', _) => None,
            _ => return Err(unknown()),
        };
        let is_time = matches!(kind, 'M' | 'm');
        if !is_time && rest.contains('[') || is_time && !is_unit(unit) {
            return Err(unknown());
        }
        // The name is made anew, so that nothing but what was understood goes on.
        let (bytes, kind) = match number {
            Some(dtype) if order == '<' || count == 1 => (count, ItemKind::Number(dtype)),
            _ if is_time && unit.is_empty() => (count, ItemKind::Described(format!("{order}{kind}{count}"))),
            _ if is_time => (count, ItemKind::Described(format!("{order}{kind}{count}[{unit}]"))),
            _ => {
                let bytes = if kind == 'U' { 4 * count } else { count };
                (bytes, ItemKind::Described(format!("{order}{kind}{count}")))
            }
        };
        Ok(Self { bytes, kind })
    }
}

/// Whether this is a unit of time: a count, if any, and letters (`ns`, `25s`, `D`).
fn is_unit(unit: &str) -> bool {
    const UNITS: [&str; 15] =
        ["", "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as"];
    let letters = unit.trim_start_matches(|character: char| character.is_ascii_digit());
    let digits = unit.len() - letters.len();
    UNITS.contains(&letters) && digits <= 9 && (digits == 0 || !letters.is_empty())
}

/// Size of one element \[bytes\].
fn bytes_of(descr: &Literal, depth: u32) -> Result<u64, ItemError> {
    let unknown = || ItemError::Unknown(descr.to_string());
    match descr {
        Literal::Text(name) => Ok(Item::named(name)?.bytes),
        Literal::List(fields) if !fields.is_empty() && depth < DEEPEST => {
            let mut names = BTreeSet::new();
            let mut total = 0_u64;
            for field in fields {
                let Literal::Tuple(parts) = field else { return Err(unknown()) };
                let (name, descr, shape) = match parts.as_slice() {
                    [name, descr] => (name, descr, None),
                    [name, descr, shape] => (name, descr, Some(shape)),
                    _ => return Err(unknown()),
                };
                let name = match name {
                    Literal::Text(name) => name,
                    Literal::Tuple(names) => match names.as_slice() {
                        [Literal::Text(_title), Literal::Text(name)] => name,
                        _ => return Err(unknown()),
                    },
                    _ => return Err(unknown()),
                };
                // Fields without a name are gaps.
                if !name.is_empty() && !names.insert(name) {
                    return Err(ItemError::Unknown(format!("two fields named '{name}'")));
                }
                let bytes = shape.map_or(Some(1), count_of).and_then(|count| {
                    bytes_of(descr, depth + 1).map(|bytes| bytes.checked_mul(count)).transpose()
                });
                total = total.checked_add(bytes.ok_or_else(unknown)??).ok_or_else(unknown)?;
            }
            Ok(total)
        }
        _ => Err(unknown()),
    }
}

/// Number of elements of a field with a shape.
fn count_of(shape: &Literal) -> Option<u64> {
    match shape {
        Literal::Integer(count) => Some(*count),
        Literal::Tuple(extents) => extents.iter().try_fold(1_u64, |count, extent| match extent {
            Literal::Integer(extent) => count.checked_mul(*extent),
            _ => None,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(descr: &str) -> Result<Item, ItemError> {
        Item::parse(&Literal::parse(&descr.char_indices().collect::<Vec<_>>()).expect("a literal"))
    }

    #[test]
    fn numbers_of_this_machine_are_numbers_and_all_else_is_described() {
        for (descr, bytes, kind) in [
            ("'<f4'", 4, ItemKind::Number(Dtype::Float32)),
            ("'|u1'", 1, ItemKind::Number(Dtype::Uint8)),
            ("'>i1'", 1, ItemKind::Number(Dtype::Int8)),
            ("'|b1'", 1, ItemKind::Number(Dtype::Bool)),
            ("'f2'", 2, ItemKind::Number(Dtype::Float16)),
            ("'>i4'", 4, ItemKind::Described(">i4".into())),
            ("'<U2'", 8, ItemKind::Described("<U2".into())),
            ("'|S5'", 5, ItemKind::Described("<S5".into())),
            ("'<c16'", 16, ItemKind::Described("<c16".into())),
            ("'<M8[ns]'", 8, ItemKind::Described("<M8[ns]".into())),
            ("'>m8[25s]'", 8, ItemKind::Described(">m8[25s]".into())),
            ("'<M8'", 8, ItemKind::Described("<M8".into())),
        ] {
            assert_eq!(parse(descr), Ok(Item { bytes, kind }), "{descr}");
        }
        let descr =
            "[('a', '<i4'), (('a title', 'b'), [('c', '>f8', (2, 3)), ('d', '|S3', 2)]), ('', '|V7')]";
        let item = parse(descr).expect("structured");
        assert_eq!(item, Item { bytes: 4 + 48 + 6 + 7, kind: ItemKind::Described(descr.into()) });
    }

    #[test]
    fn other_types_are_refused() {
        for descr in ["'|O'", "'|O8'", "[('a', '<i4'), ('b', '|O')]"] {
            assert_eq!(parse(descr), Err(ItemError::Object), "{descr}");
        }
        for descr in [
            "''",
            "'<'",
            "'<f'",
            "'<f3'",
            "'<q8'",
            "'<f+4'",
            "'<f4[ns]'",
            "'<M8[eons]'",
            "'<M8[ns'",
            "'<M8[7]'",
            "'<S99999999999'",
            "'é4'",
            "4",
            "[]",
            "[('a',)]",
            "[('a', '<i4', -0)]".replace("-0", "None").as_str(),
            "[('a', '<i4'), ('a', '<i4')]",
            "[('a', '<i8', 4611686018427387904)]",
            "[('a', '|S9000000000', 4000000000), ('b', '<i4')]",
            "{'a': 1}",
        ] {
            assert!(matches!(parse(descr), Err(ItemError::Unknown(_))), "{descr}: {:?}", parse(descr));
        }
        let deep = format!("{}'<i4'{}", "[('a', ".repeat(20), ")]".repeat(20));
        assert!(parse(&deep).is_err());
    }
}
