//! The table of a zip archive: which members it holds, and where their bytes are.
//!
//! Read from the end: the end record, or the one of Zip64 that it points to, locates the central
//! directory, which lists the members. Only the local header of a member shows where its bytes
//! begin, since its name and extra field have lengths of their own: numpy forces Zip64 there, and
//! not in the directory. Source: PKWARE's APPNOTE.TXT 6.3, sections 4.3 to 4.5. The layout to the
//! byte is `docs/formats/npy.md`.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::Error;
use crate::file::Input;

/// First bytes of a local header, and thus of an archive.
pub(crate) const LOCAL_MAGIC: [u8; 4] = *b"PK\x03\x04";
const CENTRAL_MAGIC: [u8; 4] = *b"PK\x01\x02";
const END_MAGIC: [u8; 4] = *b"PK\x05\x06";
const END64_MAGIC: [u8; 4] = *b"PK\x06\x06";
const LOCATOR64_MAGIC: [u8; 4] = *b"PK\x06\x07";

/// Sizes of the fixed parts \[bytes\].
const LOCAL_BYTES: usize = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;
const END64_BYTES: usize = 56;
const LOCATOR64_BYTES: usize = 20;

/// Longest comment after the end record \[bytes\].
const MAX_COMMENT_BYTES: u64 = 0xffff;

/// Longest central directory \[bytes\]: half a million arrays.
const MAX_DIRECTORY_BYTES: u64 = 1 << 26;

/// Bytes that are read at once to compute a checksum \[bytes\].
const MAX_PIECE_BYTES: u64 = 1 << 20;

/// Number of the extra field that holds 64-bit values.
const ZIP64_EXTRA: u16 = 1;

/// Bits of the general flags: encrypted; name in UTF-8.
const ENCRYPTED: u16 = 1;
const UTF8: u16 = 1 << 11;

/// A member of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its name.
    pub(super) name: String,
    /// Its method of compression; 0: stored.
    pub(super) method: u16,
    /// CRC-32 of its contents, as the central directory has it.
    pub(super) crc32: u32,
    /// Whether it is encrypted.
    pub(super) encrypted: bool,
    /// The range of its stored bytes in the file.
    pub(super) place: Range<u64>,
}

/// Reads the table of an archive. Returns the members in the order of their offsets, and all bytes
/// that were read.
pub(super) fn members(input: &Input) -> Result<(Vec<Member>, Vec<u8>), Error> {
    let archive = Archive { input, bytes: input.bytes() };
    let end = archive.end()?;
    let directory = archive.read(end.directory.clone(), MAX_DIRECTORY_BYTES, "central directory")?;
    let mut bytes_read = directory.clone();
    let mut members = Vec::new();
    let mut names = BTreeSet::new();
    let mut at = 0;
    while at < directory.len() {
        let offset = end.directory.start + at as u64;
        let (entry, next) = archive.entry(&directory, at, offset)?;
        if !names.insert(entry.name.clone()) {
            return Err(archive.corrupt(
                offset,
                "central directory",
                "each name once",
                format!("{:?} again", entry.name),
            ));
        }
        members.push((entry.local, entry));
        at = next;
    }
    if members.len() as u64 != end.members {
        let found = members.len();
        return Err(archive.corrupt(
            end.directory.start,
            "central directory",
            format!("{} members", end.members),
            found,
        ));
    }
    members.sort_by_key(|(local, _)| *local);
    // Each ends before the next one begins, so that none can claim bytes of another one.
    let limits: Vec<u64> =
        members.iter().skip(1).map(|(local, _)| *local).chain([end.directory.start]).collect();
    let members = members
        .into_iter()
        .zip(limits)
        .map(|((local, entry), limit)| archive.locate(local, entry, limit, &mut bytes_read));
    Ok((members.collect::<Result<_, _>>()?, bytes_read))
}

struct Archive<'a> {
    input: &'a Input,
    bytes: u64,
}

/// Contents of the end record.
struct End {
    members: u64,
    directory: Range<u64>,
}

/// Contents of an entry of the central directory.
struct CentralEntry {
    name: String,
    flags: u16,
    method: u16,
    crc32: u32,
    stored_bytes: u64,
    local: u64,
}

