//! The superblock: the only part of an HDF5 file that is read here.
//!
//! It holds where the file begins (a user block may come first), where it ends, and whether a
//! writer has it open. h5py finds everything else. Versions 0 to 3 (HDF5 File Format Specification,
//! section II.A).

use crate::Error;
use crate::file::Input;

/// The mark of every HDF5 file.
pub(crate) const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";

/// Bytes of the longest superblock that is read: version 1 with offsets of 8 bytes.
const HEAD_BYTES: usize = 60;

/// Flags of a file that is open for writing, or was when its writer died: written to, and read
/// meanwhile (SWMR).
const OPEN_FLAGS: u8 = 1 | 4;

/// Contents of the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Its offset [bytes from the start of the file].
    pub(crate) offset: u64,
    /// Its version.
    pub(crate) version: u8,
    /// The bytes that were read.
    pub(crate) head: Vec<u8>,
}

/// Offset of the signature of an HDF5 file, if there is one.
pub(crate) fn signature(input: &Input) -> Result<Option<u64>, Error> {
    let mut offset = 0;
    while offset == 0 || offset < input.bytes() {
        let mut found = [0; SIGNATURE.len()];
        let count = input.read_most(offset, &mut found)?;
        if found[..count] == SIGNATURE {
            return Ok(Some(offset));
        }
        // After a user block, whose length is 512 times a power of two.
        offset = if offset == 0 { 512 } else { 2 * offset };
    }
    Ok(None)
}

impl Superblock {
    /// Finds and checks the superblock of a file.
    pub(crate) fn read(input: &Input) -> Result<Self, Error> {
        let Some(offset) = signature(input)? else {
            let expected = format!("{SIGNATURE:02x?}, there or at 512, 1024, 2048 and so on");
            return Err(input.corrupt(0, "HDF5 signature", expected, "none"));
        };
        let mut head = vec![0; HEAD_BYTES];
        let count = input.read_most(offset, &mut head)?;
        head.truncate(count);
        Self::decode(input, offset, head)
    }

    fn decode(input: &Input, offset: u64, head: Vec<u8>) -> Result<Self, Error> {
        let short = || input.corrupt(offset, "superblock", "more bytes", "the end of the file");
        let byte = |at: usize| head.get(at).copied().ok_or_else(short);
        let version = byte(8)?;
        // Offset of the size of offsets; and offset of the end-of-file address, in units of that
        // size after the base.
        let (size_at, base_at) = match version {
            0 => (13, 24),
            1 => (13, 28),
            2 | 3 => (9, 12),
            _ => {
                let found = format!("version {version}");
                let hint = "rewrite the file with h5repack, or read it with a newer Forebay";
                return Err(input.unsupported("this HDF5 superblock", found, hint));
            }
        };
        let size = usize::from(byte(size_at)?);
        if !matches!(size, 2 | 4 | 8) {
            return Err(input.corrupt(offset + size_at as u64, "size of offsets", "2, 4 or 8", size));
        }
        let end_at = base_at + 2 * size;
        let stored = head.get(end_at..end_at + size).ok_or_else(short)?;
        let end = stored.iter().rev().fold(0, |end, byte| end << 8 | u64::from(*byte));
        if end > input.bytes() {
            let expected = format!("{end} bytes");
            return Err(input.corrupt(offset + end_at as u64, "length of the file", expected, input.bytes()));
        }
        if version == 3 && byte(11)? & OPEN_FLAGS != 0 {
            let found = format!("consistency flags {:#04x}", byte(11)?);
            let hint = "wait until the writer has closed it; after a crash, clear the flags with h5clear -s";
            return Err(input.unsupported("a file that a writer has open", found, hint));
        }
        Ok(Self { offset, version, head })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    /// A version 2 or 3 superblock after a user block of `offset` bytes.
    fn file(offset: usize, version: u8, flags: u8, end: u64, bytes: usize) -> Vec<u8> {
        let mut file = vec![0; bytes];
        let mut head = SIGNATURE.to_vec();
        head.extend([version, 8, 8, flags]);
        head.extend([0, u64::MAX, end].iter().flat_map(|address: &u64| address.to_le_bytes()));
        let count = head.len().min(bytes.saturating_sub(offset));
        file[offset..offset + count].copy_from_slice(&head[..count]);
        file
    }

    fn read(file: Vec<u8>) -> Result<Superblock, String> {
        let input = Input::from_source(Path::new("x.h5"), Arc::new(file)).expect("in memory");
        Superblock::read(&input).map_err(|error| error.to_string())
    }

    #[test]
    fn a_superblock_is_found_behind_a_user_block() {
        assert_eq!(read(file(0, 2, 0, 200, 200)).map(|found| (found.offset, found.version)), Ok((0, 2)));
        assert_eq!(read(file(2048, 3, 0, 4000, 4000)).map(|found| found.offset), Ok(2048));
        let error = read(vec![7; 5000]).expect_err("no signature");
        assert!(error.starts_with("x.h5: HDF5 signature at offset 0: expected "), "{error}");
    }

    #[test]
    fn cut_files_and_files_that_are_written_are_refused() {
        let error = read(file(0, 2, 0, 201, 200)).expect_err("one byte less");
        assert_eq!(error, "x.h5: length of the file at offset 28: expected 201 bytes, found 200");
        let error = read(file(0, 3, 5, 200, 200)).expect_err("open");
        assert!(error.contains("a file that a writer has open"), "{error}");
        assert!(read(file(0, 2, 5, 200, 200)).is_ok(), "version 2 has no such flags");
        assert!(read(file(0, 4, 0, 200, 200)).is_err());
        for bytes in 0..36 {
            assert!(read(file(0, 2, 0, 0, bytes)).is_err(), "{bytes}");
        }
    }
}
