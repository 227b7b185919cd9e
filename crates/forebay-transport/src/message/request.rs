//! Requests: which bytes of a share a rank wants for one step.
//!
//! ```text
//! step (8 bytes) | count (4) | length of the entries (4) | entries
//! entry: offset - offset of the previous entry (LEB128) | length [bytes] (LEB128)
//! ```
//!
//! Numbers are little-endian. Entries are sorted by offset and do not overlap, so a delta is at
//! least the length of the previous entry. The receiver knows from the header how much follows, and
//! refuses more than [`MAX_COUNT`] entries before it takes memory for them.
//!
//! [`parse`] promises that all entries of a request that it returns are inside the share. It
//! refuses everything else with the first bad entry, and panics on no input.

use forebay_types::MAX_ANSWER_BYTES;

use crate::message::refusal::Refusal;

/// Most entries of a request.
pub const MAX_COUNT: usize = forebay_types::MAX_REQUEST_PARTS;
/// Bytes of a request before its entries.
pub(crate) const HEADER_BYTES: usize = 16;
/// Most bytes of a LEB128 number: 64 bits, 7 in each byte.
const MAX_NUMBER_BYTES: usize = 10;

/// Bytes of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestEntry {
    /// First byte \[bytes from the start of the share\].
    pub(crate) offset: u64,
    /// Length \[bytes\].
    pub(crate) length: u64,
}

/// First part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    /// Step of the rank, for messages; the answer repeats it.
    pub(crate) step: u64,
    /// Number of entries.
    pub(crate) count: u32,
    /// Length of the encoded entries \[bytes\].
    pub(crate) entries_bytes: u32,
}

/// A request that is refused, and its first bad entry (0 if the header is bad).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) refusal: Refusal,
    pub(crate) entry: u64,
}

impl RequestHeader {
    /// Parses and checks a header.
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, (u64, Refused)> {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let step = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let header = Self { step, count: number(8), entries_bytes: number(12) };
        let refuse = |refusal| Err((step, Refused { refusal, entry: 0 }));
        if header.count == 0 || header.count as usize > MAX_COUNT {
            return refuse(Refusal::Count);
        }
        let (count, bytes) = (header.count as usize, header.entries_bytes as usize);
        if bytes < 2 * count || bytes > 2 * MAX_NUMBER_BYTES * count {
            return refuse(Refusal::Malformed);
        }
        Ok(header)
    }
}

/// Checks that entries are sorted, do not overlap, and are inside a share of `share_bytes`. Both
/// sides use it.
#[derive(Debug)]
pub(crate) struct Checker {
    share_bytes: u64,
    /// End of the previous entry.
    end: u64,
    /// Sum of the lengths.
    pub(crate) bytes: u64,
}

impl Checker {
    pub(crate) fn new(share_bytes: u64) -> Self {
        Self { share_bytes, end: 0, bytes: 0 }
    }

    /// Checks the next entry.
    pub(crate) fn check(&mut self, entry: RequestEntry) -> Result<(), Refusal> {
        if entry.offset < self.end {
            return Err(Refusal::Order);
        }
        let end = entry.offset.checked_add(entry.length).filter(|end| *end <= self.share_bytes);
        self.end = end.ok_or(Refusal::Outside)?;
        self.bytes += entry.length; // at most the length of the share
        if self.bytes > MAX_ANSWER_BYTES { Err(Refusal::Bytes) } else { Ok(()) }
    }
}

/// Writes a request of checked entries.
pub(crate) fn put(out: &mut Vec<u8>, step: u64, entries: impl ExactSizeIterator<Item = RequestEntry>) {
    let header = out.len();
    out.extend_from_slice(&step.to_le_bytes());
    out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let start = out.len();
    let mut previous = 0;
    for entry in entries {
        put_number(out, entry.offset - previous);
        put_number(out, entry.length);
        previous = entry.offset;
    }
    let length = (out.len() - start) as u32;
    out[header + 12..start].copy_from_slice(&length.to_le_bytes());
}