impl Archive<'_> {
    fn corrupt(&self, offset: u64, what: &str, expected: impl ToString, found: impl ToString) -> Error {
        self.input.corrupt(offset, format!("zip: {what}"), expected, found)
    }

    /// Reads bytes that something in the file points to.
    fn read(&self, place: Range<u64>, most: u64, what: &str) -> Result<Vec<u8>, Error> {
        let length = place.end.saturating_sub(place.start);
        if place.end > self.bytes || place.start > place.end || length > most {
            let expected = format!("{most} bytes at most, within the {} bytes of the file", self.bytes);
            let found = format!("{length} bytes from {} on", place.start);
            return Err(self.corrupt(place.start.min(self.bytes), what, expected, found));
        }
        let mut bytes = vec![0; length as usize];
        self.input.read(place.start, &mut bytes, what)?;
        Ok(bytes)
    }

    /// Finds the end record, and that of Zip64 where there is one.
    fn end(&self) -> Result<End, Error> {
        let tail_bytes = self.bytes.min(END_BYTES as u64 + MAX_COMMENT_BYTES);
        let start = self.bytes - tail_bytes;
        let tail = self.read(start..self.bytes, tail_bytes, "end record")?;
        let found = (0..(tail.len() + 1).saturating_sub(END_BYTES)).rev().find(|at| {
            let rest = &tail[*at..];
            rest.starts_with(&END_MAGIC) && END_BYTES + usize::from(u16_at(rest, 20)) == rest.len()
        });
        let Some(at) = found else {
            return Err(self.corrupt(
                self.bytes,
                "end record",
                "the end of an archive",
                "none: the file is cut, or something follows",
            ));
        };
        let (record, offset) = (&tail[at..], start + at as u64);
        let disks = (u16_at(record, 4), u16_at(record, 6));
        let locator = offset
            .checked_sub(LOCATOR64_BYTES as u64)
            .map(|from| self.read(from..offset, LOCATOR64_BYTES as u64, "Zip64 locator"))
            .transpose()?
            .filter(|locator| locator.starts_with(&LOCATOR64_MAGIC));
        let (members, directory_bytes, directory, before) = if let Some(locator) = locator {
            let from = u64_at(&locator, 8);
            let to = from.saturating_add(END64_BYTES as u64);
            let record = self.read(from..to, END64_BYTES as u64, "Zip64 end record")?;
            if !record.starts_with(&END64_MAGIC) {
                return Err(self.corrupt(from, "Zip64 end record", "its signature", "other bytes"));
            }
            (u64_at(&record, 32), u64_at(&record, 40), u64_at(&record, 48), from)
        } else {
            (
                u64::from(u16_at(record, 10)),
                u64::from(u32_at(record, 12)),
                u64::from(u32_at(record, 16)),
                offset,
            )
        };
        // 0xffff means that the value is in the record of Zip64.
        if ![0, 0xffff].contains(&disks.0) || ![0, 0xffff].contains(&disks.1) {
            return Err(self.input.unsupported(
                "an archive of several parts",
                format!("part {} of a zip archive", disks.0),
                "join the parts, or write the arrays with numpy.savez",
            ));
        }
        match directory.checked_add(directory_bytes) {
            Some(end) if end == before => Ok(End { members, directory: directory..end }),
            _ => Err(self.corrupt(
                offset,
                "place of the central directory",
                format!("{directory_bytes} bytes in front of {before}"),
                format!("{directory_bytes} bytes from {directory} on"),
            )),
        }
    }

    /// Reads the entry at `at` of the central directory, and where the next one is.
    fn entry(&self, directory: &[u8], at: usize, offset: u64) -> Result<(CentralEntry, usize), Error> {
        let rest = &directory[at..];
        let damaged = |found: &str| self.corrupt(offset, "central directory", "an entry", found);
        if !rest.starts_with(&CENTRAL_MAGIC) || rest.len() < CENTRAL_BYTES {
            return Err(damaged("other bytes"));
        }
        let name_end = CENTRAL_BYTES + usize::from(u16_at(rest, 28));
        let extra_end = name_end + usize::from(u16_at(rest, 30));
        let end = extra_end + usize::from(u16_at(rest, 32));
        let Some(whole) = rest.get(..end) else { return Err(damaged("its end within an entry")) };
        let (flags, name) = (u16_at(rest, 8), &whole[CENTRAL_BYTES..name_end]);
        let name = match std::str::from_utf8(name) {
            Ok(name) if name.is_ascii() || flags & UTF8 != 0 => name.to_owned(),
            _ => {
                return Err(self.corrupt(
                    offset,
                    "name of a member",
                    "UTF-8",
                    format!("{:?}", String::from_utf8_lossy(name)),
                ));
            }
        };
        // Values that do not fit are in the extra field, in this order, and only those.
        let mut wide = zip64_values(&whole[name_end..extra_end]);
        let mut value = |narrow: u32| {
            if narrow == u32::MAX {
                wide.next().ok_or_else(|| damaged("no Zip64 value for one that does not fit"))
            } else {
                Ok(u64::from(narrow))
            }
        };
        let _decoded_bytes = value(u32_at(rest, 24))?;
        let stored_bytes = value(u32_at(rest, 20))?;
        let local = value(u32_at(rest, 42))?;
        let (method, crc32) = (u16_at(rest, 10), u32_at(rest, 16));
        Ok((CentralEntry { name, flags, method, crc32, stored_bytes, local }, at + end))
    }

    /// Finds the bytes of a member after its local header; they end before `limit`.
    fn locate(
        &self,
        local: u64,
        entry: CentralEntry,
        limit: u64,
        bytes_read: &mut Vec<u8>,
    ) -> Result<Member, Error> {
        let CentralEntry { name, flags, method, crc32, stored_bytes, .. } = entry;
        let what = format!("local header of {name:?}");
        let header_end = local.saturating_add((LOCAL_BYTES + name.len()) as u64);
        let header = self.read(local..header_end, header_end.saturating_sub(local), &what)?;
        if !header.starts_with(&LOCAL_MAGIC) || header.len() < LOCAL_BYTES {
            return Err(self.corrupt(local, &what, "its signature", "other bytes"));
        }
        if usize::from(u16_at(&header, 26)) != name.len() || &header[LOCAL_BYTES..] != name.as_bytes() {
            return Err(self.corrupt(local, &what, "the name in the central directory", "another name"));
        }
        if u16_at(&header, 8) != method {
            return Err(self.corrupt(local + 8, &what, format!("method {method}"), u16_at(&header, 8)));
        }
        let start = header_end + u64::from(u16_at(&header, 28));
        let end = start.checked_add(stored_bytes).filter(|end| *end <= limit);
        let Some(end) = end else {
            let expected = format!("{stored_bytes} bytes, before the next part of the archive at {limit}");
            let found = format!("{} bytes from {start} on", limit.saturating_sub(start));
            return Err(self.corrupt(start, &format!("member {name:?}"), expected, found));
        };
        bytes_read.extend(header);
        Ok(Member { name, method, crc32, encrypted: flags & ENCRYPTED != 0, place: start..end })
    }
}

