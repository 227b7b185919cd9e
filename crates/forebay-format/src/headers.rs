//! Reads the headers of a container whose records stand one behind the other, each header telling where the next is.
//!
//! Where records are small, their headers come with large blocks of the file; where they are large, a header is read
//! alone and the record skipped. What was read is dropped when the next block is read, so that memory does not depend
//! on the file. Nothing is read that the file does not have.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Error;
use crate::lmdb::Source;

/// Distance of headers from which on the bytes between them are skipped \[bytes\].
///
/// On shared storage a request costs about as much as the transfer of 64 KiB (docs/cost-model.md).
const LEAP_BYTES: u64 = 64 << 10;

/// Length of a block \[bytes\]: large enough that the cost of a request does not show against its transfer.
const BLOCK_BYTES: u64 = 1 << 20;

/// Length of the first read \[bytes\]: nobody knows yet how large the records are, and a page costs what a byte does.
const FIRST_BYTES: u64 = 4096;

/// Time after which a caller that waits is asked whether it still wants to; Ctrl-C should feel immediate.
const WAITING: Duration = Duration::from_millis(100);

/// What a walk over a file has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Number of reads.
    pub reads: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
}

/// Headers of one file, looked at from its start to its end.
pub(crate) struct Headers<'a> {
    source: &'a dyn Source,
    path: &'a Path,
    file_bytes: u64,
    progress: &'a dyn Fn(u64) -> bool,
    asked: Instant,
    block: Vec<u8>,
    block_at: u64,
    /// Where the last header that was asked for begins.
    last_at: Option<u64>,
    cost: Cost,
}

impl<'a> Headers<'a> {
    /// The headers of `source`, which has `file_bytes` bytes. `progress` is told how far the work is \[bytes\], a few
    /// times a second; `false` ends it with [`Error::Interrupted`].
    pub(crate) fn new(
        source: &'a dyn Source,
        path: &'a Path,
        file_bytes: u64,
        progress: &'a dyn Fn(u64) -> bool,
    ) -> Self {
        let (asked, cost) = (Instant::now(), Cost::default());
        Self {
            source,
            path,
            file_bytes,
            progress,
            asked,
            block: Vec::new(),
            block_at: 0,
            last_at: None,
            cost,
        }
    }

    /// Size of the file \[bytes\].
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// What was read so far.
    pub(crate) fn cost(&self) -> Cost {
        self.cost
    }

    /// The `N` bytes at `at`, which lie behind those of the last call.
    ///
    /// A file without so many bytes there is an error that says `what` was looked for.
    pub(crate) fn get<const N: usize>(&mut self, at: u64, what: &str) -> Result<[u8; N], Error> {
        let left = self.file_bytes.saturating_sub(at);
        if left < N as u64 {
            return Err(self.short(at, what, N as u64, left));
        }
        let block_end = self.block_at + self.block.len() as u64;
        if at < self.block_at || at + N as u64 > block_end {
            let wanted = match self.last_at {
                None => FIRST_BYTES,
                Some(last) if at.saturating_sub(last) >= LEAP_BYTES => N as u64,
                Some(_) => BLOCK_BYTES,
            };
            self.block.resize(left.min(wanted.max(N as u64)) as usize, 0);
            self.block_at = at;
            self.fill(what)?;
        }
        self.last_at = Some(at);
        let from = (at - self.block_at) as usize;
        let bytes = self.block[from..].first_chunk().expect("the block holds the header");
        Ok(*bytes)
    }

