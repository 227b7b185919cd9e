//! Files of tokens of llm.c and its kin: 256 numbers of 4 bytes, little-endian, then the tokens.
//!
//! The numbers are a magic number, a version, the number of tokens, and zeros. Source:
//! `write_datafile` in llm.c's `dev/data/data_common.py`.

use forebay_types::Dtype;

use crate::Error;
use crate::file::Input;

/// Length of the header \[bytes\].
const HEADER_BYTES: usize = 1024;

/// Magic number and version of each kind of file, and the type of its tokens.
const KINDS: [(u32, u32, Dtype); 2] = [(20_240_520, 1, Dtype::Uint16), (20_240_801, 7, Dtype::Uint32)];

/// The header of such a file and the type of its tokens; `None` of any other file.
pub(super) fn header(input: &Input) -> Result<Option<(Vec<u8>, Dtype)>, Error> {
    let mut header = vec![0; HEADER_BYTES];
    let count = input.read_most(0, &mut header)?;
    let number = |place: usize| u32::from_le_bytes(*header[4 * place..].first_chunk().expect("4 bytes"));
    let Some((_, version, dtype)) = KINDS.into_iter().find(|(magic, ..)| *magic == number(0)) else {
        return Ok(None);
    };
    // Two tokens may look like the magic number; few are followed by zeros up to the end of a
    // header.
    if count < HEADER_BYTES || header[12..].iter().any(|byte| *byte != 0) {
        return Ok(None);
    }
    if number(1) != version {
        let found = format!("version {} (expected {version})", number(1));
        let hint = "header_bytes=1024 and dtype= state what it holds";
        return Err(input.unsupported("another version of llm.c's header", found, hint));
    }
    let expected = HEADER_BYTES as u64 + u64::from(number(2)) * dtype.item_bytes() as u64;
    if expected != input.bytes() {
        let what = "llm.c: number of tokens";
        let tokens = format!("{}, in a file of {expected} bytes", number(2));
        return Err(input.corrupt(8, what, format!("what {} bytes hold", input.bytes()), tokens));
    }
    Ok(Some((header, dtype)))
}