impl Member {
    /// Compares the checksum of a stored member with its bytes; `progress` gets the number of bytes
    /// done.
    pub(super) fn check_sum(&self, input: &Input, progress: &dyn Fn(u64) -> bool) -> Result<(), Error> {
        let mut sum = flate2::Crc::new();
        let mut piece = Vec::new();
        let mut at = self.place.start;
        while at < self.place.end {
            piece.resize((self.place.end - at).min(MAX_PIECE_BYTES) as usize, 0);
            input.read(at, &mut piece, &self.name)?;
            sum.update(&piece);
            at += piece.len() as u64;
            if !progress(at - self.place.start) {
                return Err(Error::Interrupted);
            }
        }
        if sum.sum() == self.crc32 {
            return Ok(());
        }
        let (expected, found) = (format!("{:#010x}", self.crc32), format!("{:#010x}", sum.sum()));
        Err(input.corrupt(
            self.place.start,
            format!("zip: CRC-32 of member {:?}", self.name),
            expected,
            found,
        ))
    }
}

/// The values of the Zip64 extra field.
fn zip64_values(mut extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut values = Vec::new();
    while extra.len() >= 4 {
        let (tag, length) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let Some(body) = extra.get(4..4 + length) else { break };
        if tag == ZIP64_EXTRA {
            values.extend(body.chunks_exact(8).map(|value| u64_at(value, 0)));
            break;
        }
        extra = &extra[4 + length..];
    }
    values.into_iter()
}

/// Integers of bytes that are known to be there.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
