//! Records of the log of a level, and their bytes; docs/formats/tier.md has them as a table.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use forebay_table::{Identity, SourceFile};
use forebay_types::{CHUNK_BYTES, PIECES};

use crate::source::identity::SourceKey;
use crate::table::entry::{MAX_FILES, MAX_SLABS, MAX_SLOTS};

/// Length and checksum before a record.
pub(super) const FRAME_BYTES: usize = 8;

/// Longest path of a source \[bytes\]: that of a system call.
const MAX_PATH_BYTES: usize = 4096;

/// Longest record \[bytes\]: a file copy has the path of its source.
pub(super) const MAX_RECORD_BYTES: usize = 89 + MAX_PATH_BYTES;

/// Stands for "the file system has no time of birth".
const NO_BIRTH: i64 = i64::MIN;

/// A piece in the record of a copy \[bytes\].
const SUM_BYTES: usize = 13;

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
    /// A slot was given to a chunk: a client may write that chunk there at any time from now on. No
    /// other chunk ever gets the slot.
    SlotTaken {
        /// Number of the slab.
        slab: u32,
        /// Number of the slot.
        slot: u16,
        /// Number of the source in this log.
        source: u32,
        /// Number of the chunk in its source.
        chunk: u64,
    },
    /// The copy in a slot is damaged. The slot stays that of its chunk.
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
    /// A directory or file whose files are copied whole, and its number in this log.
    FileRoot {
        /// Its number: 0, 1, 2, …
        number: u32,
        /// Its canonical path.
        path: PathBuf,
    },
    /// A run began or ceased to use a root.
    FileRootUsed {
        /// Number of the root.
        number: u32,
        /// When [s since 1970].
        unix_s: u64,
    },
    /// A whole file was copied, or its copy was compared with its checksum.
    FileCopy(FileCopyRecord),
    /// The copy of a file was deleted.
    FileGone {
        /// Its number.
        file: u64,
    },
    /// When the copy of a file was last changed itself, as it was logged.
    FileTimes {
        /// Its number.
        file: u64,
        /// Its own times.
        times: FileTimes,
    },
}

/// The times of a copy of a file. Each change of the copy changes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileTimes {
    /// `st_mtim` in nanoseconds.
    pub modified_ns: i64,
    /// `st_ctim` in nanoseconds.
    pub changed_ns: i64,
}

/// The copy of a whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCopyRecord {
    /// Its number: none is used twice.
    pub file: u64,
    /// Number of the root in this log.
    pub root: u32,
    /// crc32c of the bytes.
    pub crc: u32,
    /// What `stat` says of the source; its device (0) is not in the log.
    pub source: SourceFile,
    /// Where the source lies below its root.
    pub path: PathBuf,
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

/// Appends a record to `out`: length and checksum of what follows, kind, fields.
///
/// # Errors
/// Replay would refuse the record, and lose all records after it.
pub(super) fn encode(record: &Record, out: &mut Vec<u8>) -> io::Result<()> {
    if !record.is_valid() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a record outside its limits"));
    }
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
            let end = path
                .char_indices()
                .map(|(at, _)| at)
                .chain([path.len()])
                .take_while(|at| *at <= MAX_PATH_BYTES);
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
        Record::FileRoot { number, path } => {
            out.push(8);
            out.extend(number.to_le_bytes());
            out.extend(path.as_os_str().as_bytes());
        }
        Record::FileRootUsed { number, unix_s } => {
            out.push(9);
            out.extend(number.to_le_bytes());
            out.extend(unix_s.to_le_bytes());
        }
        Record::FileCopy(FileCopyRecord { file, root, crc, source, path }) => {
            out.push(10);
            out.extend(file.to_le_bytes());
            out.extend(root.to_le_bytes());
            out.extend(crc.to_le_bytes());
            let Identity { inode, bytes, modified_ns, changed_ns, .. } = source.identity;
            for number in [inode, bytes] {
                out.extend(number.to_le_bytes());
            }
            for time in [modified_ns, changed_ns, source.born_ns.unwrap_or(NO_BIRTH)] {
                out.extend(time.to_le_bytes());
            }
            for number in [source.mode, source.user, source.group, source.links] {
                out.extend(number.to_le_bytes());
            }
            for number in [source.blocks, source.block_bytes] {
                out.extend(number.to_le_bytes());
            }
            out.extend(path.as_os_str().as_bytes());
        }
        Record::FileGone { file } => {
            out.push(11);
            out.extend(file.to_le_bytes());
        }
        Record::FileTimes { file, times } => {
            out.push(12);
            out.extend(file.to_le_bytes());
            for time in [times.modified_ns, times.changed_ns] {
                out.extend(time.to_le_bytes());
            }
        }
        Record::SlotTaken { slab, slot, source, chunk } => {
            out.push(7);
            out.extend(slab.to_le_bytes());
            out.extend(slot.to_le_bytes());
            out.extend(source.to_le_bytes());
            out.extend(chunk.to_le_bytes());
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
    Ok(())
}

