//! Files and directories: what can be opened, what is touched, what a writer or a failing disk does
//! to a reader.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::support::lmdb_reader::PATH;
use crate::support::lmdb_writer::{Image, Kind, Spec, records};
use forebay_format::Error;
use forebay_format::lmdb::{Database, Dialect, Identity, ReadAt, WalkOptions};
use forebay_io::ReadError;

fn image() -> Image {
    Spec::new(Dialect::ALL[0], 512).build(&records(1, 300, |random| random.below(600) as usize))
}

fn walk(database: &Database, threads: usize) -> Result<u64, Error> {
    let options = WalkOptions { threads, ..WalkOptions::default() };
    Ok(database.walk(&options, &|_, _| true, &mut |_| Ok(()))?.records)
}

#[test]
fn a_directory_and_a_file_are_opened_and_nothing_is_touched() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("data.mdb");
    fs::write(&file, image().bytes).expect("written");
    fs::write(place.path().join("lock.mdb"), b"lock").expect("written");
    let state = || {
        let state = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.expect("an entry");
            let metadata = entry.metadata().expect("metadata");
            (entry.file_name(), metadata.mtime_nsec(), metadata.ctime_nsec(), metadata.len())
        };
        let mut entries: Vec<_> = fs::read_dir(place.path()).expect("a directory").map(state).collect();
        entries.sort();
        entries
    };
    let before = state();
    for path in [place.path(), &file] {
        let database = Database::open(path, None).expect("a sound file");
        assert_eq!(database.path(), file);
        assert_eq!(database.file_bytes(), fs::metadata(&file).expect("metadata").len());
        assert_eq!((database.entries(), database.header_bytes(), database.page_bytes()), (300, 16, 512));
        for threads in [1, 4] {
            assert_eq!(walk(&database, threads).expect("a sound file"), 300);
        }
    }
    assert_eq!(state(), before);
}

#[test]
fn a_path_that_is_no_database_says_what_it_is() {
    let place = tempfile::tempdir().expect("a directory");
    let path = place.path().display();
    let error = Database::open(place.path(), None).expect_err("nothing there");
    assert_eq!(error.to_string(), format!("{path}: the directory holds no data.mdb"));
    assert_eq!(error.hint(), Some("name the directory of an LMDB database, or its data file"));

    let error = Database::open(&place.path().join("absent"), None).expect_err("nothing there");
    assert_eq!(
        error.to_string(),
        format!("{path}/absent: cannot open for reading: No such file or directory (os error 2)")
    );

    fs::create_dir(place.path().join("data.mdb")).expect("made");
    let error = Database::open(place.path(), None).expect_err("a directory");
    assert!(
        error.to_string().contains("not supported: a data file that is not a regular file (Directory)"),
        "{error}"
    );

    let fifo = place.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("made");
    let error = Database::open(&fifo, None).expect_err("a pipe");
    assert!(
        error.to_string().contains("not supported: a data file that is not a regular file (Fifo)"),
        "{error}"
    );
}

#[test]
fn a_file_that_may_not_be_read_says_so() {
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: root may read everything");
        return;
    }
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("data.mdb");
    fs::write(&file, image().bytes).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).expect("set");
    let error = Database::open(place.path(), None).expect_err("no permission");
    assert_eq!(
        error.to_string(),
        format!("{}: cannot open for reading: Permission denied (os error 13)", file.display())
    );
}

#[test]
fn an_empty_database_has_no_records() {
    for dialect in Dialect::ALL {
        let image = Spec::new(dialect, 4096).build(&[]);
        let database =
            Database::from_source(Arc::new(image.bytes), Path::new(PATH), None).expect("a sound file");
        assert_eq!(database.entries(), 0);
        assert_eq!(walk(&database, 4).expect("a sound file"), 0);
    }
}

#[test]
fn an_identity_survives_serde() {
    let database =
        Database::from_source(Arc::new(image().bytes), Path::new(PATH), None).expect("a sound file");
    let text = serde_json::to_string(database.identity()).expect("text");
    let identity: Identity = serde_json::from_str(&text).expect("an identity");
    assert_eq!(&identity, database.identity());
}

/// A file that changes while it is read, and reads of which some fail.
#[derive(Debug)]
struct Changing {
    bytes: Mutex<Vec<u8>>,
    /// Reads until the first that fails with EIO; counts on below zero.
    countdown: AtomicI64,
    /// How many fail from there on.
    failures: AtomicI64,
}

