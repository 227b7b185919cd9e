//! The pages of a column chunk: their headers checked, and written anew for the crate.
//!
//! A chunk is pages back to back, each a header and its bytes. The header's lengths and counts are
//! compared with the bytes that are there, so that the crate decodes no more than they hold.

use super::thrift::{self, Malformed, Reader, Writer};
use crate::codec::CodecError;

/// Kinds of pages that hold values; others are left out, as by other readers.
const DATA: i64 = 0;
const DICTIONARY: i64 = 2;
const DATA_V2: i64 = 3;

/// Values that any chunk may hold, and values per byte of a longer one. Runs of one value take a
/// few bytes: a million equal rows take about 250 bytes in pages as large as writers make them.
const FEW_VALUES: u64 = 1 << 26;
const VALUES_PER_BYTE: u64 = 1 << 13;

/// The most rows or values that this many bytes of a file may claim.
pub(crate) fn most_values(bytes: u64) -> u64 {
    bytes.saturating_mul(VALUES_PER_BYTE).max(FEW_VALUES)
}

/// How a chunk's pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compressed {
    /// Not at all.
    Never,
    /// Unless a header says otherwise.
    Declared,
    /// Also where a header says otherwise.
    Always,
}

/// The header of a page: the fields that are used, by number.
#[derive(Debug, Default)]
struct PageHeader {
    kind: i64,
    decoded_bytes: i64,
    encoded_bytes: i64,
    checksum: Option<i64>,
    /// Numbers in the header of its kind, by number.
    details: [Option<i64>; 7],
    is_compressed: Option<bool>,
}

fn wrong(what: &str, expected: impl ToString, found: impl ToString) -> CodecError {
    CodecError::new(super::NAME, what, expected, found)
}

fn malformed(Malformed(found): Malformed) -> CodecError {
    wrong("page header", "a header", found)
}

/// The pages of a chunk, with headers that the crate reads.
pub(super) fn checked(encoded: &[u8], compressed: Compressed) -> Result<Vec<u8>, CodecError> {
    let mut from = Reader::new(encoded);
    // Headers without statistics are shorter, or a few bytes longer.
    let mut into = Writer { bytes: Vec::with_capacity(encoded.len() + 64) };
    let (mut values, most) = (0_u64, most_values(encoded.len() as u64));
    while !from.rest().is_empty() {
        let mut header = PageHeader::read(&mut from).map_err(malformed)?;
        let length = usize::try_from(header.encoded_bytes).ok();
        let bytes = length.and_then(|length| from.take(length).ok()).ok_or_else(|| {
            wrong("length of a page", format!("at most {}", from.rest().len()), header.encoded_bytes)
        })?;
        if !matches!(header.kind, DATA | DICTIONARY | DATA_V2) {
            continue;
        }
        let claimed = header.details[1].and_then(|claimed| u64::try_from(claimed).ok());
        let claimed = claimed.ok_or_else(|| wrong("values of a page", "their number", "none"))?;
        values = values.saturating_add(claimed);
        if values > most {
            return Err(wrong("values of the pages", format!("at most {most}"), values));
        }
        if header.kind == DATA_V2 && compressed == Compressed::Always {
            header.is_compressed = Some(true);
        }
        let is_stored =
            compressed == Compressed::Never || header.kind == DATA_V2 && header.is_compressed == Some(false);
        if is_stored && header.decoded_bytes != header.encoded_bytes {
            let expected = format!("{} bytes, as it is not compressed", header.decoded_bytes);
            return Err(wrong("length of a page", expected, header.encoded_bytes));
        }
        header.write(&mut into);
        into.bytes.extend_from_slice(bytes);
    }
    Ok(into.bytes)
}

/// Bytes of the pages up to the one that completes this many values; `None` if that is not there.
pub(crate) fn span(encoded: &[u8], values: u64) -> Option<usize> {
    let (mut from, mut found) = (Reader::new(encoded), 0_u64);
    while found < values {
        let header = PageHeader::read(&mut from).ok()?;
        from.take(usize::try_from(header.encoded_bytes).ok()?).ok()?;
        if matches!(header.kind, DATA | DATA_V2) {
            found = found.checked_add(u64::try_from(header.details[1]?).ok()?)?;
        }
    }
    Some(encoded.len() - from.rest().len())
}

