//! The log of a level: which copies its slabs hold.
//!
//! A header, then records; docs/formats/tier.md has the bytes. A record is written by one write(2)
//! after the bytes that it tells of. Replay ends at the first record that is torn or damaged: what
//! comes behind it is cut off.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::chunk::{CHUNK_BYTES, PIECES};
use crate::entry::{MAX_SLABS, MAX_SLOTS};
use crate::error::TierError;
use crate::source::SourceKey;

/// Version of the log that this program writes and reads.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"FBTIERL\n";
const HEADER_BYTES: usize = 16;
/// Length and checksum in front of a record.
const FRAME_BYTES: usize = 8;
/// Longest record: a source has its path.
const MAX_RECORD_BYTES: usize = 8 << 10;
const NAME: &str = "log";
const NEW_NAME: &str = "log.new";

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The records behind it were written while the machine had this boot id.
    Boot {
        /// `/proc/sys/kernel/random/boot_id`, as a number.
        id: u128,
    },
    /// A source, and its number in this log.
    Source {
        /// Its number: 0, 1, 2, …
        number: u32,
        /// Its key.
        key: SourceKey,
        /// Its size \[bytes\].
        bytes: u64,
        /// Where it was, for people; at most 4 KiB.
        path: String,
    },
    /// A new slab.
    Slab {
        /// Its number: none is used twice.
        slab: u32,
        /// Its slots.
        slots: u16,
    },
    /// Pieces of a chunk in a slot.
    Copy(CopyRecord),
    /// A client was given a slot, and may write to it: it is not given to another, even if nothing
    /// is ever published there.
    SlotTaken {
        /// Number of the slab.
        slab: u32,
        /// Number of the slot.
        slot: u16,
    },
    /// A slot holds nothing: what was in it was damaged.
    SlotGone {
        /// Number of the slab.
        slab: u32,
        /// Number of the slot.
        slot: u16,
    },
    /// A slab was deleted, and its copies with it.
    SlabGone {
        /// Its number.
        slab: u32,
    },
    /// A client began to use a source.
    Used {
        /// Number of the source.
        number: u32,
        /// When [s since 1970].
        unix_s: u64,
    },
}

/// Pieces of a chunk that were copied into a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyRecord {
    /// Number of the slab.
    pub slab: u32,
    /// Number of the slot.
    pub slot: u16,
    /// Number of the source in this log.
    pub source: u32,
    /// Number of the chunk in its source.
    pub chunk: u64,
    /// The pieces, in order.
    pub sums: Vec<PieceSum>,
}

/// A piece in its slot, with its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PieceSum {
    /// Number of the piece in its chunk.
    pub piece: u8,
    /// First byte in the slot \[bytes\].
    pub start: u32,
    /// Length \[bytes\].
    pub bytes: u32,
    /// crc32c of the bytes.
    pub crc: u32,
}

impl PieceSum {
    /// Whether it is a piece inside a slot.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let end = u64::from(self.start) + u64::from(self.bytes);
        u32::from(self.piece) < PIECES && self.bytes > 0 && end <= CHUNK_BYTES
    }
}

/// What replay found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Records.
    pub records: u64,
    /// Bytes behind the last whole record, which were cut off \[bytes\].
    pub lost_bytes: u64,
}

/// A log that is open for appending.
#[derive(Debug)]
pub struct Log {
    directory: OwnedFd,
    file: OwnedFd,
    /// Its length, if the last write succeeded \[bytes\].
    bytes: u64,
    path: PathBuf,
    is_torn: bool,
}