impl Changing {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(bytes), countdown: AtomicI64::new(0), failures: AtomicI64::new(0) })
    }

    fn fail(&self, countdown: i64, failures: i64) {
        self.countdown.store(countdown, Ordering::Relaxed);
        self.failures.store(failures, Ordering::Relaxed);
    }

    fn become_bytes(&self, bytes: Vec<u8>) {
        *self.bytes.lock().expect("not poisoned") = bytes;
    }
}

impl ReadAt for Changing {
    fn bytes(&self) -> io::Result<u64> {
        self.bytes.lock().expect("not poisoned").bytes()
    }

    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let number = self.countdown.fetch_sub(1, Ordering::Relaxed);
        if number <= 0 && number > -self.failures.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5));
        }
        // Every read comes in pieces.
        let count = into.len().min(700);
        self.bytes.lock().expect("not poisoned").pread(offset, &mut into[..count])
    }

    fn pause(&self, _time: Duration) {}
}

fn transaction(number: u64, count: usize) -> Image {
    Spec { transaction: number, ..Spec::new(Dialect::ALL[0], 512) }.build(&records(1, count, |_| 20))
}

/// The bytes after one more transaction: its meta page beside the one that was opened.
fn followed_by_one(opened: &Image) -> Vec<u8> {
    let next = transaction(opened.spec.transaction + 1, 290);
    let mut bytes = opened.bytes.clone();
    let page = (next.spec.transaction & 1) as usize * 512;
    bytes[page..page + 512].copy_from_slice(&next.bytes[page..page + 512]);
    bytes
}

#[test]
fn one_transaction_of_a_writer_is_harmless_and_two_are_an_error() {
    for first in [4, 5] {
        let opened = transaction(first, 300);
        let source = Changing::new(opened.bytes.clone());
        let database = Database::from_source(source.clone(), Path::new(PATH), None).expect("a sound file");
        database.check_unchanged().expect("unchanged");

        source.become_bytes(followed_by_one(&opened));
        database.check_unchanged().expect("one transaction");
        assert_eq!(walk(&database, 1).expect("the opened snapshot"), 300);

        let message = |number: u64, count: usize| {
            source.become_bytes(transaction(number, count).bytes);
            let error = database.check_unchanged().expect_err("modified");
            assert!(matches!(error, Error::Modified { .. }));
            assert_eq!(walk(&database, 1).expect_err("modified").to_string(), error.to_string());
            error.to_string()
        };
        let start = "memory.mdb: the file was modified while it was open: ";
        assert_eq!(
            message(first + 2, 300),
            format!("{start}last transaction: expected {first} or {}, found {}", first + 1, first + 2)
        );
        assert_eq!(
            message(first - 1, 300),
            format!("{start}last transaction: expected {first} or {}, found {}", first + 1, first - 1)
        );
        // Another file copied over this one.
        assert_eq!(
            message(first, 301),
            format!(
                "{start}meta page: expected transaction {first} with 300 entries, found transaction {first} with 301 \
                 entries"
            )
        );
        source.become_bytes(opened.bytes[..opened.bytes.len() - 512].to_vec());
        let error = database.check_unchanged().expect_err("shorter").to_string();
        assert!(error.starts_with(&format!("{start}length: expected at least")), "{error}");
        source.become_bytes(Vec::new());
        let error = database.check_unchanged().expect_err("gone").to_string();
        assert!(error.starts_with(&format!("{start}meta pages: expected as when opened, found")), "{error}");
    }
}

#[test]
fn damage_done_by_a_writer_is_called_modified() {
    let opened = transaction(4, 300);
    let source = Changing::new(opened.bytes.clone());
    let database = Database::from_source(source.clone(), Path::new(PATH), None).expect("a sound file");
    let mut later = transaction(6, 300);
    let leaf = later.unit(Kind::Leaf, 2).place("type", 0);
    later.set(leaf, 4);
    source.become_bytes(later.bytes);
    assert!(matches!(walk(&database, 1), Err(Error::Modified { .. })));
}

/// The first look at the meta pages sees them half written.
#[derive(Debug)]
struct Torn {
    whole: Vec<u8>,
    looks: AtomicI64,
}

impl ReadAt for Torn {
    fn bytes(&self) -> io::Result<u64> {
        self.whole.bytes()
    }

    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let count = self.whole.pread(offset, into)?;
        if offset == 0 && self.looks.fetch_sub(1, Ordering::Relaxed) > 0 {
            into[512..640].fill(0);
        }
        Ok(count)
    }
}

