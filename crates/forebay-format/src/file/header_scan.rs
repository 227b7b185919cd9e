//! Reads the headers of a container whose records lie back to back, each header with the length of
//! its record.
//!
//! Where records are small, headers come with large blocks of the file; where they are large, each
//! header is read alone and the record skipped. Each block replaces the one before, so memory does
//! not depend on the file. Nothing beyond the end of the file is read.
//!
//! [`crate::container::tar`] has a reader of its own (`window.rs`), since its reads grow in another
//! way: it also reads the headers after a leap, and headers of any length. This reader wants only
//! the next header, of fixed length, after a leap, and a full block as soon as two records lie
//! close.

use std::time::{Duration, Instant};

use super::Input;
use crate::Error;

/// Distance of headers from which on the bytes between them are skipped \[bytes\].
///
/// On shared storage a request costs about as much as the transfer of 64 KiB (docs/cost-model.md).
const LEAP_BYTES: u64 = 64 << 10;

/// Length of a block \[bytes\]: so large that the cost of the request is small against the
/// transfer.
const BLOCK_BYTES: u64 = 1 << 20;

/// Length of the first read \[bytes\]: the size of records is unknown, and a page costs what a byte
/// does.
const FIRST_BYTES: u64 = 4096;

/// Time between two calls of the progress callback; Ctrl-C should feel immediate.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The headers of one file, read from its start to its end.
pub(crate) struct HeaderScan<'a> {
    input: &'a Input,
    progress: &'a dyn Fn(u64) -> bool,
    last_progress: Instant,
    block: Vec<u8>,
    block_at: u64,
    /// Where the last requested header begins.
    last_at: Option<u64>,
}

impl<'a> HeaderScan<'a> {
    /// The headers of a file. `progress` gets the offset \[bytes\] a few times a second; `false`
    /// ends the work with [`Error::Interrupted`].
    pub(crate) fn new(input: &'a Input, progress: &'a dyn Fn(u64) -> bool) -> Self {
        Self { input, progress, last_progress: Instant::now(), block: Vec::new(), block_at: 0, last_at: None }
    }

    /// The file.
    pub(crate) fn input(&self) -> &'a Input {
        self.input
    }

    /// What was read last.
    pub(crate) fn block(&self) -> &[u8] {
        &self.block
    }

    /// The `N` bytes at `at`, which lie after those of the last call.
    ///
    /// If the file ends before, the error names `what`.
    pub(crate) fn get<const N: usize>(&mut self, at: u64, what: &str) -> Result<[u8; N], Error> {
        self.bytes(at, N, what).map(|bytes| *bytes.first_chunk().expect("as many as were asked for"))
    }

    /// The same for a length that is not known beforehand.
    pub(crate) fn bytes(&mut self, at: u64, length: usize, what: &str) -> Result<&[u8], Error> {
        let (left, wide) = (self.input.bytes().saturating_sub(at), length as u64);
        if left < wide {
            let found = format!("the end of the file after {left} bytes");
            return Err(self.input.corrupt(at, what, format!("{length} bytes"), found));
        }
        let block_end = self.block_at + self.block.len() as u64;
        if at < self.block_at || at + wide > block_end {
            let wanted = match self.last_at {
                None => FIRST_BYTES,
                Some(last) if at.saturating_sub(last) >= LEAP_BYTES => wide,
                Some(_) => BLOCK_BYTES,
            };
            self.block.resize(left.min(wanted.max(wide)) as usize, 0);
            self.block_at = at;
            self.fill(what)?;
        }
        self.last_at = Some(at);
        let from = (at - self.block_at) as usize;
        Ok(&self.block[from..from + length])
    }

    /// Reads the block.
    fn fill(&mut self, what: &str) -> Result<(), Error> {
        if self.last_progress.elapsed() >= PROGRESS_INTERVAL {
            if !(self.progress)(self.block_at) {
                return Err(Error::Interrupted);
            }
            self.last_progress = Instant::now();
        }
        let read = self.input.read(self.block_at, &mut self.block, what);
        if read.is_err() {
            self.block.clear();
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    fn input(bytes: usize) -> Input {
        let bytes = (0..bytes).map(|at| at as u8).collect::<Vec<u8>>();
        Input::from_source(Path::new("x"), Arc::new(bytes)).expect("a file in memory")
    }

    #[test]
    fn small_records_come_with_blocks_and_large_ones_are_skipped() {
        let input = input(8 << 20);
        let mut headers = HeaderScan::new(&input, &|_| true);
        let mut read = |at| {
            let before = input.read_bytes();
            let header = headers.get::<12>(at, "header").expect("there");
            assert_eq!(header[0], at as u8);
            input.read_bytes() - before
        };
        assert_eq!(read(0), 4096, "the first page");
        assert_eq!(read(1000), 0, "held");
        assert_eq!(read(5000), 1 << 20, "small records");
        assert_eq!(read(60_000), 0, "held");
        assert_eq!(read(2 << 20), 12, "a leap");
        assert_eq!(read((2 << 20) + 100_000), 12, "another one");
        assert_eq!(read((2 << 20) + 100_020), 1 << 20, "small records again");
        assert_eq!(read((8 << 20) - 20), 12);
        assert_eq!(read((8 << 20) - 12), 12, "no more than there is");
    }

    #[test]
    fn headers_behind_the_end_are_reported_with_their_place() {
        let input = input(10);
        let mut headers = HeaderScan::new(&input, &|_| true);
        let error = headers.get::<8>(4, "header").expect_err("cut").to_string();
        assert_eq!(error, "x: header at offset 4: expected 8 bytes, found the end of the file after 6 bytes");
        let error = headers.get::<8>(u64::MAX, "header").expect_err("beyond").to_string();
        assert!(error.ends_with("after 0 bytes"), "{error}");
    }

    #[test]
    fn a_caller_that_has_enough_ends_the_walk() {
        let input = input(4 << 20);
        let calls = RefCell::new(Vec::new());
        let progress = |done| {
            calls.borrow_mut().push(done);
            false
        };
        let mut headers = HeaderScan::new(&input, &progress);
        headers.get::<8>(0, "header").expect("the first interval has not passed");
        std::thread::sleep(2 * PROGRESS_INTERVAL);
        assert!(matches!(headers.get::<8>(1 << 20, "header"), Err(Error::Interrupted)));
        assert_eq!(*calls.borrow(), [1 << 20]);
    }
}
