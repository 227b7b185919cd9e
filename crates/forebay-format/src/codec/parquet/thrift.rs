//! Thrift's compact protocol, as Parquet keeps its footer and page headers in it.
//!
//! Thrift's own readers skip a field that they do not know, or that has another type than they
//! expect; the crate `parquet` refuses some of these. So a structure is copied before the crate
//! sees it, with the fields only that are used: [`copy_struct`].

/// Deepest nesting of what is skipped.
const MAX_DEPTH: usize = 64;

/// Bytes that are no structure of Thrift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

const ENDS: Malformed = Malformed("its end inside a structure");

/// Types of fields and items.
pub(crate) const TRUE: u8 = 1;
pub(crate) const FALSE: u8 = 2;
pub(crate) const BYTE: u8 = 3;
pub(crate) const I16: u8 = 4;
pub(crate) const I32: u8 = 5;
pub(crate) const I64: u8 = 6;
const DOUBLE: u8 = 7;
pub(crate) const BINARY: u8 = 8;
pub(crate) const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
pub(crate) const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// What is copied of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// A value of this type as it is; of a structure or list with all that is in it.
    Whole(u8),
    /// An integer that is 0 where it is missing.
    OrZero,
    /// A list of values of this type.
    Values(u8),
    /// A list of structures with these fields.
    Structs(&'static [(i16, Shape)]),
    /// A structure with these fields.
    Struct(&'static [(i16, Shape)]),
}

impl Shape {
    /// The type of the field.
    fn kind(self) -> u8 {
        match self {
            Self::Whole(kind) => kind,
            Self::OrZero => I32,
            Self::Values(_) | Self::Structs(_) => LIST,
            Self::Struct(_) => STRUCT,
        }
    }
}

/// Bytes that are read from the first on.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What is not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(ENDS)?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed("a number of more than ten bytes"))
    }

    /// An integer of any width.
    pub(crate) fn integer(&mut self) -> Result<i64, Malformed> {
        let number = self.varint()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    /// Number and type of the next field; `None` at the end of the structure. `last` is the number
    /// of the field before, 0 for the first.
    pub(crate) fn field(&mut self, last: &mut i16) -> Result<Option<(i16, u8)>, Malformed> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        let number = match head >> 4 {
            0 => i16::try_from(self.integer()?).ok(),
            delta => last.checked_add(i16::from(delta)),
        };
        *last = number.ok_or(Malformed("a field's number that is too large"))?;
        Ok(Some((*last, head & 0x0f)))
    }

    /// Number and type of the items of a list, each of which takes a byte or more.
    pub(crate) fn list(&mut self) -> Result<(usize, u8), Malformed> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        let count = usize::try_from(count).ok().filter(|count| *count <= self.rest.len());
        Ok((count.ok_or(Malformed("a list that is longer than its bytes"))?, head & 0x0f))
    }

    /// Skips the value of a field.
    pub(crate) fn skip(&mut self, kind: u8) -> Result<(), Malformed> {
        self.skip_within(kind, MAX_DEPTH)
    }

    fn skip_within(&mut self, kind: u8, depth: usize) -> Result<(), Malformed> {
        let Some(depth) = depth.checked_sub(1) else { return Err(Malformed("deeply nested structures")) };
        match kind {
            TRUE | FALSE => {}
            BYTE => drop(self.byte()?),
            I16 | I32 | I64 => drop(self.varint()?),
            DOUBLE => drop(self.take(8)?),
            UUID => drop(self.take(16)?),
            BINARY => {
                let length = usize::try_from(self.varint()?).map_err(|_| ENDS)?;
                self.take(length)?;
            }
            LIST | SET => {
                let (count, kind) = self.list()?;
                for _ in 0..count {
                    self.skip_item(kind, depth)?;
                }
            }
            MAP => {
                let count = self.varint()?;
                if count > 0 {
                    let kinds = self.byte()?;
                    for _ in 0..count {
                        self.skip_item(kinds >> 4, depth)?;
                        self.skip_item(kinds & 0x0f, depth)?;
                    }
                }
            }
            STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip_within(kind, depth)?;
                }
            }
            _ => return Err(Malformed("a field of an unknown type")),
        }
        Ok(())
    }

    /// Skips an item of a list or map: a boolean takes a byte there.
    fn skip_item(&mut self, kind: u8, depth: usize) -> Result<(), Malformed> {
        self.skip_within(if kind == TRUE || kind == FALSE { BYTE } else { kind }, depth)
    }

    /// Reads a structure: calls `each` with the number and the bytes of each structure in its list
    /// `wanted`, and skips the rest.
    pub(crate) fn structures(
        &mut self,
        wanted: i16,
        each: &mut dyn FnMut(usize, &mut Reader<'a>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let mut last = 0;
        while let Some((number, kind)) = self.field(&mut last)? {
            if (number, kind) != (wanted, LIST) {
                self.skip(kind)?;
                continue;
            }
            let (count, items) = self.list()?;
            for place in 0..count {
                match items {
                    STRUCT => each(place, self)?,
                    _ => self.skip_item(items, MAX_DEPTH)?,
                }
            }
        }
        Ok(())
    }

    /// The bytes of the value of a field.
    pub(crate) fn whole(&mut self, kind: u8) -> Result<&'a [u8], Malformed> {
        let before = self.rest;
        self.skip(kind)?;
        Ok(&before[..before.len() - self.rest.len()])
    }
}

