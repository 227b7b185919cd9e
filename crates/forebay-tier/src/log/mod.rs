//! The log of a level: which copies it holds.
//!
//! A header, then records; docs/formats/tier.md has the bytes. A record is written by one write(2)
//! after the bytes that it tells of. Replay ends at the first record that is torn or damaged: what
//! comes after it is cut off.

mod record;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::TierError;
pub use record::{CopyRecord, FileCopyRecord, FileTimes, PieceSum, Record};
use record::{FRAME_BYTES, MAX_RECORD_BYTES, decode, encode, frame};

/// Version of the log that this program writes and reads.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"FBTIERL\n";
const HEADER_BYTES: usize = 16;
/// Bytes that are read or rewritten at once.
const BUFFER_BYTES: usize = 1 << 20;
const NAME: &str = "log";
const NEW_NAME: &str = "log.new";

/// What replay found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records.
    pub records: u64,
    /// Bytes after the last whole record, which were cut off \[bytes\].
    pub lost_bytes: u64,
}

/// A log that is open for appending.
#[derive(Debug)]
pub struct Log {
    directory: OwnedFd,
    file: File,
    /// Length up to the last record that was appended \[bytes\].
    bytes: u64,
    path: PathBuf,
    /// Whether a failed write may have left bytes after `bytes`.
    is_torn: bool,
}

impl Log {
    /// Opens the log in a directory, or begins one; `each` gets the records. `path` is the
    /// directory, for errors.
    ///
    /// # Errors
    /// A file that is no log, a log of another version, or one that cannot be written. None of
    /// them is changed.
    pub fn open(
        directory: BorrowedFd<'_>,
        path: &Path,
        each: &mut dyn FnMut(Record),
    ) -> Result<(Self, Replayed), TierError> {
        let path = path.join(NAME);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(directory, NAME, flags, Mode::RUSR | Mode::WUSR)
            .map_err(TierError::io(&path, "open the log"))?;
        let directory = directory.try_clone_to_owned().map_err(TierError::io(&path, "open the log"))?;
        let mut log = Self { directory, file: file.into(), bytes: 0, path, is_torn: false };
        let (replayed, bytes) = replay_file(&log.file, &log.path, each)?;
        log.bytes = bytes;
        log.file.set_len(bytes).map_err(TierError::io(&log.path, "cut the log"))?;
        if bytes == 0 {
            log.bytes = HEADER_BYTES as u64;
            log.file.write_all_at(&header(), 0).map_err(TierError::io(&log.path, "begin the log"))?;
        }
        Ok((log, replayed))
    }

    /// Reads the records of a log without changing it; for levels that cannot be written.
    ///
    /// # Errors
    /// As for [`Log::open`]; no log is no error.
    pub fn read(
        directory: BorrowedFd<'_>,
        path: &Path,
        each: &mut dyn FnMut(Record),
    ) -> Result<Replayed, TierError> {
        let path = path.join(NAME);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(directory, NAME, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(Replayed::default()),
            Err(error) => return Err(TierError::io(path, "open the log")(error)),
        };
        Ok(replay_file(&file, &path, each)?.0)
    }

    /// Appends records by one write.
    ///
    /// # Errors
    /// A record is outside its limits, or the write fails; then the log ends where it ended before.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::new();
        records.iter().try_for_each(|record| encode(record, &mut bytes))?;
        self.cut()?;
        if let Err(error) = self.file.write_all_at(&bytes, self.bytes) {
            self.is_torn = true;
            // If this fails as well, the next call tries again before it writes.
            let _ = self.cut();
            return Err(error);
        }
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Removes what a failed write left: no record may follow it.
    fn cut(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.bytes)?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// Replaces the log by one with these records, which takes its place at once.
    ///
    /// # Errors
    /// The new log cannot be written; the old one stays.
    pub fn rewrite(&mut self, records: &mut dyn Iterator<Item = Record>) -> io::Result<()> {
        let written = self.write_new(records).and_then(|new| {
            rustix::fs::renameat(&self.directory, NEW_NAME, &self.directory, NAME)?;
            Ok(new)
        });
        match written {
            Ok((file, bytes)) => {
                (self.file, self.bytes, self.is_torn) = (file, bytes, false);
                Ok(())
            }
            Err(error) => {
                let _ = rustix::fs::unlinkat(&self.directory, NEW_NAME, AtFlags::empty());
                Err(error)
            }
        }
    }