impl Log {
    /// Opens the log in a directory, or begins one; `each` gets the records. `path` is the
    /// directory, for errors.
    ///
    /// # Errors
    /// A file that is no log, a log of another version, or one that cannot be written.
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
        let contents = read_all(&file).map_err(TierError::io(&path, "read the log"))?;
        let mut log = Self { directory, file, bytes: 0, path, is_torn: false };
        let (replayed, bytes) = replay(&contents, &log.path, each)?;
        log.bytes = bytes;
        rustix::fs::ftruncate(&log.file, bytes).map_err(TierError::io(&log.path, "cut the log"))?;
        if bytes == 0 {
            log.bytes = HEADER_BYTES as u64;
            write_all(&log.file, &header(), 0).map_err(TierError::io(&log.path, "begin the log"))?;
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
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Replayed::default()),
            Err(error) => return Err(TierError::io(path, "open the log")(error)),
        };
        let contents = read_all(&file).map_err(TierError::io(&path, "read the log"))?;
        Ok(replay(&contents, &path, each)?.0)
    }

    /// Appends records by one write.
    ///
    /// # Errors
    /// The write fails; then the log ends where it ended before.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        if self.is_torn {
            // What a failed write left must go first.
            rustix::fs::ftruncate(&self.file, self.bytes)?;
            self.is_torn = false;
        }
        let mut bytes = Vec::new();
        for record in records {
            encode(record, &mut bytes);
        }
        match write_all(&self.file, &bytes, self.bytes) {
            Ok(()) => self.bytes += bytes.len() as u64,
            Err(error) => {
                self.is_torn = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Replaces the log by one with these records, which takes its place at once.
    ///
    /// # Errors
    /// The new log cannot be written; the old one stays.
    pub fn rewrite(&mut self, records: &mut dyn Iterator<Item = Record>) -> io::Result<()> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.directory, NEW_NAME, flags, Mode::RUSR | Mode::WUSR)?;
        let mut bytes = header().to_vec();
        for record in records {
            encode(&record, &mut bytes);
        }
        let written = write_all(&file, &bytes, 0).and_then(|()| {
            rustix::fs::renameat(&self.directory, NEW_NAME, &self.directory, NAME)?;
            Ok(())
        });
        if let Err(error) = written {
            let _ = rustix::fs::unlinkat(&self.directory, NEW_NAME, AtFlags::empty());
            return Err(error);
        }
        (self.file, self.bytes, self.is_torn) = (file, bytes.len() as u64, false);
        Ok(())
    }

    /// Its length \[bytes\].
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn read_all(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut contents = vec![0; rustix::fs::fstat(file)?.st_size as usize];
    let mut done = 0;
    while done < contents.len() {
        match rustix::io::pread(file, &mut contents[done..], done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    contents.truncate(done);
    Ok(contents)
}

fn write_all(file: impl AsFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(&file, &bytes[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header
}

/// Passes on the records of a log; returns what it found, and the length of the log up to there.
///
/// # Errors
/// Bytes that are no log, or one of another version.
pub fn replay(
    contents: &[u8],
    path: &Path,
    each: &mut dyn FnMut(Record),
) -> Result<(Replayed, u64), TierError> {
    let wrong = |offset, expected: String, found: String| TierError::Format {
        path: path.to_owned(),
        offset,
        expected,
        found,
    };
    if contents.len() < HEADER_BYTES && header().starts_with(contents) {
        // It was being begun.
        return Ok((Replayed { records: 0, lost_bytes: contents.len() as u64 }, 0));
    }
    if !contents.starts_with(&MAGIC) || contents.len() < HEADER_BYTES {
        let found = format!("{:02x?}", &contents[..contents.len().min(8)]);
        return Err(wrong(0, "a log of a tier".into(), found));
    }
    let version = u32::from_le_bytes(contents[8..12].try_into().expect("four bytes"));
    if version != VERSION {
        return Err(wrong(8, format!("version {VERSION}"), format!("version {version}")));
    }
    let mut at = HEADER_BYTES;
    let mut records = 0;
    while let Some((record, length)) = decode(&contents[at..]) {
        each(record);
        records += 1;
        at += length;
    }
    Ok((Replayed { records, lost_bytes: (contents.len() - at) as u64 }, at as u64))
}

/// Appends a record: length and checksum of what follows, kind, fields.
fn encode(record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; FRAME_BYTES]);
    match record {
        Record::Boot { id } => {
            out.push(0);
            out.extend(id.to_le_bytes());
        }
        Record::Source { number, key, bytes, path } => {
            out.push(1);
            out.extend(number.to_le_bytes());
            out.extend(key.0);
            out.extend(bytes.to_le_bytes());
            let end = path.char_indices().map(|(at, _)| at).chain([path.len()]).take_while(|at| *at <= 4096);
            out.extend(&path.as_bytes()[..end.last().unwrap_or(0)]);
        }
        Record::Slab { slab, slots } => {
            out.push(2);
            out.extend(slab.to_le_bytes());
            out.extend(slots.to_le_bytes());
        }
        Record::Copy(CopyRecord { slab, slot, source, chunk, sums }) => {
            out.push(3);
            out.extend(slab.to_le_bytes());
            out.extend(slot.to_le_bytes());
            out.extend(source.to_le_bytes());
            out.extend(chunk.to_le_bytes());
            for PieceSum { piece, start, bytes, crc } in sums {
                out.push(*piece);
                for number in [start, bytes, crc] {
                    out.extend(number.to_le_bytes());
                }
            }
        }
        Record::SlabGone { slab } => {
            out.push(4);
            out.extend(slab.to_le_bytes());
        }
        Record::Used { number, unix_s } => {
            out.push(5);
            out.extend(number.to_le_bytes());
            out.extend(unix_s.to_le_bytes());
        }
        Record::SlotTaken { slab, slot } => {
            out.push(7);
            out.extend(slab.to_le_bytes());
            out.extend(slot.to_le_bytes());
        }
        Record::SlotGone { slab, slot } => {
            out.push(6);
            out.extend(slab.to_le_bytes());
            out.extend(slot.to_le_bytes());
        }
    }
    let body = &out[start + FRAME_BYTES..];
    let (length, crc) = (body.len() as u32, crc32c::crc32c(body));
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
}

/// The first record of `bytes` and its length; `None` if it is torn, damaged or unknown.
fn decode(bytes: &[u8]) -> Option<(Record, usize)> {
    let mut frame = Fields(bytes);
    let (length, crc) = (u32::from_le_bytes(frame.take()?) as usize, u32::from_le_bytes(frame.take()?));
    let body = frame.0.get(..length).filter(|body| body.len() <= MAX_RECORD_BYTES)?;
    if crc32c::crc32c(body) != crc {
        return None;
    }
    let mut fields = Fields(body);
    let [kind] = fields.take()?;
    let record = match kind {
        0 => Record::Boot { id: u128::from_le_bytes(fields.take()?) },
        1 => Record::Source {
            number: u32::from_le_bytes(fields.take()?),
            key: SourceKey(fields.take()?),
            bytes: u64::from_le_bytes(fields.take()?),
            path: String::from_utf8(std::mem::take(&mut fields.0).to_vec()).ok()?,
        },
        2 => {
            let (slab, slots) = (u32::from_le_bytes(fields.take()?), u16::from_le_bytes(fields.take()?));
            if slab >= MAX_SLABS || slots == 0 || slots > MAX_SLOTS {
                return None;
            }
            Record::Slab { slab, slots }
        }
        3 => {
            let mut copy = CopyRecord {
                slab: u32::from_le_bytes(fields.take()?),
                slot: u16::from_le_bytes(fields.take()?),
                source: u32::from_le_bytes(fields.take()?),
                chunk: u64::from_le_bytes(fields.take()?),
                sums: Vec::new(),
            };
            while !fields.0.is_empty() {
                let [piece] = fields.take()?;
                let mut number = || fields.take().map(u32::from_le_bytes);
                let sum = PieceSum { piece, start: number()?, bytes: number()?, crc: number()? };
                if !sum.is_valid() || copy.sums.last().is_some_and(|last| last.piece >= piece) {
                    return None;
                }
                copy.sums.push(sum);
            }
            Record::Copy(copy).valid()?
        }
        4 => Record::SlabGone { slab: u32::from_le_bytes(fields.take()?) },
        5 => Record::Used {
            number: u32::from_le_bytes(fields.take()?),
            unix_s: u64::from_le_bytes(fields.take()?),
        },
        7 => Record::SlotTaken {
            slab: u32::from_le_bytes(fields.take()?),
            slot: u16::from_le_bytes(fields.take()?),
        },
        6 => Record::SlotGone {
            slab: u32::from_le_bytes(fields.take()?),
            slot: u16::from_le_bytes(fields.take()?),
        },
        _ => return None,
    };
    fields.0.is_empty().then_some((record, FRAME_BYTES + length))
}

impl Record {
    fn valid(self) -> Option<Self> {
        match &self {
            Self::Copy(copy) => {
                let valid = copy.slab < MAX_SLABS && copy.slot < MAX_SLOTS && !copy.sums.is_empty();
                valid.then_some(self)
            }
            _ => Some(self),
        }
    }
}

/// Bytes that are taken apart from the front.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums() -> impl Strategy<Value = Vec<PieceSum>> {
        prop::collection::btree_map(0_u8..16, (0_u32..1 << 19, 1_u32..=1 << 19, any::<u32>()), 1..=16)
            .prop_map(|sums| {
                let sum = |(piece, (start, bytes, crc))| PieceSum { piece, start, bytes, crc };
                sums.into_iter().map(sum).collect()
            })
    }

    fn record() -> impl Strategy<Value = Record> {
        prop_oneof![
            any::<u128>().prop_map(|id| Record::Boot { id }),
            (any::<u32>(), any::<[u8; 16]>(), any::<u64>(), "[a-zä/]{0,40}").prop_map(
                |(number, key, bytes, path)| Record::Source { number, key: SourceKey(key), bytes, path }
            ),
            (0..MAX_SLABS, 1..=MAX_SLOTS).prop_map(|(slab, slots)| Record::Slab { slab, slots }),
            (0..MAX_SLABS, 0..MAX_SLOTS, any::<u32>(), any::<u64>(), sums()).prop_map(
                |(slab, slot, source, chunk, sums)| {
                    Record::Copy(CopyRecord { slab, slot, source, chunk, sums })
                }
            ),
            any::<u32>().prop_map(|slab| Record::SlabGone { slab }),
            (any::<u32>(), any::<u64>()).prop_map(|(number, unix_s)| Record::Used { number, unix_s }),
            (any::<u32>(), any::<u16>()).prop_map(|(slab, slot)| Record::SlotGone { slab, slot }),
            (any::<u32>(), any::<u16>()).prop_map(|(slab, slot)| Record::SlotTaken { slab, slot }),
        ]
    }

    fn contents(records: &[Record]) -> Vec<u8> {
        let mut bytes = header().to_vec();
        for record in records {
            encode(record, &mut bytes);
        }
        bytes
    }

    fn replayed(bytes: &[u8]) -> Vec<Record> {
        let mut found = Vec::new();
        let _ = replay(bytes, Path::new("log"), &mut |record| found.push(record));
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
            let at = HEADER_BYTES + at.index(bytes.len() - HEADER_BYTES);
            bytes[at] ^= flip;
            prop_assert!(records.starts_with(&replayed(&bytes)));
        }

        #[test]
        fn any_bytes_are_a_log_or_an_error(bytes: Vec<u8>) {
            replayed(&bytes);
            replayed(&[&header()[..], &bytes[..]].concat());
        }
    }

    fn open(directory: &Path) -> (Log, Replayed, Vec<Record>) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, Mode::empty()).unwrap();
        let mut found = Vec::new();
        let (log, replayed) = Log::open(opened.as_fd(), directory, &mut |record| found.push(record)).unwrap();
        (log, replayed, found)
    }

    #[test]
    fn a_torn_record_is_cut_off_and_the_log_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let records: Vec<_> = (0..9).map(|slab| Record::Slab { slab, slots: 5 }).collect();
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
    fn a_log_of_tomorrow_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = header();
        bytes[8] = 2;
        std::fs::write(directory.path().join(NAME), bytes).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory.path(), flags, Mode::empty()).unwrap();
        let error = Log::open(opened.as_fd(), Path::new("/tier"), &mut |_| {}).unwrap_err();
        assert_eq!(error.to_string(), "/tier/log: at byte 8: expected version 1, found version 2");
        assert_eq!(std::fs::read(directory.path().join(NAME)).unwrap(), bytes);
    }
}
