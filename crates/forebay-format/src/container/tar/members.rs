//! The members of a tar file, one after the other, by their headers only.

use super::header::{BLOCK_BYTES, HeaderBlock, HeaderError, TarHeader};
use super::pax::Extended;
use super::window::Window;
use crate::Error;
use crate::file::Input;

/// Largest extended header \[bytes\]: names have at most 4,096.
const MAX_EXTENDED_BYTES: u64 = 1 << 20;

/// Bytes after the end that are read \[bytes\]: writers pad to 10,240, and with `tar -b` to 1 MiB
/// and more.
const MAX_TRAILING_BYTES: u64 = 1 << 20;

/// A member that holds a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its name.
    pub(super) name: Vec<u8>,
    /// Whether its own header begins with that name.
    pub(super) is_name_in_header: bool,
    /// Offset of its own header [bytes from the start of the file].
    pub(super) header: u64,
    /// Offset of its data [bytes from the start of the file].
    pub(super) start: u64,
    /// Length of its data \[bytes\].
    pub(super) length: u64,
}

/// What comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A file.
    Member(Member),
    /// A directory, a link, a device: nothing with data.
    Other,
    /// The end of the archive.
    End,
}

/// Goes through a tar file.
pub(super) struct Members<'a> {
    input: &'a Input,
    window: Window<'a>,
    /// Offset of the next header.
    at: u64,
    /// Values of the `g` headers.
    global: Extended,
}

impl<'a> Members<'a> {
    pub(super) fn new(input: &'a Input) -> Self {
        Self { input, window: Window::new(input), at: 0, global: Extended::default() }
    }

    /// How far it has come [bytes from the start of the file].
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next member, with the extended headers before it.
    pub(super) fn next(&mut self) -> Result<Next, Error> {
        let mut extended = Extended::default();
        let mut expected = false;
        loop {
            let at = self.at;
            let Some(header) = self.header(expected)? else { return Ok(Next::End) };
            let data = at + BLOCK_BYTES;
            match header.kind {
                b'L' => {
                    let name = self.extended(data, header.size)?;
                    extended = extended.or(Extended::long_name(&name));
                    self.skip(data, header.size)?;
                }
                // The name of a link's target.
                b'K' => self.skip(data, header.size)?,
                kind @ (b'x' | b'X' | b'g') => {
                    let records = self.extended(data, header.size)?;
                    let found = Extended::parse(&records).map_err(|error| {
                        self.input.corrupt(
                            data + error.offset,
                            "tar extended header",
                            error.expected,
                            error.found,
                        )
                    })?;
                    if kind == b'g' {
                        self.global = found.or(std::mem::take(&mut self.global));
                    } else {
                        extended = extended.or(found);
                    }
                    self.skip(data, header.size)?;
                }
                _ => return self.member(at, header, extended),
            }
            expected = header.kind != b'g';
        }
    }

    /// Interprets a header that is not an extended one.
    fn member(&mut self, at: u64, header: TarHeader, extended: Extended) -> Result<Next, Error> {
        let data = at + BLOCK_BYTES;
        let is_global_size = extended.size.is_none() && self.global.size.is_some();
        let extended = extended.or(self.global.clone());
        if header.kind == b'S' || extended.sparse {
            let name = extended.path.unwrap_or(header.name);
            return Err(self.input.unsupported(
                "a sparse member of a tar file",
                format!("{:?} at offset {at}", String::from_utf8_lossy(&name)),
                "write the archive again without `tar --sparse`",
            ));
        }
        if is_global_size {
            let found =
                format!("a pax header before the member at offset {at} that gives all members one size");
            return Err(self.input.unsupported(
                "a global size in a tar file",
                found,
                "write the archive again",
            ));
        }
        let size = extended.size.unwrap_or(header.size);
        // Types 1 to 6 have no data, whatever their size field holds; unknown ones have. A name
        // that ends with a slash is a directory in files older than POSIX.
        let is_old_directory = header.kind == 0 && header.name.ends_with(b"/");
        if matches!(header.kind, b'1'..=b'6') || is_old_directory {
            self.at = data;
            return Ok(Next::Other);
        }
        self.skip(data, size)?;
        if !matches!(header.kind, b'0' | 0 | b'7') {
            return Ok(Next::Other);
        }
        let is_name_in_header = extended.path.is_none() && !header.has_prefix;
        let name = extended.path.unwrap_or(header.name);
        Ok(Next::Member(Member { name, is_name_in_header, header: at, start: data, length: size }))
    }

    /// The header at `at`; `None` at the end, which must not come while a member is `expected` for.
    fn header(&mut self, expected: bool) -> Result<Option<TarHeader>, Error> {
        let at = self.at;
        let mut block: HeaderBlock = [0; BLOCK_BYTES as usize];
        let count = self.window.read(at, &mut block)?;
        if count == 0 && !expected {
            // Some writers leave the end out.
            return Ok(None);
        }
        if count < block.len() {
            let found = format!("the end of the file after {count}");
            return Err(self.input.corrupt(at, "tar header", format!("{BLOCK_BYTES} bytes"), found));
        }
        let parsed = TarHeader::parse(&block).map_err(|HeaderError { offset, what, expected, found }| {
            self.input.corrupt(at + offset, format!("tar {what}"), expected, found)
        })?;
        if parsed.is_none() && expected {
            return Err(self.input.corrupt(at, "tar header", "the member of an extended header", "zeros"));
        }
        Ok(parsed)
    }

    /// Reads an extended header.
    fn extended(&mut self, data: u64, size: u64) -> Result<Vec<u8>, Error> {
        if size > MAX_EXTENDED_BYTES {
            let expected = format!("at most {MAX_EXTENDED_BYTES} bytes");
            return Err(self.input.corrupt(data - BLOCK_BYTES, "tar extended header", expected, size));
        }
        let left = self.input.bytes().saturating_sub(data);
        let mut bytes = vec![0; size.min(left) as usize];
        let count = self.window.read(data, &mut bytes)?;
        if (count as u64) < size {
            let found = format!("the end of the file after {count}");
            return Err(self.input.corrupt(data, "tar extended header", format!("{size} bytes"), found));
        }
        Ok(bytes)
    }

    /// Skips data and the zeros that fill their last block.
    fn skip(&mut self, data: u64, size: u64) -> Result<(), Error> {
        let end = size.checked_next_multiple_of(BLOCK_BYTES).and_then(|size| data.checked_add(size));
        let Some(end) = end.filter(|end| *end <= self.input.bytes()) else {
            let left = self.input.bytes().saturating_sub(data);
            let expected = format!("{size} bytes, and zeros to a multiple of {BLOCK_BYTES}");
            let found = format!("{left} to the end of the file");
            return Err(self.input.corrupt(data, "tar member", expected, found));
        };
        self.at = end;
        Ok(())
    }

    /// After the end: a warning if there is more than zeros.
    pub(super) fn trailing_bytes(&mut self) -> Result<Option<String>, Error> {
        let (from, end) = (self.at, self.input.bytes());
        let mut at = from;
        let mut block = [0; 4096];
        while at < end.min(from.saturating_add(MAX_TRAILING_BYTES)) {
            let count = self.window.read(at, &mut block)?;
            if count == 0 {
                break;
            }
            if block[..count].iter().any(|byte| *byte != 0) {
                return Ok(Some(format!(
                    "{}: {} bytes behind the end of the archive at offset {from} are not read, as by tar and webdataset; \
                     members of archives that were joined with `cat` are lost",
                    self.input.path().display(),
                    end - from
                )));
            }
            at += count as u64;
        }
        Ok(None)
    }
}