/// Length and checksum that stand before a record.
pub(super) fn frame(bytes: [u8; FRAME_BYTES]) -> (usize, u32) {
    let [length, crc] = [0, 4].map(|at| u32::from_le_bytes([at, at + 1, at + 2, at + 3].map(|at| bytes[at])));
    (length as usize, crc)
}

/// The record of a body; `None` if it is damaged, unknown or outside its limits.
pub(super) fn decode(body: &[u8], crc: u32) -> Option<Record> {
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
        2 => Record::Slab {
            slab: u32::from_le_bytes(fields.take()?),
            slots: u16::from_le_bytes(fields.take()?),
        },
        3 => {
            let mut copy = CopyRecord {
                slab: u32::from_le_bytes(fields.take()?),
                slot: u16::from_le_bytes(fields.take()?),
                source: u32::from_le_bytes(fields.take()?),
                chunk: u64::from_le_bytes(fields.take()?),
                sums: Vec::new(),
            };
            copy.sums.reserve_exact(fields.0.len() / SUM_BYTES);
            while !fields.0.is_empty() {
                let [piece] = fields.take()?;
                let mut number = || fields.take().map(u32::from_le_bytes);
                copy.sums.push(PieceSum { piece, start: number()?, bytes: number()?, crc: number()? });
            }
            Record::Copy(copy)
        }
        4 => Record::SlabGone { slab: u32::from_le_bytes(fields.take()?) },
        5 => Record::Used {
            number: u32::from_le_bytes(fields.take()?),
            unix_s: u64::from_le_bytes(fields.take()?),
        },
        6 => Record::SlotGone {
            slab: u32::from_le_bytes(fields.take()?),
            slot: u16::from_le_bytes(fields.take()?),
        },
        7 => Record::SlotTaken {
            slab: u32::from_le_bytes(fields.take()?),
            slot: u16::from_le_bytes(fields.take()?),
            source: u32::from_le_bytes(fields.take()?),
            chunk: u64::from_le_bytes(fields.take()?),
        },
        8 => Record::FileRoot { number: u32::from_le_bytes(fields.take()?), path: fields.path() },
        9 => Record::FileRootUsed {
            number: u32::from_le_bytes(fields.take()?),
            unix_s: u64::from_le_bytes(fields.take()?),
        },
        10 => Record::FileCopy(FileCopyRecord {
            file: u64::from_le_bytes(fields.take()?),
            root: u32::from_le_bytes(fields.take()?),
            crc: u32::from_le_bytes(fields.take()?),
            source: SourceFile {
                identity: Identity {
                    device: 0,
                    inode: u64::from_le_bytes(fields.take()?),
                    bytes: u64::from_le_bytes(fields.take()?),
                    modified_ns: i64::from_le_bytes(fields.take()?),
                    changed_ns: i64::from_le_bytes(fields.take()?),
                },
                born_ns: Some(i64::from_le_bytes(fields.take()?)).filter(|born| *born != NO_BIRTH),
                mode: u32::from_le_bytes(fields.take()?),
                user: u32::from_le_bytes(fields.take()?),
                group: u32::from_le_bytes(fields.take()?),
                links: u32::from_le_bytes(fields.take()?),
                blocks: u64::from_le_bytes(fields.take()?),
                block_bytes: u64::from_le_bytes(fields.take()?),
            },
            path: fields.path(),
        }),
        11 => Record::FileGone { file: u64::from_le_bytes(fields.take()?) },
        12 => Record::FileTimes {
            file: u64::from_le_bytes(fields.take()?),
            times: FileTimes {
                modified_ns: i64::from_le_bytes(fields.take()?),
                changed_ns: i64::from_le_bytes(fields.take()?),
            },
        },
        _ => return None,
    };
    (fields.0.is_empty() && record.is_valid()).then_some(record)
}