    /// Writes a log beside this one; returns its length [bytes].
    fn write_new(&self, records: &mut dyn Iterator<Item = Record>) -> io::Result<(File, u64)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.directory, NEW_NAME, flags, Mode::RUSR | Mode::WUSR)?;
        let file = File::from(file);
        let mut written = 0;
        let mut bytes = header().to_vec();
        for record in records {
            encode(&record, &mut bytes)?;
            if bytes.len() >= BUFFER_BYTES {
                file.write_all_at(&bytes, written)?;
                written += bytes.len() as u64;
                bytes.clear();
            }
        }
        file.write_all_at(&bytes, written)?;
        Ok((file, written + bytes.len() as u64))
    }

    /// Its length \[bytes\].
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header
}

fn replay_file(file: &File, path: &Path, each: &mut dyn FnMut(Record)) -> Result<(Replayed, u64), TierError> {
    let length = file.metadata().map_err(TierError::io(path, "inspect the log"))?.len();
    replay(BufReader::with_capacity(BUFFER_BYTES, file), length, path, each)
}

/// Passes on the records of a log of `length` bytes; returns what it found, and the length of the
/// log up to there \[bytes\]: 0 if the header is still to be written.
///
/// # Errors
/// The log cannot be read, is no log, or is of another version.
pub fn replay(
    mut contents: impl Read,
    length: u64,
    path: &Path,
    each: &mut dyn FnMut(Record),
) -> Result<(Replayed, u64), TierError> {
    let mut fill = |into: &mut [u8]| fill(&mut contents, into).map_err(TierError::io(path, "read the log"));
    let mut start = [0; HEADER_BYTES];
    let start_bytes = fill(&mut start)?;
    let is_begun = start_bytes < HEADER_BYTES && header().starts_with(&start[..start_bytes]);
    // A loss of power leaves zeros where bytes did not reach the device.
    if is_begun || start == [0; HEADER_BYTES] {
        return Ok((Replayed { records: 0, lost_bytes: length }, 0));
    }
    check_header(&start, path)?;
    let mut end = HEADER_BYTES as u64;
    let mut records = 0;
    let mut body = vec![0; MAX_RECORD_BYTES];
    loop {
        let mut start = [0; FRAME_BYTES];
        if fill(&mut start)? < FRAME_BYTES {
            break;
        }
        let (bytes, crc) = frame(start);
        let Some(body) = body.get_mut(..bytes) else { break };
        if fill(body)? < bytes {
            break;
        }
        let Some(record) = decode(body, crc) else { break };
        each(record);
        records += 1;
        end += (FRAME_BYTES + bytes) as u64;
    }
    Ok((Replayed { records, lost_bytes: length.saturating_sub(end) }, end))
}

/// Compares the magic number first, then the version, to name another version.
fn check_header(found: &[u8; HEADER_BYTES], path: &Path) -> Result<(), TierError> {
    let wrong = |offset, expected: String, found: String| {
        Err(TierError::Format { path: path.to_owned(), offset, expected, found })
    };
    if !found.starts_with(&MAGIC) {
        return wrong(0, "the log of a tier".into(), format!("{:02x?}", &found[..MAGIC.len()]));
    }
    let [version, rest] = [8, 12].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte| found[at + byte])));
    if version != VERSION {
        return wrong(8, format!("version {VERSION}"), format!("version {version}"));
    }
    if rest != 0 {
        return wrong(12, "0".into(), format!("{rest}"));
    }
    Ok(())
}

