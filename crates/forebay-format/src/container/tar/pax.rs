//! Extended headers: values that come before a member because its own header has no space for them.
//!
//! pax records are `length key=value\n`, the length in decimal digits and counting itself. GNU's
//! `L` is a name.

use super::header::text;

/// Values of extended headers for the next member, or for all that follow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extended {
    /// Name.
    pub(super) path: Option<Vec<u8>>,
    /// Bytes of its data.
    pub(super) size: Option<u64>,
    /// A record that makes the member a sparse one, whose data are not the file's bytes.
    pub(super) sparse: bool,
}

/// What is wrong with a record: its first byte, what was expected, what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PaxError {
    pub(super) offset: u64,
    pub(super) expected: &'static str,
    pub(super) found: String,
}

impl Extended {
    /// Parses pax records; skips those with other keys than the ones that matter here.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, PaxError> {
        let mut extended = Self::default();
        let mut at = 0;
        // Writers may pad with NULs.
        while bytes.get(at).is_some_and(|byte| *byte != 0) {
            let error = |expected, found: &[u8]| PaxError {
                offset: at as u64,
                expected,
                found: format!("\"{}\"", found[..found.len().min(40)].escape_ascii()),
            };
            let rest = &bytes[at..];
            let record = digits(rest).and_then(|(length, behind)| {
                rest.get(behind..usize::try_from(length).ok()?).map(|record| (length, record))
            });
            let Some((length, record)) = record else {
                return Err(error("a length within the header, and a blank", rest));
            };
            let record = record.strip_suffix(b"\n").and_then(|record| {
                let equals = record.iter().position(|byte| *byte == b'=')?;
                Some((&record[..equals], &record[equals + 1..]))
            });
            let Some((key, value)) = record else {
                return Err(error("a key, '=', a value and a line feed", rest));
            };
            match key {
                b"path" => {
                    let name = without_slashes(value);
                    if name.is_empty() || name.contains(&0) {
                        return Err(error("a path without NUL", rest));
                    }
                    extended.path = Some(name.to_vec());
                }
                b"size" => {
                    let size = digits_only(value).ok_or_else(|| error("a size in decimal digits", rest))?;
                    extended.size = Some(size);
                }
                key if key.starts_with(b"GNU.sparse.") => extended.sparse = true,
                _ => {}
            }
            at += length as usize;
        }
        Ok(extended)
    }

    /// The name in GNU's `L` header.
    pub(super) fn long_name(bytes: &[u8]) -> Self {
        Self { path: Some(text(bytes).to_vec()), ..Self::default() }
    }

    /// Adds the values of a later header: the first value of a key counts, as in tarfile.
    pub(super) fn or(self, later: Self) -> Self {
        Self {
            path: self.path.or(later.path),
            size: self.size.or(later.size),
            sparse: self.sparse || later.sparse,
        }
    }
}

/// A name without slashes at its end.
fn without_slashes(name: &[u8]) -> &[u8] {
    let end = name.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &name[..end]
}

/// The number at the start of `bytes`, and where the string after its blank begins.
fn digits(bytes: &[u8]) -> Option<(u64, usize)> {
    // 20 digits hold 64 bits.
    let blank = bytes.iter().take(21).position(|byte| *byte == b' ')?;
    Some((digits_only(&bytes[..blank])?, blank + 1))
}

fn digits_only(bytes: &[u8]) -> Option<u64> {
    let plain = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(bytes).ok().filter(|_| plain)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_found_among_other_records() {
        let records = b"30 mtime=1234567890.123456789\n15 path=a/b.jpg\n20 size=9876543210\n\0\0\0";
        assert_eq!(Extended::parse(&records[..]).expect_err("a length that is wrong").offset, 30);
        let records = b"30 mtime=1234567890.123456789\n16 path=a/b.jpg\n19 size=9876543210\n\0\0\0";
        let expected = Extended { path: Some(b"a/b.jpg".to_vec()), size: Some(9_876_543_210), sparse: false };
        assert_eq!(Extended::parse(records), Ok(expected));
        assert!(Extended::parse(b"22 GNU.sparse.major=1\n").unwrap().sparse);
    }

    #[test]
    fn records_that_are_cut_or_hostile_are_refused() {
        for wrong in [
            &b"999 path=a\n"[..],
            b"18446744073709551616 path=a\n",
            b"3 a",
            b"0 path=a\n",
            b"10 path=ab",
            b"path=a\n",
            b"8 patha\n",
            b"8 path=\n",
            b"9 path=/\n",
            b"15 path=\0a.jpg\n",
            b"15 path=a\0.jpg\n",
            b"11 size=-1\n",
        ] {
            assert!(Extended::parse(wrong).is_err(), "{}", wrong.escape_ascii());
        }
    }
}
