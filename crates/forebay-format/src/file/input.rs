//! What the formats read from: a file, or another source that can be read at an offset, with its
//! name and size.
//!
//! Files are opened for reading only and never mapped: if a mapped file shrinks, the process gets
//! SIGBUS, while a `pread` comes back short. The kernel's own read-ahead is off, because the scan
//! knows which pages it needs and prefetches them ([`ReadAt::will_need`]); other reads would be
//! wasted on shared storage.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_io::{DataFile, Failing, ReadAt, ReadCounters, ReadError, read_most};
use forebay_types::ShardId;

use crate::Error;

/// A data file that a format reads, with its name, its size when it was opened, and the cost of its
/// reads.
#[derive(Debug)]
pub struct Input {
    path: PathBuf,
    source: Arc<dyn ReadAt>,
    /// The file itself, where it is one.
    file: Option<Arc<DataFile>>,
    bytes: u64,
    counters: IoCounters,
}

/// What reading has cost so far.
#[derive(Debug, Default)]
pub(crate) struct IoCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl IoCounters {
    /// Number of reads.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Bytes that were read.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Adds what one call of `read` has cost.
    fn count<T>(&self, read: impl FnOnce(&mut ReadCounters) -> T) -> T {
        let mut cost = ReadCounters::default();
        let answer = read(&mut cost);
        self.reads.fetch_add(cost.reads, Ordering::Relaxed);
        self.read_bytes.fetch_add(cost.read_bytes, Ordering::Relaxed);
        answer
    }
}

