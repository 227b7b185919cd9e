//! Flatbuffers, as far as Arrow's metadata needs them: tables, strings and vectors, with every
//! offset checked (<https://flatbuffers.dev/internals>).
//!
//! A table begins with the distance back to its vtable, which has the place of each field, or 0 for
//! a field that is absent. References are distances forward. All integers are little-endian.

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// Most elements of a vector, over which nothing is allocated.
const MAX_ELEMENTS: usize = 1 << 24;

/// A table in a buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    vtable: usize,
    vtable_bytes: usize,
}

fn read<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Malformed> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or(Malformed("an offset beyond the end"))
}

/// The place to which the reference at `at` leads.
fn follow(bytes: &[u8], at: usize) -> Result<usize, Malformed> {
    Ok(at + u32::from_le_bytes(read(bytes, at)?) as usize)
}

impl<'a> Table<'a> {
    /// The root table of a buffer.
    pub(super) fn root(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::new(bytes, follow(bytes, 0)?)
    }

    fn new(bytes: &'a [u8], at: usize) -> Result<Self, Malformed> {
        let back = i64::from(i32::from_le_bytes(read(bytes, at)?));
        let vtable = usize::try_from(at as i64 - back).map_err(|_| Malformed("a vtable before the start"))?;
        let vtable_bytes = usize::from(u16::from_le_bytes(read(bytes, vtable)?));
        Ok(Self { bytes, at, vtable, vtable_bytes })
    }

    /// Place of field `number`; `None` if it is absent.
    fn place(&self, number: usize) -> Result<Option<usize>, Malformed> {
        let entry = 4 + 2 * number;
        if entry + 2 > self.vtable_bytes {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(read(self.bytes, self.vtable + entry)?);
        Ok((offset > 0).then(|| self.at + usize::from(offset)))
    }

    fn scalar<const N: usize>(&self, number: usize) -> Result<Option<[u8; N]>, Malformed> {
        self.place(number)?.map(|at| read(self.bytes, at)).transpose()
    }

    pub(super) fn u8(&self, number: usize, default: u8) -> Result<u8, Malformed> {
        Ok(self.scalar(number)?.map_or(default, u8::from_le_bytes))
    }

    pub(super) fn i16(&self, number: usize, default: i16) -> Result<i16, Malformed> {
        Ok(self.scalar(number)?.map_or(default, i16::from_le_bytes))
    }

    pub(super) fn i32(&self, number: usize, default: i32) -> Result<i32, Malformed> {
        Ok(self.scalar(number)?.map_or(default, i32::from_le_bytes))
    }

    pub(super) fn i64(&self, number: usize, default: i64) -> Result<i64, Malformed> {
        Ok(self.scalar(number)?.map_or(default, i64::from_le_bytes))
    }

    /// The table that field `number` refers to.
    pub(super) fn table(&self, number: usize) -> Result<Option<Self>, Malformed> {
        let Some(at) = self.place(number)? else { return Ok(None) };
        Self::new(self.bytes, follow(self.bytes, at)?).map(Some)
    }

    /// Place and number of the elements of the vector that field `number` refers to.
    fn vector(&self, number: usize, item_bytes: usize) -> Result<(usize, usize), Malformed> {
        let Some(at) = self.place(number)? else { return Ok((0, 0)) };
        let at = follow(self.bytes, at)?;
        let count = u32::from_le_bytes(read(self.bytes, at)?) as usize;
        let end = count.checked_mul(item_bytes).and_then(|bytes| bytes.checked_add(at + 4));
        if count > MAX_ELEMENTS || end.is_none_or(|end| end > self.bytes.len()) {
            return Err(Malformed("a vector beyond the end"));
        }
        Ok((at + 4, count))
    }

    /// The text of field `number`; empty if it is absent.
    pub(super) fn text(&self, number: usize) -> Result<&'a str, Malformed> {
        let (at, count) = self.vector(number, 1)?;
        std::str::from_utf8(&self.bytes[at..at + count]).map_err(|_| Malformed("text that is not UTF-8"))
    }

    /// The tables of the vector in field `number`.
    pub(super) fn tables(
        &self,
        number: usize,
    ) -> Result<impl Iterator<Item = Result<Self, Malformed>>, Malformed> {
        let (bytes, (at, count)) = (self.bytes, self.vector(number, 4)?);
        Ok((0..count).map(move |index| Self::new(bytes, follow(bytes, at + 4 * index)?)))
    }

    /// The structures of the vector in field `number`, of `N` bytes each.
    pub(super) fn structures<const N: usize>(&self, number: usize) -> Result<&'a [[u8; N]], Malformed> {
        let (at, count) = self.vector(number, N)?;
        Ok(self.bytes[at..at + N * count].as_chunks().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table with an i64 in field 0 and text in field 2.
    const BYTES: [u8; 37] = *b"\x10\0\0\0\x0a\0\x14\0\x04\0\0\0\x0c\0\0\0\
        \x0c\0\0\0\x2a\0\0\0\0\0\0\0\x04\0\0\0\x01\0\0\0x";

    #[test]
    fn fields_are_found_and_absent_ones_have_their_default() {
        let table = Table::root(&BYTES).expect("sound");
        assert_eq!(table.i64(0, 0), Ok(42));
        assert_eq!(table.i64(1, 7), Ok(7));
        assert_eq!(table.text(2), Ok("x"));
        assert_eq!(table.text(9), Ok(""));
    }

    #[test]
    fn no_bytes_lead_outside_of_the_buffer() {
        for length in 0..BYTES.len() {
            let visit =
                |table: Table<'_>| (table.i64(0, 0), table.text(2).map(str::len), table.table(2).map(drop));
            let _ = Table::root(&BYTES[..length]).map(visit);
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = BYTES;
                bytes[length] = value;
                let _ = Table::root(&bytes).map(visit);
            }
        }
    }
}
