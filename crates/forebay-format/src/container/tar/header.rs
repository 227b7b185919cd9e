//! One header block of a tar file: 512 bytes of strings and numbers, and a checksum over them.
//!
//! Sources: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar manual, "Basic Tar Format". The
//! output of real writers and its interpretation by tarfile were measured; the rules that follow
//! are in `docs/formats/tar.md`.

/// Length of a header, and what everything is padded to \[bytes\].
pub(super) const BLOCK_BYTES: u64 = 512;

/// The fields: first byte and length.
const NAME: (usize, usize) = (0, 100);
const SIZE: (usize, usize) = (124, 12);
const CHECKSUM: (usize, usize) = (148, 8);
const TYPE: usize = 156;
const MAGIC: (usize, usize) = (257, 6);
const PREFIX: (usize, usize) = (345, 155);

/// A header block.
pub(super) type HeaderBlock = [u8; BLOCK_BYTES as usize];

/// Contents of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TarHeader {
    /// Name, with the prefix of `ustar`.
    pub(super) name: Vec<u8>,
    /// Whether that prefix is part of it, so that the name is in two places.
    pub(super) has_prefix: bool,
    /// Size of the data that follow the header, by the header; a pax record may override it
    /// \[bytes\].
    pub(super) size: u64,
    /// Type flag.
    pub(super) kind: u8,
}

/// What is wrong with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderError {
    /// Where in the block \[bytes\].
    pub(super) offset: u64,
    pub(super) what: &'static str,
    pub(super) expected: String,
    pub(super) found: String,
}

impl TarHeader {
    /// Reads a block; `None` for one of zeros, which ends an archive.
    pub(super) fn parse(block: &HeaderBlock) -> Result<Option<Self>, HeaderError> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let (unsigned, signed) = sums(block);
        // An empty field is the number 0, which is the sum of no header.
        let stored =
            number(field(block, CHECKSUM)).filter(|stored| *stored == unsigned || Some(*stored) == signed);
        if stored.is_none() {
            return Err(HeaderError {
                offset: CHECKSUM.0 as u64,
                what: "header checksum",
                expected: format!("{unsigned} in octal digits"),
                found: shown(field(block, CHECKSUM)),
            });
        }
        let size = number(field(block, SIZE)).ok_or_else(|| HeaderError {
            offset: SIZE.0 as u64,
            what: "size",
            expected: "a number of bytes".to_owned(),
            found: shown(field(block, SIZE)),
        })?;
        let mut name = text(field(block, NAME)).to_vec();
        // GNU's magic ends with blanks, and its headers have times where the prefix of POSIX is.
        let prefix = if field(block, MAGIC) == b"ustar\0" { text(field(block, PREFIX)) } else { b"" };
        let has_prefix = !prefix.is_empty();
        if has_prefix {
            name = [prefix, b"/", &name].concat();
        }
        Ok(Some(Self { name, has_prefix, size, kind: block[TYPE] }))
    }
}

fn field(block: &HeaderBlock, (start, length): (usize, usize)) -> &[u8] {
    &block[start..start + length]
}

/// String up to the first NUL.
pub(super) fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Sums of all bytes, with blanks in place of the checksum: of unsigned bytes as the standard
/// requires, of signed ones as some old writers computed it, unless that is negative.
fn sums(block: &HeaderBlock) -> (u64, Option<u64>) {
    let (mut unsigned, mut signed) = (0_i64, 0_i64);
    for (at, byte) in block.iter().enumerate() {
        let inside = (CHECKSUM.0..CHECKSUM.0 + CHECKSUM.1).contains(&at);
        let byte = if inside { b' ' } else { *byte };
        unsigned += i64::from(byte);
        signed += i64::from(byte as i8);
    }
    (unsigned as u64, u64::try_from(signed).ok())
}

/// A number: octal digits between blanks and NULs, or base 256 where the first byte is 0x80. An
/// empty field is 0.
fn number(bytes: &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    if first & 0x80 != 0 {
        // 0xff begins negative numbers, which nothing that is read here can be.
        return rest
            .iter()
            .try_fold(0_u64, |value, byte| Some(value.checked_mul(256)? | u64::from(*byte)))
            .filter(|_| *first == 0x80);
    }
    text(bytes).trim_ascii().iter().try_fold(0_u64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

fn shown(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header as POSIX writers make it.
    fn block(name: &[u8], size: &[u8], kind: u8) -> HeaderBlock {
        let mut block = [0; 512];
        block[..name.len()].copy_from_slice(name);
        block[124..124 + size.len()].copy_from_slice(size);
        block[156] = kind;
        block[257..265].copy_from_slice(b"ustar\x0000");
        seal(&mut block);
        block
    }

    fn seal(block: &mut HeaderBlock) {
        let digits = format!("{:06o}\0 ", sums(block).0);
        block[148..156].copy_from_slice(digits.as_bytes());
    }

    #[test]
    fn sizes_come_as_octal_digits_or_in_base_256() {
        let size =
            |bytes: &[u8]| TarHeader::parse(&block(b"a", bytes, b'0')).map(|header| header.unwrap().size);
        assert_eq!(size(b"00000000012\0"), Ok(10));
        assert_eq!(size(b"        12 \0"), Ok(10));
        assert_eq!(size(b""), Ok(0));
        assert_eq!(size(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1]), Ok(0x2_0000_0001));
        for wrong in
            [&b"12x"[..], b"8", b"-1", &[0xff; 12], &[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0x81, 0]]
        {
            let error = size(wrong).expect_err("refused");
            assert_eq!((error.offset, error.what), (124, "size"));
        }
    }

    #[test]
    fn the_prefix_counts_in_posix_headers_only() {
        let mut header = block(b"name", b"0", b'0');
        header[345..348].copy_from_slice(b"dir");
        seal(&mut header);
        assert_eq!(TarHeader::parse(&header).unwrap().unwrap().name, b"dir/name");
        header[257..265].copy_from_slice(b"ustar  \0");
        seal(&mut header);
        assert_eq!(TarHeader::parse(&header).unwrap().unwrap().name, b"name");
    }

    #[test]
    fn the_checksum_is_checked_in_both_ways_of_summing() {
        let mut header = block(b"caf\xc3\xa9", b"0", b'0');
        assert!(TarHeader::parse(&header).is_ok());
        let signed = format!("{:06o}\0 ", sums(&header).1.expect("a positive sum"));
        header[148..156].copy_from_slice(signed.as_bytes());
        assert!(TarHeader::parse(&header).is_ok());
        header[0] ^= 1;
        assert_eq!(TarHeader::parse(&header).expect_err("refused").what, "header checksum");
        assert_eq!(TarHeader::parse(&[0; 512]), Ok(None));
        // The sum of signed bytes is negative, and the field is empty: numbers that are no header.
        let mut numbers = [0xc0; 512];
        numbers[148..156].fill(b' ');
        numbers[124..136].fill(b' ');
        assert_eq!(TarHeader::parse(&numbers).expect_err("refused").what, "header checksum");
    }
}