    /// Reads the block.
    fn fill(&mut self, what: &str) -> Result<(), Error> {
        if self.asked.elapsed() >= WAITING {
            if !(self.progress)(self.block_at) {
                return Err(Error::Interrupted);
            }
            self.asked = Instant::now();
        }
        let mut done = 0;
        while done < self.block.len() {
            match self.source.pread(self.block_at + done as u64, &mut self.block[done..]) {
                Ok(0) => {
                    let error = self.short(self.block_at, what, self.block.len() as u64, done as u64);
                    self.block.clear();
                    return Err(error);
                }
                Ok(count) => {
                    done += count;
                    self.cost.reads += 1;
                    self.cost.read_bytes += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Error::Io {
                        action: format!("read {} bytes", self.block.len() - done),
                        path: self.path.to_owned(),
                        offset: Some(self.block_at + done as u64),
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// The error of a file that ends too early.
    pub(crate) fn short(&self, at: u64, what: &str, wanted: u64, left: u64) -> Error {
        let found = format!("the end of the file after {left} bytes");
        self.corrupt(at, what, format!("{wanted} bytes"), found)
    }

    /// The error of bytes that contradict the format.
    pub(crate) fn corrupt(&self, offset: u64, what: &str, expected: String, found: String) -> Error {
        Error::Corrupt { path: self.path.to_owned(), offset, what: what.to_owned(), expected, found }
    }
}

/// Reads a small file that belongs to a container, whole.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Io {
        action: "read the file".to_owned(),
        path: path.to_owned(),
        offset: None,
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;
    use std::sync::Mutex;

    use super::*;

    /// Answers each read with the next of a list of outcomes.
    #[derive(Debug)]
    struct Script(Mutex<Vec<io::Result<usize>>>);

    impl Source for Script {
        fn bytes(&self) -> io::Result<u64> {
            Ok(1 << 30)
        }

        fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
            let count = self.0.lock().expect("not poisoned").remove(0)?.min(into.len());
            for (index, byte) in into[..count].iter_mut().enumerate() {
                *byte = (offset + index as u64) as u8;
            }
            Ok(count)
        }
    }

    fn script(outcomes: Vec<io::Result<usize>>) -> Script {
        Script(Mutex::new(outcomes))
    }

    #[test]
    fn small_records_come_with_blocks_and_large_ones_are_skipped() {
        let source = vec![0; 8 << 20];
        let mut headers = Headers::new(&source, Path::new("x"), source.len() as u64, &|_| true);
        let mut read = |at| {
            let before = headers.cost().read_bytes;
            headers.get::<12>(at, "header").expect("there");
            headers.cost().read_bytes - before
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
    fn short_and_interrupted_reads_are_completed() {
        let source = script(vec![Ok(5), Err(ErrorKind::Interrupted.into()), Ok(usize::MAX)]);
        let mut headers = Headers::new(&source, Path::new("x"), 1 << 30, &|_| true);
        assert_eq!(headers.get::<8>(0, "header").expect("all bytes"), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(headers.cost(), Cost { reads: 2, read_bytes: 4096 });
    }

    #[test]
    fn files_that_end_or_fail_are_reported_with_the_place() {
        for (outcomes, text) in [
            (
                vec![Ok(3), Ok(0)],
                "x: header at offset 0: expected 4096 bytes, found the end of the file after 3 bytes",
            ),
            (
                vec![Ok(3), Err(io::Error::from_raw_os_error(5))],
                "x: cannot read 4093 bytes at offset 3: Input/output error (os error 5)",
            ),
        ] {
            let source = script(outcomes);
            let mut headers = Headers::new(&source, Path::new("x"), 1 << 30, &|_| true);
            assert_eq!(headers.get::<8>(0, "header").expect_err("broken").to_string(), text);
        }
        let source = vec![0; 10];
        let mut headers = Headers::new(&source, Path::new("x"), 10, &|_| true);
        let error = headers.get::<8>(4, "header").expect_err("cut").to_string();
        assert_eq!(error, "x: header at offset 4: expected 8 bytes, found the end of the file after 6 bytes");
        let error = headers.get::<8>(u64::MAX, "header").expect_err("beyond").to_string();
        assert!(error.ends_with("after 0 bytes"), "{error}");
    }

    #[test]
    fn a_caller_that_has_enough_ends_the_walk() {
        let source = vec![0; 4 << 20];
        let calls = RefCell::new(Vec::new());
        let progress = |done| {
            calls.borrow_mut().push(done);
            false
        };
        let mut headers = Headers::new(&source, Path::new("x"), 4 << 20, &progress);
        headers.get::<8>(0, "header").expect("nobody is asked at once");
        std::thread::sleep(2 * WAITING);
        assert!(matches!(headers.get::<8>(1 << 20, "header"), Err(Error::Interrupted)));
        assert_eq!(*calls.borrow(), [1 << 20]);
    }
}
