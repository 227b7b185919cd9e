//! What the log of a level comes to: slabs, sources and copies.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use forebay_types::Pieces;

use crate::daemon::slab::{Slab, Slot};
use crate::daemon::sums::add_sums;
use crate::error::TierError;
use crate::log::{CopyRecord, FileCopyRecord, FileTimes, Log, PieceSum, Record};
use crate::source::identity::SourceKey;

/// A slot that a log tells of, and the copy in it.
pub(super) struct FoundCopy {
    pub(super) key: SourceKey,
    pub(super) chunk: u64,
    pub(super) slab: u32,
    pub(super) slot: u16,
    /// Its pieces; none: nothing was published there.
    pub(super) pieces: Pieces,
    /// Their checksums, where they are needed (`Replay::keeps_sums`).
    pub(super) sums: Vec<PieceSum>,
    /// Whether they were written since the machine was started.
    pub(super) is_recent: bool,
}

/// A source that a log tells of.
#[derive(Clone, Debug)]
pub(super) struct FoundSource {
    pub(super) key: SourceKey,
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) used_unix_s: u64,
}

impl FoundSource {
    /// Whether it is at or below a path. Folders of one dataset are named together.
    pub(super) fn is_below(&self, path: &Path) -> bool {
        Path::new(&self.path).starts_with(path)
            || self.path.split(", ").any(|folder| Path::new(folder).starts_with(path))
    }
}

/// What a log tells of, with all checksums.
pub(super) struct ReadLog {
    pub(super) sources: Vec<FoundSource>,
    pub(super) copies: Vec<FoundCopy>,
    pub(super) files: FoundFiles,
    /// Bytes after the last sound record.
    pub(super) lost_bytes: u64,
}

/// Reads a log without changing anything.
pub(super) fn read_log(directory: BorrowedFd<'_>, path: &Path, boot: u128) -> Result<ReadLog, TierError> {
    let mut replay = Replay::new(boot, true);
    let lost_bytes = Log::read(directory, path, &mut |record| replay.take(record))?.lost_bytes;
    let copies = found_in(replay.held).collect();
    Ok(ReadLog { sources: replay.sources.into_values().collect(), copies, files: replay.files, lost_bytes })
}

/// Copies by slab and slot, in order.
pub(super) fn found_in(held: BTreeMap<u32, Vec<Option<HeldSlot>>>) -> impl Iterator<Item = FoundCopy> {
    let of_slab = |(slab, slots): (u32, Vec<Option<HeldSlot>>)| {
        (0..).zip(slots).filter_map(move |(slot, held)| {
            let HeldSlot { key, chunk, pieces, sums, is_recent } = held?;
            Some(FoundCopy { key, chunk, slab, slot, pieces, sums, is_recent })
        })
    };
    held.into_iter().flat_map(of_slab)
}

/// What the records of a log come to.
#[derive(Default)]
pub(super) struct Replay {
    boot: u128,
    is_this_boot: bool,
    /// Also for copies that are used without a comparison: they take more time and memory than all
    /// else.
    keeps_sums: bool,
    pub(super) records: u64,
    pub(super) sources: BTreeMap<u32, FoundSource>,
    pub(super) numbers: HashMap<SourceKey, u32>,
    pub(super) slabs: BTreeMap<u32, Slab>,
    pub(super) next_slab: u32,
    /// Copies by slab and slot.
    pub(super) held: BTreeMap<u32, Vec<Option<HeldSlot>>>,
    /// Copies of whole files.
    pub(super) files: FoundFiles,
}

/// Copies of whole files that a log tells of.
#[derive(Default)]
pub(super) struct FoundFiles {
    /// Paths of roots by number.
    pub(super) roots: BTreeMap<u32, PathBuf>,
    /// When they were last used [s since 1970].
    pub(super) used: HashMap<u32, u64>,
    /// By number.
    pub(super) files: BTreeMap<u64, FoundFile>,
    /// The first number that was not used.
    pub(super) next: u64,
}

/// A copy of a whole file that a log names.
pub(super) struct FoundFile {
    pub(super) copy: FileCopyRecord,
    /// Whether it was logged since the machine was started.
    pub(super) is_recent: bool,
    /// Its own times then.
    pub(super) times: Option<FileTimes>,
}