impl Input {
    /// Opens a regular file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::from_file(DataFile::open(path)?)
    }

    /// Takes an open file.
    pub(crate) fn from_file(file: DataFile) -> Result<Self, Error> {
        file.read_ahead(false);
        let file = Arc::new(file);
        let input = Self::from_source(file.path(), Arc::clone(&file) as _)?;
        Ok(Self { file: Some(file), ..input })
    }

    /// Takes `source` for the file at `path`.
    pub fn from_source(path: &Path, source: Arc<dyn ReadAt>) -> Result<Self, Error> {
        let bytes = source.bytes().map_err(inspect_error(path))?;
        Ok(Self { path: path.to_owned(), source, file: None, bytes, counters: IoCounters::default() })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size when it was opened \[bytes\].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its present size \[bytes\].
    pub(crate) fn present_bytes(&self) -> std::io::Result<u64> {
        self.source.bytes()
    }

    /// The file itself, where it is one.
    pub(crate) fn file(&self) -> Option<&Arc<DataFile>> {
        self.file.as_ref()
    }

    /// Number of reads so far.
    pub fn reads(&self) -> u64 {
        self.counters.reads()
    }

    /// Bytes read so far.
    pub fn read_bytes(&self) -> u64 {
        self.counters.read_bytes()
    }

    /// The same file, read through what `wrap` makes of its source.
    #[must_use]
    pub(crate) fn read_through(&self, wrap: impl FnOnce(Arc<dyn ReadAt>) -> Arc<dyn ReadAt>) -> Self {
        let (path, source) = (self.path.clone(), wrap(Arc::clone(&self.source)));
        let (file, bytes, counters) = (self.file.clone(), self.bytes, IoCounters::default());
        Self { path, source, file, bytes, counters }
    }

    /// Announces that these bytes are read soon.
    pub fn will_need(&self, offset: u64, length: u64) {
        self.source.will_need(offset, length);
    }

    /// Reads until `into` is full or the file ends; returns the number of bytes.
    pub fn read_most(&self, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        Ok(self.read_counted(offset, into, &self.counters)?)
    }

    /// The same, for a reader that counts for itself.
    pub(crate) fn read_counted(
        &self,
        offset: u64,
        into: &mut [u8],
        counters: &IoCounters,
    ) -> Result<usize, ReadError> {
        counters.count(|cost| read_most(&*self.source, &self.path, offset, into, cost))
    }

    /// Reads exactly `into.len()` bytes of `what`; a file that ends before is [`Error::Corrupt`].
    pub fn read(&self, offset: u64, into: &mut [u8], what: &str) -> Result<(), Error> {
        let count = self.read_most(offset, into)?;
        self.check_count(offset, into.len(), what, count)
    }

    /// The same; `failing` remembers the parts of the files that could not be read, and `shard` is
    /// the number of this one.
    pub(crate) fn read_where(
        &self,
        failing: &Failing,
        (shard, offset): (ShardId, u64),
        into: &mut [u8],
        what: &str,
    ) -> Result<(), Error> {
        let read = |cost: &mut _| failing.read_most(&*self.source, &self.path, (shard, offset), into, cost);
        let count = self.counters.count(read)?;
        self.check_count(offset, into.len(), what, count)
    }

    fn check_count(&self, offset: u64, length: usize, what: &str, count: usize) -> Result<(), Error> {
        if count == length {
            return Ok(());
        }
        let found = format!("the end of the file after {count}");
        Err(self.corrupt(offset, what, format!("{length} bytes"), found))
    }

    /// The bytes contradict the format.
    #[allow(clippy::needless_pass_by_value, reason = "callers pass numbers and strings alike")]
    pub fn corrupt(
        &self,
        offset: u64,
        what: impl Into<String>,
        expected: impl ToString,
        found: impl ToString,
    ) -> Error {
        let (expected, found) = (expected.to_string(), found.to_string());
        Error::Corrupt { path: self.path.clone(), offset, what: what.into(), expected, found }
    }

    /// The file is valid but of a kind that is not supported; `hint` is advice to the user.
    pub fn unsupported(
        &self,
        what: impl Into<String>,
        found: impl Into<String>,
        hint: impl Into<String>,
    ) -> Error {
        Error::Unsupported {
            path: self.path.clone(),
            what: what.into(),
            found: found.into(),
            hint: hint.into(),
        }
    }

    /// [`Error::Modified`] where the file has another size than when it was opened.
    pub fn check_unchanged(&self) -> Result<(), Error> {
        let bytes = self.source.bytes().map_err(inspect_error(&self.path))?;
        if bytes == self.bytes {
            return Ok(());
        }
        let (expected, found) = (format!("{} bytes", self.bytes), format!("{bytes} bytes"));
        Err(self.modified("size", expected, found))
    }

    /// The file was changed since it was opened; `what` differs.
    pub fn modified(
        &self,
        what: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Error {
        Error::Modified {
            path: self.path.clone(),
            what: what.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}

fn inspect_error(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |source| ReadError::Open { path: path.to_owned(), action: "inspect", source }.into()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use super::*;
    use crate::file::script::{Script, eio};

    const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];

    /// How the parts of the crate read: a name, and a read of 8 bytes at offset 100.
    type Way = (&'static str, fn(&Input) -> Result<(), Error>);

    /// All of them; LMDB's are in `page_reads.rs`.
    const WAYS: [Way; 2] = [
        ("index build", |input| input.read(100, &mut [0; 8], "header")),
        ("single samples and verify", |input| {
            input.read_where(&Failing::default(), (ShardId(3), 100), &mut [0; 8], "record")
        }),
    ];

    /// What an error of reading says: offset, length, attempts, whether reads nearby had failed,
    /// error number.
    fn facts(error: &Error) -> (u64, u64, u32, bool, Option<i32>) {
        let Error::Read(ReadError::Io { path, offset, length, attempts, known, source }) = error else {
            panic!("another error: {error}")
        };
        assert_eq!(path, Path::new("x.mdb"));
        (*offset, *length, *attempts, *known, source.raw_os_error())
    }

    #[test]
    fn a_read_that_fails_twice_succeeds_at_the_third_attempt() {
        for (name, read) in WAYS {
            let script = Script::new([eio(), eio(), Ok(8)]);
            let input = script.input();
            read(&input).expect(name);
            assert_eq!((script.left(), script.pauses()), (0, PAUSES.to_vec()), "{name}");
            assert_eq!((input.reads(), input.read_bytes()), (1, 8), "{name}");
        }
    }

    #[test]
    fn a_read_that_always_fails_is_an_error_after_three_attempts() {
        for (name, read) in WAYS {
            // Three bytes come first: progress makes the count start again.
            let script = Script::new([eio(), Ok(3), eio(), eio(), eio(), Ok(5)]);
            let error = read(&script.input()).expect_err(name);
            assert_eq!(facts(&error), (103, 5, 3, false, Some(5)), "{name}");
            assert_eq!(script.left(), 1, "{name}");
        }
    }

    #[test]
    fn samples_near_a_failed_read_are_tried_once() {
        let failing = Failing::default();
        let script = Script::new([eio(), eio(), eio(), eio(), eio(), Ok(8)]);
        let input = script.input();
        let read = |shard, offset| {
            input.read_where(&failing, (ShardId(shard), offset), &mut [0; 8], "record").map_err(|e| facts(&e))
        };
        assert_eq!(read(3, 100), Err((100, 8, 3, false, Some(5))));
        assert_eq!(read(3, 5000), Err((5000, 8, 1, true, Some(5))));
        assert_eq!(script.pauses(), PAUSES);
        // The same place of another file is not near.
        assert_eq!(read(4, 100), Ok(()));
        assert_eq!(script.pauses(), [PAUSES[0], PAUSES[1], PAUSES[0]]);
    }

    #[test]
    fn a_file_that_ends_early_is_corrupt_however_it_is_read() {
        for (name, read) in WAYS {
            let error = read(&Script::new([Ok(3), Ok(0)]).input()).expect_err(name);
            assert!(matches!(error, Error::Corrupt { offset: 100, .. }), "{name}: {error}");
        }
    }

    #[test]
    fn an_error_that_does_not_pass_is_not_tried_again() {
        for (name, read) in WAYS {
            let refused: io::Result<usize> = Err(io::Error::from_raw_os_error(13));
            let script = Script::new([refused, Ok(8)]);
            let error = read(&script.input()).expect_err(name);
            assert_eq!(facts(&error), (100, 8, 1, false, Some(13)), "{name}");
            assert_eq!(script.left(), 1, "{name}");
        }
    }
}