impl Record {
    /// Whether its numbers and paths are within their limits.
    fn is_valid(&self) -> bool {
        let is_path = |path: &PathBuf| path.as_os_str().len() <= MAX_PATH_BYTES;
        let is_place = |slab: u32, slot: u16| slab < MAX_SLABS && slot < MAX_SLOTS;
        match self {
            Self::Boot { .. } | Self::Source { .. } | Self::Used { .. } | Self::FileRootUsed { .. } => true,
            Self::FileRoot { path, .. } => is_path(path),
            Self::FileCopy(FileCopyRecord { file, path, .. }) => *file < MAX_FILES && is_path(path),
            Self::FileGone { file } | Self::FileTimes { file, .. } => *file < MAX_FILES,
            Self::Slab { slab, slots } => *slab < MAX_SLABS && (1..=MAX_SLOTS).contains(slots),
            Self::SlotTaken { slab, slot, .. } | Self::SlotGone { slab, slot } => is_place(*slab, *slot),
            Self::SlabGone { slab } => *slab < MAX_SLABS,
            Self::Copy(CopyRecord { slab, slot, sums, .. }) => {
                is_place(*slab, *slot)
                    && !sums.is_empty()
                    && sums.iter().all(PieceSum::is_valid)
                    && sums.is_sorted_by(|before, after| before.piece < after.piece)
            }
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

    /// The rest.
    fn path(&mut self) -> PathBuf {
        OsString::from_vec(std::mem::take(&mut self.0).to_vec()).into()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums() -> impl Strategy<Value = Vec<PieceSum>> {
        prop::collection::btree_map(0_u8..16, (0_u32..1 << 19, 1_u32..=1 << 19, any::<u32>()), 1..=16)
            .prop_map(|sums| {
                let sum = |(piece, (start, bytes, crc))| PieceSum { piece, start, bytes, crc };
                sums.into_iter().map(sum).collect()
            })
    }

    fn path() -> impl Strategy<Value = PathBuf> {
        prop::collection::vec(1_u8.., 0..40).prop_map(|bytes| OsString::from_vec(bytes).into())
    }

    fn source_file() -> impl Strategy<Value = SourceFile> {
        let identity =
            (any::<[u64; 2]>(), any::<[i64; 2]>()).prop_map(|([inode, bytes], [modified_ns, changed_ns])| {
                Identity { device: 0, inode, bytes, modified_ns, changed_ns }
            });
        let rest = (any::<Option<i64>>(), any::<[u32; 4]>(), any::<[u64; 2]>());
        (identity, rest).prop_map(
            |(identity, (born_ns, [mode, user, group, links], [blocks, block_bytes]))| SourceFile {
                identity,
                born_ns: born_ns.filter(|born| *born != NO_BIRTH),
                mode,
                user,
                group,
                links,
                blocks,
                block_bytes,
            },
        )
    }

    pub(in crate::log) fn record() -> impl Strategy<Value = Record> {
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
            (0..MAX_SLABS).prop_map(|slab| Record::SlabGone { slab }),
            (any::<u32>(), any::<u64>()).prop_map(|(number, unix_s)| Record::Used { number, unix_s }),
            (0..MAX_SLABS, 0..MAX_SLOTS).prop_map(|(slab, slot)| Record::SlotGone { slab, slot }),
            (0..MAX_SLABS, 0..MAX_SLOTS, any::<u32>(), any::<u64>())
                .prop_map(|(slab, slot, source, chunk)| Record::SlotTaken { slab, slot, source, chunk }),
            (any::<u32>(), path()).prop_map(|(number, path)| Record::FileRoot { number, path }),
            (any::<u32>(), any::<u64>()).prop_map(|(number, unix_s)| Record::FileRootUsed { number, unix_s }),
            (0..MAX_FILES, any::<u32>(), any::<u32>(), source_file(), path()).prop_map(
                |(file, root, crc, source, path)| {
                    Record::FileCopy(FileCopyRecord { file, root, crc, source, path })
                }
            ),
            (0..MAX_FILES).prop_map(|file| Record::FileGone { file }),
            (0..MAX_FILES, any::<[i64; 2]>()).prop_map(|(file, [modified_ns, changed_ns])| {
                Record::FileTimes { file, times: FileTimes { modified_ns, changed_ns } }
            }),
        ]
    }
}