pub(super) struct HeldSlot {
    key: SourceKey,
    chunk: u64,
    pieces: Pieces,
    /// In the order of pieces.
    sums: Vec<PieceSum>,
    is_recent: bool,
}

impl Replay {
    /// `keeps_sums`: also of copies that were made since the machine was started.
    pub(super) fn new(boot: u128, keeps_sums: bool) -> Self {
        Self { boot, keeps_sums, ..Self::default() }
    }

    pub(super) fn take(&mut self, record: Record) {
        self.records += 1;
        match record {
            Record::Boot { id } => self.is_this_boot = id == self.boot && id != 0,
            Record::Source { number, key, bytes, path } => {
                self.numbers.insert(key, number);
                self.sources.insert(number, FoundSource { key, path, bytes, used_unix_s: 0 });
            }
            Record::Used { number, unix_s } => {
                if let Some(source) = self.sources.get_mut(&number) {
                    source.used_unix_s = unix_s;
                }
            }
            Record::Slab { slab, slots } => {
                self.next_slab = self.next_slab.max(slab + 1);
                self.slabs.entry(slab).or_insert_with(|| {
                    self.held.insert(slab, (0..slots).map(|_| None).collect());
                    Slab::new(slots)
                });
            }
            Record::SlotTaken { slab, slot, source, chunk } => {
                self.give(slab, slot, source, chunk);
            }
            Record::SlotGone { slab, slot } => {
                let held = self.held.get_mut(&slab).and_then(|slots| slots.get_mut(usize::from(slot)));
                if let Some(Some(held)) = held {
                    (held.pieces, held.is_recent) = (Pieces::NONE, true);
                    held.sums.clear();
                }
            }
            Record::FileRoot { number, path } => {
                self.files.roots.insert(number, path);
            }
            Record::FileRootUsed { number, unix_s } => {
                self.files.used.insert(number, unix_s);
            }
            Record::FileCopy(copy) => {
                self.files.next = self.files.next.max(copy.file + 1);
                let found = FoundFile { is_recent: self.is_this_boot, times: None, copy };
                self.files.files.insert(found.copy.file, found);
            }
            Record::FileTimes { file, times } => {
                if let Some(found) = self.files.files.get_mut(&file) {
                    found.times = Some(times);
                }
            }
            Record::FileGone { file } => {
                self.files.next = self.files.next.max(file + 1);
                self.files.files.remove(&file);
            }
            Record::SlabGone { slab } => {
                self.next_slab = self.next_slab.max(slab + 1);
                self.slabs.remove(&slab);
                self.held.remove(&slab);
            }
            Record::Copy(CopyRecord { slab, slot, source, chunk, sums }) => {
                let (keeps_all, is_recent) = (self.keeps_sums, self.is_this_boot);
                let keeps_sums = keeps_all || !is_recent;
                let pieces = sums.iter().fold(Pieces::NONE, |all, sum| all.union(Pieces(1 << sum.piece)));
                let Some(held) = self.give(slab, slot, source, chunk) else { return };
                // Pieces of another boot make all of the chunk's doubtful, until all are logged
                // again.
                let is_all = held.pieces.minus(pieces).is_empty();
                held.is_recent = is_recent && (held.is_recent || is_all);
                held.pieces = held.pieces.union(pieces);
                if keeps_sums || !held.is_recent {
                    add_sums(&mut held.sums, &sums);
                }
            }
        }
    }

    /// Gives a slot to a chunk, unless another has it; returns the copy in it.
    fn give(&mut self, slab: u32, slot: u16, source: u32, chunk: u64) -> Option<&mut HeldSlot> {
        let key = self.sources.get(&source)?.key;
        let held = self.held.get_mut(&slab)?.get_mut(usize::from(slot))?;
        if held.as_ref().is_some_and(|held| (held.key, held.chunk) != (key, chunk)) {
            return None;
        }
        self.slabs.get_mut(&slab)?.set(slot, Slot::Holds(key, chunk));
        Some(held.get_or_insert(HeldSlot {
            key,
            chunk,
            pieces: Pieces::NONE,
            sums: Vec::new(),
            is_recent: true,
        }))
    }
}