/// Reads as many bytes as there are, up to the length of `into`; returns how many.
fn fill(contents: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match contents.read(&mut into[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::os::fd::AsFd;

    use forebay_table::{Identity, SourceFile};
    use proptest::prelude::*;

    use super::record::tests::record;
    use super::*;

    fn contents(records: &[Record]) -> Vec<u8> {
        let mut bytes = header().to_vec();
        for record in records {
            encode(record, &mut bytes).unwrap();
        }
        bytes
    }

    fn replayed(bytes: &[u8]) -> Vec<Record> {
        let mut found = Vec::new();
        let _ = replay(bytes, bytes.len() as u64, Path::new("log"), &mut |record| found.push(record));
        found
    }

    proptest! {
        #[test]
        fn a_log_says_what_was_appended(records in prop::collection::vec(record(), 0..20), cut: prop::sample::Index) {
            let bytes = contents(&records);
            prop_assert_eq!(&replayed(&bytes), &records);
            let found = replayed(&bytes[..cut.index(bytes.len() + 1)]);
            prop_assert!(records.starts_with(&found));
        }

        #[test]
        fn damage_ends_a_log_and_never_changes_a_record(
            records in prop::collection::vec(record(), 1..20), at: prop::sample::Index, flip in 1_u8..,
        ) {
            let mut bytes = contents(&records);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let found = replayed(&bytes);
            prop_assert!(records.starts_with(&found));
            prop_assert!(found.len() < records.len());
            // Records before the damage are there.
            prop_assert!(contents(&records[..=found.len()]).len() > at);
        }

        #[test]
        fn any_bytes_are_a_log_or_an_error(bytes: Vec<u8>) {
            replayed(&bytes);
            replayed(&[&header()[..], &bytes[..]].concat());
        }
    }

    /// Opens the log in a directory, and returns its records.
    fn try_open(directory: &Path) -> Result<(Log, Replayed, Vec<Record>), TierError> {
        let opened = File::open(directory).unwrap();
        let mut found = Vec::new();
        let (log, replayed) = Log::open(opened.as_fd(), directory, &mut |record| found.push(record))?;
        Ok((log, replayed, found))
    }

    fn open(directory: &Path) -> (Log, Replayed, Vec<Record>) {
        try_open(directory).unwrap()
    }

    fn slabs(numbers: std::ops::Range<u32>) -> Vec<Record> {
        numbers.map(|slab| Record::Slab { slab, slots: 5 }).collect()
    }

    #[test]
    fn the_example_of_the_page_is_what_is_written() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/tier.md");
        let page = std::fs::read_to_string(page).unwrap();
        let sum = |piece, start, bytes, crc| PieceSum { piece, start, bytes, crc };
        let sums = vec![sum(0, 0, 65_536, 0x1111_1111), sum(1, 65_536, 34_464, 0x2222_2222)];
        let key = crate::SourceKey(std::array::from_fn(|byte| 0xa0 + byte as u8));
        let records = [
            Record::Boot { id: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff },
            Record::Slab { slab: 17, slots: 1024 },
            Record::Source { number: 0, key, bytes: 100_000, path: "/data/a".into() },
            Record::Used { number: 0, unix_s: 1_767_225_600 },
            Record::SlotTaken { slab: 17, slot: 3, source: 0, chunk: 0 },
            Record::Copy(CopyRecord { slab: 17, slot: 3, source: 0, chunk: 0, sums }),
            Record::SlotGone { slab: 17, slot: 3 },
            Record::SlabGone { slab: 17 },
            Record::FileRoot { number: 0, path: "/data".into() },
            Record::FileRootUsed { number: 0, unix_s: 1_767_225_600 },
            Record::FileCopy(FileCopyRecord {
                file: 5,
                root: 0,
                crc: 0x3333_3333,
                source: SourceFile {
                    identity: Identity {
                        device: 0,
                        inode: 42,
                        bytes: 100_000,
                        modified_ns: 1_767_225_600_000_000_000,
                        changed_ns: 1_767_225_600_500_000_000,
                    },
                    born_ns: None,
                    mode: 0o100_644,
                    user: 1000,
                    group: 100,
                    links: 1,
                    blocks: 200,
                    block_bytes: 4096,
                },
                path: "a".into(),
            }),
            Record::FileTimes {
                file: 5,
                times: FileTimes {
                    modified_ns: 1_767_225_601_000_000_000,
                    changed_ns: 1_767_225_601_500_000_000,
                },
            },
            Record::FileGone { file: 5 },
        ];
        let bytes = contents(&records);
        let mut expected = String::new();
        for (line, part) in bytes.chunks(16).enumerate() {
            let digits: Vec<String> = part.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(expected, "    {:04x}  {}", line * 16, digits.join(" ")).unwrap();
        }
        assert!(page.contains(&expected), "docs/formats/tier.md needs this example:\n{expected}");
        assert_eq!(replayed(&bytes), records);
    }

    #[test]
    fn a_torn_record_is_cut_off_and_the_log_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let records = slabs(0..9);
        open(directory.path()).0.append(&records[..5]).unwrap();
        let path = directory.path().join(NAME);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 1);
        std::fs::write(&path, &bytes).unwrap();
        let (mut log, replayed, found) = open(directory.path());
        assert_eq!((found, replayed.records), (records[..4].to_vec(), 4));
        assert!(replayed.lost_bytes > 0);
        log.append(&records[5..7]).unwrap();
        assert_eq!(open(directory.path()).2, [&records[..4], &records[5..7]].concat());
        log.rewrite(&mut records[2..4].iter().cloned()).unwrap();
        log.append(&records[8..]).unwrap();
        assert_eq!(open(directory.path()).2, [&records[2..4], &records[8..]].concat());
    }

    #[test]
    fn no_record_follows_what_a_failed_write_left() {
        let directory = tempfile::tempdir().unwrap();
        let records = slabs(0..4);
        let mut log = open(directory.path()).0;
        log.append(&records[..1]).unwrap();
        let good_bytes = log.bytes();
        // Neither writes nor cuts, as a device that fails.
        let refusing = File::open(directory.path().join(NAME)).unwrap();
        let file = std::mem::replace(&mut log.file, refusing);
        // What a write of two records leaves that fails in the second one.
        let torn = contents(&records[1..3]);
        file.write_all_at(&torn[HEADER_BYTES..torn.len() - 1], good_bytes).unwrap();
        assert!(log.append(&records[1..3]).is_err() && log.append(&records[1..3]).is_err());
        log.file = file;
        log.append(&records[3..]).unwrap();
        let (_, replayed, found) = open(directory.path());
        assert_eq!((found, replayed.lost_bytes), ([&records[..1], &records[3..]].concat(), 0));
    }

    #[test]
    fn a_record_that_replay_would_refuse_is_not_appended() {
        let directory = tempfile::tempdir().unwrap();
        let sum = |piece, start, bytes| PieceSum { piece, start, bytes, crc: 0 };
        let copy = |sums| Record::Copy(CopyRecord { slab: 0, slot: 0, source: 0, chunk: 0, sums });
        let refused = [
            Record::Slab { slab: 1 << 21, slots: 1 },
            Record::Slab { slab: 0, slots: 0 },
            Record::Slab { slab: 0, slots: 1025 },
            Record::SlotTaken { slab: 0, slot: 1024, source: 0, chunk: 0 },
            Record::SlabGone { slab: u32::MAX },
            Record::FileGone { file: 1 << 56 },
            Record::FileRoot { number: 0, path: "a".repeat(4097).into() },
            copy(vec![]),
            copy(vec![sum(16, 0, 1)]),
            copy(vec![sum(0, 0, 0)]),
            copy(vec![sum(0, 1, 1 << 20)]),
            copy(vec![sum(3, 0, 1), sum(3, 1, 1)]),
        ];
        let mut log = open(directory.path()).0;
        for record in &refused {
            let error = log.append(std::slice::from_ref(record)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{record:?}");
        }
        assert_eq!(log.bytes(), HEADER_BYTES as u64);
        let long =
            Record::Source { number: 0, key: crate::SourceKey([1; 16]), bytes: 0, path: "ä".repeat(3000) };
        log.append(&[long]).unwrap();
        let Record::Source { path, .. } = &open(directory.path()).2[0] else { panic!("a source") };
        assert_eq!(path.len(), 4096);
    }

    #[test]
    fn a_log_whose_header_never_reached_the_device_is_begun_again() {
        for left in [vec![], header()[..9].to_vec(), vec![0; 5], vec![0; 5000]] {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join(NAME), &left).unwrap();
            let (mut log, replayed, _) = open(directory.path());
            assert_eq!(replayed, Replayed { records: 0, lost_bytes: left.len() as u64 });
            log.append(&slabs(0..1)).unwrap();
            assert_eq!(open(directory.path()).2, slabs(0..1));
        }
    }

    #[test]
    fn a_huge_file_with_a_header_costs_no_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(NAME);
        std::fs::write(&path, contents(&slabs(0..1))).unwrap();
        let length = 1 << 40;
        File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        let (log, replayed, found) = open(directory.path());
        assert_eq!((replayed.lost_bytes, found), (length - log.bytes(), slabs(0..1)));
    }

    #[test]
    fn a_log_of_tomorrow_and_a_file_that_is_no_log_are_left_alone() {
        for (at, byte) in [(8, 2), (12, 1), (0, b'f')] {
            let directory = tempfile::tempdir().unwrap();
            let mut bytes = contents(&slabs(0..2));
            bytes[at] = byte;
            std::fs::write(directory.path().join(NAME), &bytes).unwrap();
            let is_refused = |result: Result<(), TierError>| matches!(result, Err(TierError::Format { offset, .. }) if offset == at as u64);
            assert!(is_refused(try_open(directory.path()).map(drop)));
            let opened = File::open(directory.path()).unwrap();
            assert!(is_refused(Log::read(opened.as_fd(), directory.path(), &mut |_| {}).map(drop)));
            assert_eq!(std::fs::read(directory.path().join(NAME)).unwrap(), bytes);
        }
    }
}