#[test]
fn meta_pages_seen_half_written_are_read_once_more_and_not_forever() {
    let open = |looks| {
        let source = Torn { whole: image().bytes, looks: AtomicI64::new(looks) };
        Database::from_source(Arc::new(source), Path::new(PATH), None)
    };
    open(1).expect("whole at the second look");
    let error = open(2).expect_err("still torn");
    assert!(error.to_string().contains("LMDB meta page 1: page number at offset 512"), "{error}");
}

#[test]
fn a_read_that_fails_twice_does_not_end_the_walk() {
    let source = Changing::new(image().bytes);
    let database = Database::from_source(source.clone(), Path::new(PATH), None).expect("a sound file");
    for threads in [1, 3] {
        for countdown in 0..12 {
            source.fail(countdown, 2);
            assert_eq!(walk(&database, threads).expect("the third attempt"), 300);
            assert!(source.countdown.load(Ordering::Relaxed) < -2, "both failures were met");
        }
    }
}

#[test]
fn a_read_that_always_fails_ends_the_walk_with_its_offset() {
    let source = Changing::new(image().bytes);
    let database = Database::from_source(source.clone(), Path::new(PATH), None).expect("a sound file");
    for threads in [1, 3] {
        for countdown in 0..12 {
            source.fail(countdown, i64::MAX);
            let error = walk(&database, threads).expect_err("EIO");
            let Error::Read(ReadError::Io { path, length, attempts, known, source, .. }) = error else {
                panic!("another error: {error}")
            };
            assert_eq!((path.as_path(), attempts, known), (Path::new(PATH), 3, false));
            assert!(length > 0);
            assert_eq!(source.raw_os_error(), Some(5));
        }
    }
    source.fail(0, 0);
    assert_eq!(walk(&database, 3).expect("a sound file"), 300);
}

/// Reads of anything but the meta pages and the root wait until told to go on.
#[derive(Debug)]
struct Stuck {
    bytes: Vec<u8>,
    root_offset: u64,
    free: Mutex<bool>,
    freed: Condvar,
}

impl ReadAt for Stuck {
    fn bytes(&self) -> io::Result<u64> {
        self.bytes.bytes()
    }

    fn pread(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if offset > 0 && offset != self.root_offset {
            let free = self.free.lock().expect("not poisoned");
            drop(self.freed.wait_while(free, |free| !*free).expect("not poisoned"));
        }
        self.bytes.pread(offset, into)
    }
}

#[test]
fn a_walk_that_waits_for_the_disk_still_asks_whether_to_go_on() {
    let image = image();
    let stuck = Arc::new(Stuck {
        root_offset: image.root * 512,
        bytes: image.bytes,
        free: Mutex::new(false),
        freed: Condvar::new(),
    });
    let database = Database::from_source(stuck.clone(), Path::new(PATH), None).expect("a sound file");
    let calls = AtomicI64::new(0);
    // One call at the start and one after the root; the others come while the next level is stuck.
    let progress = |done, _| {
        assert_eq!(done, 0);
        let give_up = calls.fetch_add(1, Ordering::Relaxed) == 4;
        if give_up {
            *stuck.free.lock().expect("not poisoned") = true;
            stuck.freed.notify_all();
        }
        !give_up
    };
    let options = WalkOptions { threads: 3, ..WalkOptions::default() };
    let error = database.walk(&options, &progress, &mut |_| panic!("no leaf was read")).expect_err("stopped");
    assert!(matches!(error, Error::Interrupted));
    assert_eq!(calls.into_inner(), 5);
}

#[test]
fn an_error_of_the_receiver_ends_the_walk() {
    let database =
        Database::from_source(Arc::new(image().bytes), Path::new(PATH), None).expect("a sound file");
    for threads in [1, 3] {
        let options = WalkOptions { threads, ..WalkOptions::default() };
        let mut calls = 0;
        let stop = || Error::Usage { message: "enough".to_owned(), hint: String::new() };
        let error = database.walk(&options, &|_, _| true, &mut |_| {
            calls += 1;
            if calls == 100 { Err(stop()) } else { Ok(()) }
        });
        assert_eq!(error.expect_err("stopped").to_string(), "enough");
        assert_eq!(calls, 100);
    }
}