impl PageHeader {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (mut header, mut last) = (Self::default(), 0);
        while let Some((number, kind)) = from.field(&mut last)? {
            match (number, kind) {
                (1, thrift::I32) => header.kind = from.integer()?,
                (2, thrift::I32) => header.decoded_bytes = from.integer()?,
                (3, thrift::I32) => header.encoded_bytes = from.integer()?,
                (4, thrift::I32) => header.checksum = Some(from.integer()?),
                (5 | 7 | 8, thrift::STRUCT) => header.read_details(from)?,
                _ => from.skip(kind)?,
            }
        }
        Ok(header)
    }

    fn read_details(&mut self, from: &mut Reader<'_>) -> Result<(), Malformed> {
        let mut last = 0;
        while let Some((number, kind)) = from.field(&mut last)? {
            let place = usize::try_from(number).ok().and_then(|number| self.details.get_mut(number));
            match (kind, place) {
                (thrift::I32, Some(place)) => *place = Some(from.integer()?),
                (thrift::TRUE | thrift::FALSE, _) if number == 7 => {
                    self.is_compressed = Some(kind == thrift::TRUE);
                }
                _ => from.skip(kind)?,
            }
        }
        Ok(())
    }

    fn write(&self, into: &mut Writer) {
        into.integer_field(1, self.kind);
        into.integer_field(2, self.decoded_bytes);
        into.integer_field(3, self.encoded_bytes);
        if let Some(checksum) = self.checksum {
            into.integer_field(4, checksum);
        }
        let details = match self.kind {
            DATA => 5,
            DICTIONARY => 7,
            _ => 8,
        };
        into.field(details, thrift::STRUCT);
        for (number, value) in (0..).zip(self.details) {
            if let Some(value) = value {
                into.integer_field(number, value);
            }
        }
        if let Some(is_compressed) = self.is_compressed {
            into.field(7, if is_compressed { thrift::TRUE } else { thrift::FALSE });
        }
        into.end();
        into.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(kind: i64, (decoded, encoded): (i64, &[u8]), values: i64, compressed: Option<bool>) -> Vec<u8> {
        let mut details = [None; 7];
        details[1] = Some(values);
        let header = PageHeader {
            kind,
            decoded_bytes: decoded,
            encoded_bytes: encoded.len() as i64,
            checksum: None,
            details,
            is_compressed: compressed,
        };
        let mut page = Writer::default();
        header.write(&mut page);
        page.bytes.extend(encoded);
        page.bytes
    }

    #[test]
    fn pages_keep_their_bytes_and_those_without_values_are_left_out() {
        let (first, index, last) =
            (page(2, (3, b"abc"), 1, None), page(1, (2, b"xy"), 0, None), page(0, (9, b"z"), 4, None));
        let chunk = [&first[..], &index, &last].concat();
        assert_eq!(checked(&chunk, Compressed::Declared), Ok([first, last].concat()));
    }

    #[test]
    fn pages_span_what_completes_the_values() {
        let (dictionary, data) = (page(2, (3, b"abc"), 1, None), page(0, (9, b"z"), 4, None));
        let chunk = [&dictionary[..], &data, &data, b"more"].concat();
        assert_eq!(span(&chunk, 8), Some(chunk.len() - 4));
        assert_eq!(span(&chunk, 4), Some(dictionary.len() + data.len()));
        assert_eq!(span(&chunk, 9), None);
        assert_eq!(span(&chunk, 0), Some(0));
    }

    #[test]
    fn a_page_that_is_not_compressed_has_the_length_of_its_values() {
        let page = page(3, (40, b"shorter"), 5, Some(false));
        assert!(checked(&page, Compressed::Never).is_err());
        assert!(checked(&page, Compressed::Declared).is_err());
        let always = checked(&page, Compressed::Always).expect("the flag is not believed");
        let again = PageHeader::read(&mut Reader::new(&always)).expect("a header");
        assert_eq!((again.is_compressed, again.decoded_bytes), (Some(true), 40));
    }

    #[test]
    fn pages_claim_no_more_values_than_their_bytes_can_hold() {
        let claiming = |values| page(0, (40, b"runs"), values, None);
        let most = most_values(0) as i64;
        assert!(checked(&claiming(most), Compressed::Declared).is_ok());
        assert!(checked(&claiming(most + 1), Compressed::Declared).is_err());
        assert!(checked(&claiming(-1), Compressed::Declared).is_err());
        assert!(checked(&[claiming(most), claiming(1)].concat(), Compressed::Declared).is_err());
        assert_eq!(most_values(1 << 20), 1 << 33);
    }

    #[test]
    fn a_page_that_ends_after_its_chunk_is_an_error() {
        let page = page(0, (3, b"abc"), 1, None);
        for length in 1..page.len() {
            assert!(checked(&page[..length], Compressed::Declared).is_err(), "{length} bytes");
        }
    }
}
