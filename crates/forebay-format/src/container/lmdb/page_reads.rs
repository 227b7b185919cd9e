//! Reads of pages, with a count of what they cost.

use crate::file::{Input, IoCounters};
use crate::unit_check::lmdb_page_error::{PageError, WalkError};

/// Reads until `into` is full or the file ends.
pub(super) fn read_most(
    input: &Input,
    offset: u64,
    into: &mut [u8],
    counters: &IoCounters,
) -> Result<usize, WalkError> {
    input.read_counted(offset, into, counters).map_err(WalkError::Read)
}

/// Reads exactly `into.len()` bytes; a file that ends before that is truncated.
pub(super) fn read_all(
    input: &Input,
    offset: u64,
    into: &mut [u8],
    counters: &IoCounters,
) -> Result<(), WalkError> {
    let count = read_most(input, offset, into, counters)?;
    if count == into.len() {
        return Ok(());
    }
    let expected = format!("{} bytes", into.len());
    let found = format!("the end of the file after {count} bytes");
    Err(PageError::new(offset, "LMDB pages", expected, found).into())
}

#[cfg(test)]
mod tests {
    use std::io;

    use forebay_io::ReadError;

    use super::*;
    use crate::file::script::{Script, eio};

    fn script(outcomes: Vec<io::Result<usize>>) -> Input {
        Script::new(outcomes).input()
    }

    #[test]
    fn short_interrupted_and_failing_reads_are_completed() {
        let input = script(vec![Ok(3), Err(io::ErrorKind::Interrupted.into()), Ok(1), eio(), eio(), Ok(4)]);
        let counters = IoCounters::default();
        let mut bytes = [0; 8];
        read_all(&input, 100, &mut bytes, &counters).expect("all bytes");
        assert_eq!(bytes, [7; 8]);
        assert_eq!((counters.reads(), counters.read_bytes()), (3, 8));
    }

    #[test]
    fn the_end_of_the_file_is_reported_with_its_offset() {
        let input = script(vec![Ok(3), Ok(0)]);
        let error = read_all(&input, 100, &mut [0; 8], &IoCounters::default()).expect_err("truncated");
        assert_eq!(
            error.at(input.path()).to_string(),
            "x.mdb: LMDB pages at offset 100: expected 8 bytes, found the end of the file after 3 bytes"
        );
    }

    #[test]
    fn a_failing_read_is_reported_with_its_offset_and_the_number_of_attempts() {
        let input = script(vec![Ok(3), eio(), eio(), eio()]);
        let error = read_all(&input, 100, &mut [0; 8], &IoCounters::default()).expect_err("EIO");
        let crate::Error::Read(ReadError::Io { path, offset, length, attempts, .. }) = error.at(input.path())
        else {
            panic!("another error")
        };
        assert_eq!((path.as_path(), offset, length, attempts), (input.path(), 103, 5, 3));
    }
}
