//! Reading with a count of what it costs.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::page_error::{PageError, WalkError};
use crate::file::ReadAt;

/// What reading has cost so far.
#[derive(Debug, Default)]
pub(super) struct IoCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl IoCounters {
    /// Number of reads.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Bytes that were read.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }
}

/// Reads until `into` is full or the source ends; interrupted reads are repeated.
pub(super) fn read_most(
    source: &dyn ReadAt,
    offset: u64,
    into: &mut [u8],
    counters: &IoCounters,
) -> Result<usize, WalkError> {
    let mut done = 0;
    while done < into.len() {
        match source.pread(offset + done as u64, &mut into[done..]) {
            Ok(0) => break,
            Ok(count) => {
                counters.reads.fetch_add(1, Ordering::Relaxed);
                counters.read_bytes.fetch_add(count as u64, Ordering::Relaxed);
                done += count;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                let length = (into.len() - done) as u64;
                return Err(WalkError::Io { offset: offset + done as u64, length, source });
            }
        }
    }
    Ok(done)
}

/// Reads exactly `into.len()` bytes; a source that ends before that is truncated.
pub(super) fn read_all(
    source: &dyn ReadAt,
    offset: u64,
    into: &mut [u8],
    counters: &IoCounters,
) -> Result<(), WalkError> {
    let count = read_most(source, offset, into, counters)?;
    if count == into.len() {
        return Ok(());
    }
    let expected = format!("{} bytes", into.len());
    let found = format!("the end of the file after {count} bytes");
    Err(PageError::new(offset, "LMDB pages", expected, found).into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use super::*;

    /// Answers each read with the next of a list of outcomes.
    #[derive(Debug)]
    struct Script(Mutex<Vec<io::Result<usize>>>);

    impl ReadAt for Script {
        fn bytes(&self) -> io::Result<u64> {
            Ok(1 << 20)
        }

        fn pread(&self, _offset: u64, into: &mut [u8]) -> io::Result<usize> {
            let count = self.0.lock().expect("not poisoned").remove(0)?;
            into[..count].fill(7);
            Ok(count)
        }
    }

    fn script(outcomes: Vec<io::Result<usize>>) -> Script {
        Script(Mutex::new(outcomes))
    }

    #[test]
    fn short_and_interrupted_reads_are_completed() {
        let source = script(vec![Ok(3), Err(io::ErrorKind::Interrupted.into()), Ok(1), Ok(4)]);
        let counters = IoCounters::default();
        let mut bytes = [0; 8];
        read_all(&source, 100, &mut bytes, &counters).expect("all bytes");
        assert_eq!(bytes, [7; 8]);
        assert_eq!((counters.reads(), counters.read_bytes()), (3, 8));
    }

    #[test]
    fn the_end_of_the_file_is_reported_with_its_offset() {
        let source = script(vec![Ok(3), Ok(0)]);
        let error = read_all(&source, 100, &mut [0; 8], &IoCounters::default()).expect_err("truncated");
        assert_eq!(
            error.at(Path::new("x.mdb")).to_string(),
            "x.mdb: LMDB pages at offset 100: expected 8 bytes, found the end of the file after 3 bytes"
        );
    }

    #[test]
    fn a_failing_read_is_reported_with_its_offset() {
        let source = script(vec![Ok(3), Err(io::Error::from_raw_os_error(5))]);
        let error = read_all(&source, 100, &mut [0; 8], &IoCounters::default()).expect_err("EIO");
        assert_eq!(
            error.at(Path::new("x.mdb")).to_string(),
            "x.mdb: cannot read 5 bytes at offset 103: Input/output error (os error 5)"
        );
    }
}