/// Parses the entries of a request to a share of `share_bytes` into `entries`, without empty ones,
/// and returns how many bytes they have.
pub(crate) fn parse(
    header: RequestHeader,
    mut bytes: &[u8],
    share_bytes: u64,
    entries: &mut Vec<RequestEntry>,
) -> Result<u64, Refused> {
    entries.clear();
    let mut checker = Checker::new(share_bytes);
    let mut previous = 0_u64;
    for at in 0..header.count {
        let refuse = |refusal| Refused { refusal, entry: at.into() };
        let mut number = || take_number(&mut bytes).ok_or(refuse(Refusal::Malformed));
        let (delta, length) = (number()?, number()?);
        let offset = previous.checked_add(delta).ok_or(refuse(Refusal::Outside))?;
        let entry = RequestEntry { offset, length };
        checker.check(entry).map_err(refuse)?;
        if length > 0 {
            entries.push(entry);
        }
        previous = offset;
    }
    if bytes.is_empty() {
        Ok(checker.bytes)
    } else {
        Err(Refused { refusal: Refusal::Malformed, entry: header.count.into() })
    }
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The next LEB128 number; `None` if it is cut off or has more than 64 bits.
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for at in 0..MAX_NUMBER_BYTES {
        let byte = *bytes.get(at)?;
        if at == MAX_NUMBER_BYTES - 1 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *bytes = &bytes[at + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a whole request, as the server does.
    fn read(bytes: &[u8], share_bytes: u64) -> Result<(u64, Vec<RequestEntry>), Refused> {
        let (header, rest) = bytes.split_first_chunk().expect("a header");
        let header = RequestHeader::parse(header).map_err(|(_, refused)| refused)?;
        assert_eq!(header.entries_bytes as usize, rest.len());
        let mut entries = Vec::new();
        parse(header, rest, share_bytes, &mut entries).map(|bytes| (bytes, entries))
    }

    fn encoded(entries: &[(u64, u64)]) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, 7, entries.iter().map(|&(offset, length)| RequestEntry { offset, length }));
        out
    }

    #[test]
    fn the_bytes_of_a_request_are_pinned() {
        let expected =
            [&[7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 6, 0, 0, 0][..], &[5, 0x80, 1, 0xac, 2, 3]].concat();
        assert_eq!(encoded(&[(5, 128), (305, 3)]), expected);
    }

    #[test]
    fn a_bad_entry_is_refused_with_its_number() {
        let refused = |entries: &[(u64, u64)]| {
            let found = read(&encoded(entries), 1 << 40).unwrap_err();
            (found.refusal, found.entry)
        };
        assert_eq!(refused(&[(0, 8), (7, 1)]), (Refusal::Order, 1));
        assert_eq!(refused(&[(0, 8), (1 << 40, 1)]), (Refusal::Outside, 1));
        assert_eq!(refused(&[(1 << 39, u64::MAX)]), (Refusal::Outside, 0));
        assert_eq!(refused(&[(0, 1 << 30), (1 << 31, 1)]), (Refusal::Bytes, 1));
        assert_eq!(refused(&[]), (Refusal::Count, 0));
    }

    #[test]
    fn a_header_out_of_bounds_is_refused_before_its_entries_arrive() {
        let header = |count: u32, bytes: u32| {
            let mut out = encoded(&[(0, 1)]);
            out[8..12].copy_from_slice(&count.to_le_bytes());
            out[12..16].copy_from_slice(&bytes.to_le_bytes());
            RequestHeader::parse(out.first_chunk().unwrap())
                .map_err(|(step, refused)| (step, refused.refusal))
        };
        assert!(header(MAX_COUNT as u32, 20 * MAX_COUNT as u32).is_ok());
        assert_eq!(header(MAX_COUNT as u32 + 1, 1 << 16), Err((7, Refusal::Count)));
        assert_eq!(header(4, 7), Err((7, Refusal::Malformed)));
        assert_eq!(header(1, u32::MAX), Err((7, Refusal::Malformed)));
    }

    #[test]
    fn entries_that_do_not_fill_their_length_or_overflow_are_refused() {
        let with = |entries: &[u8], count: u32| {
            let header = RequestHeader { step: 0, count, entries_bytes: entries.len() as u32 };
            let found = parse(header, entries, u64::MAX, &mut Vec::new()).unwrap_err();
            (found.refusal, found.entry)
        };
        assert_eq!(with(&[1, 1, 9], 1), (Refusal::Malformed, 1), "bytes are left");
        assert_eq!(with(&[1, 1, 9], 2), (Refusal::Malformed, 1), "cut off");
        assert_eq!(with(&[0x80; 22], 1), (Refusal::Malformed, 0), "longer than 64 bits");
        let largest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(with(&[&largest[..], &[0, 1, 0]].concat(), 2), (Refusal::Outside, 1), "offset");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(gaps in prop::collection::vec((0_u64..1 << 50, 0_u64..1 << 20), 1..200)) {
            let mut end = 0;
            let entries: Vec<_> = gaps.iter().map(|&(gap, length)| {
                let offset = end + gap;
                end = offset + length;
                RequestEntry { offset, length }
            }).collect();
            let mut out = Vec::new();
            put(&mut out, 1, entries.iter().copied());
            let bytes = entries.iter().map(|entry| entry.length).sum();
            let filled = entries.into_iter().filter(|entry| entry.length > 0).collect();
            prop_assert_eq!(read(&out, end), Ok((bytes, filled)));
        }

        #[test]
        fn any_bytes_are_entries_inside_the_share_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 2..400), count in 1_u32..100, share_bytes in 0_u64..1 << 20,
        ) {
            let header = RequestHeader { step: 0, count, entries_bytes: bytes.len() as u32 };
            let mut entries = Vec::new();
            if let Ok(sum) = parse(header, &bytes, share_bytes, &mut entries) {
                prop_assert_eq!(sum, entries.iter().map(|entry| entry.length).sum::<u64>());
                let mut end = 0;
                for entry in entries {
                    prop_assert!(entry.offset >= end && entry.offset + entry.length <= share_bytes);
                    end = entry.offset + entry.length;
                }
            }
        }
    }
}