/// Writes a structure, field by field.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    pub(crate) fn integer(&mut self, number: i64) {
        self.varint(((number << 1) ^ (number >> 63)) as u64);
    }

    /// Begins a field.
    pub(crate) fn field(&mut self, number: i16, kind: u8) {
        self.bytes.push(kind);
        self.integer(i64::from(number));
    }

    /// A field with an integer.
    pub(crate) fn integer_field(&mut self, number: i16, value: i64) {
        self.field(number, I32);
        self.integer(value);
    }

    /// Ends a structure.
    pub(crate) fn end(&mut self) {
        self.bytes.push(0);
    }

    pub(crate) fn list(&mut self, count: usize, kind: u8) {
        self.bytes.push(0xf0 | kind);
        self.varint(count as u64);
    }
}

/// Copies the next structure, with these fields only, where they have their types.
pub(crate) fn copy_struct(
    from: &mut Reader<'_>,
    fields: &[(i16, Shape)],
    into: &mut Writer,
) -> Result<(), Malformed> {
    let (mut last, mut seen) = (0, Vec::new());
    while let Some((number, kind)) = from.field(&mut last)? {
        let kind_of = |kind| if kind == FALSE { TRUE } else { kind };
        let known = fields.iter().find(|(known, shape)| *known == number && shape.kind() == kind_of(kind));
        match known {
            Some((_, shape)) => {
                seen.push(number);
                copy_field(from, (number, kind), *shape, into)?;
            }
            None => from.skip(kind)?,
        }
    }
    for (number, shape) in fields {
        if matches!(shape, Shape::OrZero) && !seen.contains(number) {
            into.integer_field(*number, 0);
        }
    }
    into.end();
    Ok(())
}

fn copy_field(
    from: &mut Reader<'_>,
    (number, kind): (i16, u8),
    shape: Shape,
    into: &mut Writer,
) -> Result<(), Malformed> {
    match shape {
        Shape::Whole(_) | Shape::OrZero => {
            into.field(number, kind);
            into.bytes.extend_from_slice(from.whole(kind)?);
        }
        Shape::Struct(fields) => {
            into.field(number, kind);
            copy_struct(from, fields, into)?;
        }
        Shape::Structs(fields) => {
            let (count, items) = from.list()?;
            if items != STRUCT {
                return (0..count).try_for_each(|_| from.skip_item(items, MAX_DEPTH));
            }
            into.field(number, kind);
            into.list(count, STRUCT);
            for _ in 0..count {
                copy_struct(from, fields, into)?;
            }
        }
        Shape::Values(wanted) => {
            let (count, items) = from.list()?;
            let are_integers = |kind| matches!(kind, I16 | I32 | I64);
            let before = from.rest;
            (0..count).try_for_each(|_| from.skip_item(items, MAX_DEPTH))?;
            // Integers of all widths are written alike.
            if items == wanted || are_integers(items) && are_integers(wanted) {
                into.field(number, kind);
                into.list(count, wanted);
                into.bytes.extend_from_slice(&before[..before.len() - from.rest.len()]);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const INNER: &[(i16, Shape)] = &[(1, Shape::Whole(I32)), (3, Shape::OrZero)];
    const OUTER: &[(i16, Shape)] = &[
        (1, Shape::Whole(I64)),
        (2, Shape::Whole(BINARY)),
        (3, Shape::Structs(INNER)),
        (4, Shape::Values(I32)),
        (5, Shape::Struct(INNER)),
        (6, Shape::Whole(TRUE)),
    ];

    fn copied(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
        let (mut from, mut into) = (Reader::new(bytes), Writer::default());
        copy_struct(&mut from, OUTER, &mut into)?;
        assert!(from.rest().is_empty());
        Ok(into.bytes)
    }

    #[test]
    fn fields_that_are_not_used_or_have_another_type_are_left_out() {
        let mut wanted = Writer::default();
        wanted.field(2, BINARY);
        wanted.bytes.extend(b"\x01x");
        wanted.end();
        // 1: i32 instead of i64; 2: "x"; 7: i16; 8: a map of i32 to booleans; 9: a set of strings.
        let bytes = b"\x15\x02\x18\x01x\x54\x02\x1b\x01\x51\x06\x01\x1a\x18\x01a\x00";
        assert_eq!(copied(bytes), Ok(wanted.bytes));
    }

    #[test]
    fn a_field_that_has_to_be_there_is_zero_where_it_is_missing() {
        let mut wanted = Writer::default();
        wanted.field(5, STRUCT);
        wanted.integer_field(1, 3);
        wanted.integer_field(3, 0);
        wanted.end();
        wanted.end();
        assert_eq!(copied(b"\x5c\x15\x06\x00\x00"), Ok(wanted.bytes));
    }

    #[test]
    fn a_copy_of_a_copy_is_the_same() {
        let bytes =
            b"\x16\x02\x18\x01x\x19\x2c\x15\x02\x00\x35\x02\x00\x19\x25\x02\x04\x1c\x15\x02\x00\x12\x00";
        let once = copied(bytes).expect("a structure");
        assert_eq!(copied(&once), Ok(once.clone()));
        assert_eq!(once[once.len() - 4..], [0, FALSE, 12, 0]);
    }

    #[test]
    fn cut_and_endless_structures_are_errors() {
        let bytes =
            b"\x16\x02\x18\x01x\x19\x2c\x15\x02\x00\x35\x02\x00\x19\x25\x02\x04\x1c\x15\x02\x00\x12\x00";
        for length in 0..bytes.len() {
            assert!(copied(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(copied(b"\x19\xfc\xff\xff\xff\xff\x0f").is_err(), "a list without items");
        assert!(copied(&[0x7c; 1000]).is_err(), "structures in structures");
        assert!(copied(b"\x7b\xff\xff\xff\xff\x0f\x11\x00").is_err(), "a map without entries");
    }
}
