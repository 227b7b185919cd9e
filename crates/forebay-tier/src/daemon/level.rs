//! One level as the daemon keeps it: its quota, its slabs, its slots, and its log.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_types::CHUNK_BYTES;
use rustix::io::Errno;

use crate::daemon::file_store::FileStore;
use crate::daemon::read_only::ReadOnlyView;
use crate::daemon::replay::{FoundCopy, FoundSource, Replay, found_in, read_log};
use crate::daemon::slab::{Slab, Slot};
use crate::error::TierError;
use crate::level::storage::LevelStorage;
use crate::log::{CopyRecord, Log, PieceSum, Record};
use crate::source::identity::SourceKey;
use crate::table::LevelState;
use crate::table::entry::{MAX_SLABS, MAX_SLOTS};

/// Parts of a quota that a slab takes, where it is smaller than the largest slabs: whole slabs are
/// what is deleted.
const SLABS_OF_QUOTA: u64 = 8;

/// Slots that are reserved on the device at once.
const RESERVED_SLOTS: u16 = 64;

/// What was lost of a log may have named a slab in each so many bytes, but hardly more than so many
/// slabs, whose numbers are not used again.
const SLAB_RECORD_BYTES: u64 = 15;
const MAX_LOST_SLABS: u64 = 1024;

/// A log is written anew when it has so many records more than two for each copy: that of its slot,
/// and its own.
const DEAD_RECORDS: u64 = 4096;

/// What a level is made of.
pub struct LevelParts {
    /// As the user calls it.
    pub name: String,
    /// Its directory, for errors.
    pub path: PathBuf,
    /// Its directory, open.
    pub directory: OwnedFd,
    /// Its slabs.
    pub storage: Arc<dyn LevelStorage>,
    /// What it may take \[bytes\].
    pub quota_bytes: u64,
    /// Whether nothing can be written there.
    pub is_read_only: bool,
    /// Whether copies in memory stay when the daemon ends.
    pub keep: bool,
}

pub(super) struct DaemonLevel {
    pub(super) parts: LevelParts,
    pub(super) state: LevelState,
    log: Option<Log>,
    slabs: BTreeMap<u32, Slab>,
    next_slab: u32,
    /// Numbers of sources in the log.
    numbers: HashMap<SourceKey, u32>,
    /// Copies of whole files.
    pub(super) files: FileStore,
    /// Where programs open them, if not in the directory itself.
    view: Option<ReadOnlyView>,
}

impl DaemonLevel {
    /// The directory through which programs open copies of files.
    pub(super) fn served_path(&self) -> &Path {
        self.view.as_ref().map_or(&self.parts.path, ReadOnlyView::path)
    }

    /// Opens a level and reads its log.
    pub(super) fn open(
        parts: LevelParts,
        boot: u128,
        sources: &mut Vec<FoundSource>,
        copies: &mut Vec<FoundCopy>,
    ) -> Result<Self, TierError> {
        // What is in memory is used without a comparison.
        let mut replay = Replay::new(boot, !parts.storage.is_memory());
        let mut each = |record| replay.take(record);
        let mut state = LevelState::Open;
        let mut log = None;
        let mut lost_bytes = 0;
        if parts.is_read_only {
            Log::read(parts.directory.as_fd(), &parts.path, &mut each)?;
            state = LevelState::Full;
        } else {
            let (opened, replayed) = Log::open(parts.directory.as_fd(), &parts.path, &mut each)?;
            log = Some(opened);
            lost_bytes = replayed.lost_bytes;
        }
        let failed = |action| TierError::io(&parts.path, action);
        let files: HashSet<u32> = parts.storage.slabs().map_err(failed("list slabs"))?.into_iter().collect();
        let Replay {
            sources: found_sources,
            numbers,
            mut slabs,
            next_slab,
            held,
            records,
            files: found_files,
            ..
        } = replay;
        slabs.retain(|number, _| files.contains(number));
        for (number, slab) in &mut slabs {
            let length = parts.storage.length(*number).map_err(failed("inspect a slab"))?;
            let taken = parts.storage.taken_bytes(*number).map_err(failed("inspect a slab"))?;
            let reserved = taken.div_ceil(CHUNK_BYTES).min(length / CHUNK_BYTES);
            slab.reserved = reserved.min(u64::from(slab.slots())) as u16;
            slab.is_truncated = u64::from(slab.used_slots()) * CHUNK_BYTES > length;
        }
        // A damaged log may give the number of a source to another one.
        let known: HashSet<SourceKey> = found_sources.values().map(|source| source.key).collect();
        slabs.retain(|_, slab| !slab.is_truncated && slab.held().all(|(key, _)| known.contains(&key)));
        if lost_bytes > 0 {
            // A record that was lost may have given a free slot to a chunk, which a client uses.
            slabs.retain(|_, slab| slab.free == 0);
        }
        if !parts.is_read_only {
            // Slabs that the log does not know hold nothing; truncated ones would be zeros.
            for number in files.iter().filter(|number| !slabs.contains_key(number)) {
                let _ = parts.storage.remove(*number);
            }
        }
        // Those of a log that was lost, too.
        let next_slab = files.iter().map(|number| number.saturating_add(1)).fold(next_slab, u32::max);
        let next_slab = next_slab.saturating_add((lost_bytes / SLAB_RECORD_BYTES).min(MAX_LOST_SLABS) as u32);
        let whole = FileStore::open(parts.directory.as_fd(), &found_files, lost_bytes, log.is_some());
        let whole = whole.map_err(TierError::io(&parts.path, "list files"))?;
        let view = ReadOnlyView::of(parts.directory.as_fd()).inspect_err(|error| {
            tracing::debug!(path = ?parts.path, %error, "copies are served from the directory itself");
        });
        let mut level = Self { parts, state, log, slabs, next_slab, numbers, files: whole, view: view.ok() };
        let mut found: Vec<FoundCopy> =
            found_in(held).filter(|found| level.slabs.contains_key(&found.slab)).collect();
        if level.log.is_some() {
            if records > 2 * found.len() as u64 + level.files.records() + DEAD_RECORDS {
                let copies: HashSet<(u32, u16)> =
                    found.iter().map(|found| (found.slab, found.slot)).collect();
                let mut with_sums = read_log(level.parts.directory.as_fd(), &level.parts.path, boot)?.copies;
                with_sums.retain(|found| copies.contains(&(found.slab, found.slot)));
                level
                    .rewrite(boot, &found_sources, &with_sums)
                    .map_err(TierError::io(&level.parts.path, "write the log anew"))?;
            } else {
                level.append(&[Record::Boot { id: boot }]);
            }
        }
        sources.extend(found_sources.into_values());
        copies.append(&mut found);
        Ok(level)
    }

    /// Slots of the whole quota.
    pub(super) fn quota_slots(&self) -> u64 {
        if self.state == LevelState::Open { self.parts.quota_bytes / CHUNK_BYTES } else { 0 }
    }

    /// Space that all copies take \[bytes\].
    pub(super) fn taken_bytes(&self) -> u64 {
        self.slabs.values().map(Slab::taken_slots).sum::<u64>() * CHUNK_BYTES + self.files.taken_bytes()
    }

    /// What slabs may take, and copies of files do \[bytes\].
    pub(super) fn planned_bytes(&self) -> u64 {
        let slots = self.slabs.values().map(|slab| u64::from(slab.slots())).sum::<u64>();
        slots * CHUNK_BYTES + self.files.taken_bytes()
    }

    /// Slots that slabs may take, and room that copies of files take of them.
    fn planned_slots(&self) -> u64 {
        self.planned_bytes().div_ceil(CHUNK_BYTES)
    }

    /// Sources that have copies here.
    pub(super) fn slabs(&self) -> usize {
        self.slabs.len()
    }

    /// A slot for a chunk of a dataset with these sources. Where there is no room, slabs go whose
    /// sources nobody uses: `last_used` tells when [s since 1970], or `None` for a source in use.
    /// What they held is added to `gone`.
    pub(super) fn place(
        &mut self,
        group: &HashSet<SourceKey>,
        source: &FoundSource,
        chunk: u64,
        last_used: &dyn Fn(&SourceKey) -> Option<u64>,
        gone: &mut Vec<(SourceKey, u64)>,
    ) -> Option<(u32, u16)> {
        if self.state != LevelState::Open {
            return None;
        }
        let number = self.slab_of(group).or_else(|| self.new_slab(last_used, gone))?;
        let slab = self.slabs.get_mut(&number).expect("the slab was just found");
        let slot = slab.first_free()?;
        if slot >= slab.reserved {
            let wanted = (slot / RESERVED_SLOTS + 1).saturating_mul(RESERVED_SLOTS).min(slab.slots());
            let storage = &self.parts.storage;
            let allocated = storage.length(number).and_then(|length| {
                // What was truncated would come back as zeros.
                if length < u64::from(slab.reserved) * CHUNK_BYTES {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                storage.allocate(number, u64::from(wanted) * CHUNK_BYTES)
            });
            if let Err(error) = allocated {
                self.failed(&error);
                return None;
            }
            slab.reserved = wanted;
        }
        slab.set(slot, Slot::Holds(source.key, chunk));
        // Before the client can write: another daemon must not give the slot to another chunk.
        let taken = |source| Record::SlotTaken { slab: number, slot, source, chunk };
        self.append_of(source, taken).then_some((number, slot))
    }

    /// A slab of this dataset that has a free slot.
    fn slab_of(&self, group: &HashSet<SourceKey>) -> Option<u32> {
        let is_own = |slab: &Slab| {
            slab.free > 0 && slab.held().next().is_some() && slab.held().all(|(key, _)| group.contains(&key))
        };
        self.slabs.iter().find(|(_, slab)| is_own(slab)).map(|(number, _)| *number)
    }

    fn new_slab(
        &mut self,
        last_used: &dyn Fn(&SourceKey) -> Option<u64>,
        gone: &mut Vec<(SourceKey, u64)>,
    ) -> Option<u32> {
        let quota = self.parts.quota_bytes / CHUNK_BYTES;
        let wanted = (quota / SLABS_OF_QUOTA).clamp(1, u64::from(MAX_SLOTS));
        while self.planned_slots() + wanted > quota {
            if !self.reclaim(last_used, gone) {
                break;
            }
        }
        let slots = wanted.min(quota.saturating_sub(self.planned_slots()));
        if slots == 0 || self.next_slab >= MAX_SLABS {
            return None;
        }
        let number = self.next_slab;
        if let Err(error) = self.parts.storage.create(number) {
            self.failed(&error);
            return None;
        }
        self.next_slab += 1;
        if !self.append(&[Record::Slab { slab: number, slots: slots as u16 }]) {
            let _ = self.parts.storage.remove(number);
            return None;
        }
        self.slabs.insert(number, Slab::new(slots as u16));
        Some(number)
    }

    /// The number of a slab for a probe, which the log does not get to know; `None` where no slab
    /// can be made.
    pub(super) fn spare_slab(&mut self) -> Option<u32> {
        if self.state != LevelState::Open || self.next_slab >= MAX_SLABS {
            return None;
        }
        self.next_slab += 1;
        Some(self.next_slab - 1)
    }

    /// Deletes the slab, or the files of the root, that was used least recently, if there is one
    /// that nobody uses.
    pub(super) fn reclaim(
        &mut self,
        last_used: &dyn Fn(&SourceKey) -> Option<u64>,
        gone: &mut Vec<(SourceKey, u64)>,
    ) -> bool {
        let used = |slab: &Slab| {
            slab.held().map(|(key, _)| last_used(&key)).try_fold(0, |last, used| Some(last.max(used?)))
        };
        let oldest = self.slabs.iter().filter_map(|(number, slab)| Some((used(slab)?, *number))).min();
        if let Some((root_used, root)) = self.files.oldest_root()
            && oldest.is_none_or(|(used, _)| root_used <= used)
        {
            self.delete_files(&self.files.of_root(&root));
            return true;
        }
        let Some((_, number)) = oldest else { return false };
        self.remove_slab(number, gone)
    }

    /// Deletes the slabs that hold nothing but these sources.
    pub(super) fn remove_slabs_of(&mut self, keys: &HashSet<SourceKey>, gone: &mut Vec<(SourceKey, u64)>) {
        let is_of =
            |slab: &Slab| slab.held().next().is_some() && slab.held().all(|(key, _)| keys.contains(&key));
        let slabs: Vec<u32> =
            self.slabs.iter().filter(|(_, slab)| is_of(slab)).map(|(number, _)| *number).collect();
        for number in slabs {
            if !self.remove_slab(number, gone) {
                return;
            }
        }
    }

    /// Deletes a slab; what it held is added to `gone`.
    fn remove_slab(&mut self, number: u32, gone: &mut Vec<(SourceKey, u64)>) -> bool {
        // Logged first: a record without its slab does no harm, as the file is looked for.
        if !self.append(&[Record::SlabGone { slab: number }]) {
            return false;
        }
        if let Err(error) = self.parts.storage.remove(number)
            && error.kind() != io::ErrorKind::NotFound
        {
            self.failed(&error);
            return false;
        }
        let slab = self.slabs.remove(&number).expect("it was just found");
        gone.extend(slab.held());
        true
    }

    /// Logs pieces of a chunk in a slot; false if they cannot be logged.
    pub(super) fn log_copy(
        &mut self,
        source: &FoundSource,
        (slab, slot): (u32, u16),
        chunk: u64,
        sums: &[PieceSum],
    ) -> bool {
        let copy = |source| Record::Copy(CopyRecord { slab, slot, source, chunk, sums: sums.to_vec() });
        self.append_of(source, copy)
    }

    /// Appends a record with the number of a source, which is named before where the log does not
    /// know it.
    fn append_of(&mut self, source: &FoundSource, record: impl FnOnce(u32) -> Record) -> bool {
        let mut records = Vec::with_capacity(3);
        let known = self.numbers.get(&source.key).copied();
        let number = known.unwrap_or(self.numbers.len() as u32);
        if known.is_none() {
            let FoundSource { key, path, bytes, used_unix_s } = source.clone();
            records.push(Record::Source { number, key, bytes, path });
            records.push(Record::Used { number, unix_s: used_unix_s });
        }
        records.push(record(number));
        let logged = self.append(&records);
        if logged {
            self.numbers.insert(source.key, number);
        }
        logged
    }

    /// Logs that a source is used.
    pub(super) fn log_use(&mut self, key: &SourceKey, unix_s: u64) {
        if let Some(number) = self.numbers.get(key) {
            self.append(&[Record::Used { number: *number, unix_s }]);
        }
    }

    /// Forgets a copy, as it is damaged. A client of another daemon may still read it, so that the
    /// slot stays that of its chunk.
    pub(super) fn drop_copy(&mut self, slab: u32, slot: u16) {
        self.append(&[Record::SlotGone { slab, slot }]);
    }

    /// Whether the slot holds this chunk.
    pub(super) fn is_at(&self, (slab, slot): (u32, u16), key: &SourceKey, chunk: u64) -> bool {
        self.slabs.get(&slab).and_then(|slab| slab.get(slot)) == Some(Slot::Holds(*key, chunk))
    }

    pub(super) fn append(&mut self, records: &[Record]) -> bool {
        let Some(log) = &mut self.log else { return false };
        match log.append(records) {
            Ok(()) => true,
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    /// Learns that the level refused to make room: it is full where that is all, else out.
    pub(super) fn failed(&mut self, error: &io::Error) {
        let code = error.raw_os_error().map(Errno::from_raw_os_error);
        let is_full = matches!(code, Some(Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::FBIG));
        self.state = if is_full { LevelState::Full } else { LevelState::Out };
        tracing::info!(level = self.parts.name, %error, state = ?self.state, "a tier takes no more copies");
    }

    fn rewrite(
        &mut self,
        boot: u128,
        sources: &BTreeMap<u32, FoundSource>,
        found: &[FoundCopy],
    ) -> io::Result<()> {
        let live: HashSet<&SourceKey> = found.iter().map(|found| &found.key).collect();
        let sources: Vec<&FoundSource> =
            sources.values().filter(|source| live.contains(&source.key)).collect();
        self.numbers =
            sources.iter().enumerate().map(|(number, source)| (source.key, number as u32)).collect();
        let numbers = &self.numbers;
        let named = sources.iter().enumerate().flat_map(|(number, source)| {
            let FoundSource { key, path, bytes, used_unix_s } = (*source).clone();
            let number = number as u32;
            [Record::Source { number, key, bytes, path }, Record::Used { number, unix_s: used_unix_s }]
        });
        let last_slab = self.last_slab();
        let slabs = self.slabs.iter().map(|(slab, held)| Record::Slab { slab: *slab, slots: held.slots() });
        let copies = |recent: bool| {
            found.iter().filter(move |found| found.is_recent == recent).map(|found| {
                let FoundCopy { key, chunk, slab, slot, sums, .. } = found;
                let (slab, slot, source, chunk) = (*slab, *slot, numbers[key], *chunk);
                if sums.is_empty() {
                    return Record::SlotTaken { slab, slot, source, chunk };
                }
                Record::Copy(CopyRecord { slab, slot, source, chunk, sums: sums.clone() })
            })
        };
        let [files, recent_files] = self.files.all_records();
        let log = self.log.as_mut().expect("only a log that can be written is written anew");
        let mut records = named
            .chain(last_slab)
            .chain(slabs)
            .chain(copies(false))
            .chain(files)
            .chain([Record::Boot { id: boot }])
            .chain(copies(true))
            .chain(recent_files);
        log.rewrite(&mut records)
    }

    /// Says in a log that is written anew which numbers were used: a client that missed the end of
    /// another daemon still looks slabs up by number, and must not find one of other data.
    fn last_slab(&self) -> Option<Record> {
        let last = self.next_slab.checked_sub(1)?;
        (!self.slabs.contains_key(&last)).then_some(Record::SlabGone { slab: last })
    }

    /// No longer uses the level: what is in memory goes, unless it is to be kept.
    pub(super) fn end(&mut self) {
        if self.parts.storage.is_memory() && !self.parts.keep {
            self.delete();
        }
    }

    /// Deletes everything; for levels in memory, when the daemon ends.
    fn delete(&mut self) {
        for slab in std::mem::take(&mut self.slabs).into_keys() {
            let _ = self.parts.storage.remove(slab);
        }
        self.files.delete_all();
        let [files, _] = self.files.all_records();
        let last_slab = self.last_slab();
        if let Some(log) = &mut self.log {
            let _ = log.rewrite(&mut last_slab.into_iter().chain(files));
        }
        self.numbers.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::level::faulty::{Call, Fault, FaultyLevel};
    use crate::level::slab_files::SlabFiles;
    use forebay_types::Pieces;

    const KEY: SourceKey = SourceKey([1; 16]);

    fn slabs(directory: &Path) -> Arc<dyn LevelStorage> {
        let slabs = directory.join("slabs");
        std::fs::create_dir_all(&slabs).unwrap();
        Arc::new(SlabFiles::new(File::open(slabs).unwrap().into()).unwrap())
    }

    fn try_level(
        directory: &Path,
        storage: Arc<dyn LevelStorage>,
    ) -> Result<(DaemonLevel, Vec<FoundCopy>), TierError> {
        let parts = LevelParts {
            name: "tier".into(),
            path: directory.to_owned(),
            directory: File::open(directory).unwrap().into(),
            storage,
            quota_bytes: 16 << 20,
            is_read_only: false,
            keep: false,
        };
        let mut copies = Vec::new();
        let level = DaemonLevel::open(parts, 1, &mut Vec::new(), &mut copies)?;
        Ok((level, copies))
    }

    fn level(directory: &Path) -> DaemonLevel {
        try_level(directory, slabs(directory)).unwrap().0
    }

    /// The slab of a new chunk.
    fn place(level: &mut DaemonLevel, chunk: u64) -> u32 {
        try_place(level, chunk).unwrap().0
    }

    fn try_place(level: &mut DaemonLevel, chunk: u64) -> Option<(u32, u16)> {
        level.place(&HashSet::from([KEY]), &source(), chunk, &|_| None, &mut Vec::new())
    }

    fn source() -> FoundSource {
        FoundSource { key: KEY, path: "/data".into(), bytes: 40 << 20, used_unix_s: 5 }
    }

    #[test]
    fn a_slot_stays_that_of_its_chunk_published_or_not() {
        let directory = tempfile::tempdir().unwrap();
        let mut open = level(directory.path());
        let given: Vec<_> = (0..15).map(|chunk| try_place(&mut open, chunk).unwrap()).collect();
        let sums = [PieceSum { piece: 0, start: 0, bytes: 9, crc: 7 }];
        for (chunk, at) in (0..).zip(&given[..2]) {
            assert!(open.log_copy(&source(), *at, chunk, &sums));
        }
        // A client of another daemon may read it, so that no other chunk may be written there.
        open.drop_copy(given[0].0, given[0].1);
        let check = |open: &mut DaemonLevel, found: &[FoundCopy]| {
            let found_at: Vec<_> = found.iter().map(|found| (found.slab, found.slot)).collect();
            assert_eq!(found_at, given);
            assert!(found.iter().zip(0..).all(|(found, chunk)| (found.key, found.chunk) == (KEY, chunk)));
            let published = found.iter().filter(|found| !found.pieces.is_empty());
            assert!(published.map(|found| found.chunk).eq([1]));
            let free = try_place(open, 100);
            assert!(!free.is_some_and(|at| given.contains(&at)));
        };
        drop(open);
        let (mut open, found) = try_level(directory.path(), slabs(directory.path())).unwrap();
        check(&mut open, &found);
        // Also in a log that was written anew.
        let sources = BTreeMap::from([(0, source())]);
        let mut with_sums = read_log(open.parts.directory.as_fd(), directory.path(), 1).unwrap().copies;
        with_sums.retain(|found| found.chunk < 100);
        open.rewrite(1, &sources, &with_sums).unwrap();
        drop(open);
        let (mut open, found) = try_level(directory.path(), slabs(directory.path())).unwrap();
        check(&mut open, &found);
    }

    #[test]
    fn the_number_of_a_deleted_slab_is_not_used_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut open = level(directory.path());
        assert_eq!((place(&mut open, 0), place(&mut open, 1), place(&mut open, 2)), (0, 0, 1));
        assert!(open.reclaim(&|_| Some(0), &mut Vec::new()) && open.reclaim(&|_| Some(0), &mut Vec::new()));
        open.rewrite(1, &BTreeMap::new(), &[]).unwrap();
        drop(open);
        let mut open = level(directory.path());
        assert_eq!(place(&mut open, 3), 2);
        open.delete();
        drop(open);
        assert_eq!(place(&mut level(directory.path()), 4), 3);
    }

    #[test]
    fn a_slot_whose_record_was_lost_is_not_given_to_another_chunk() {
        for chunks in [3, 4] {
            let directory = tempfile::tempdir().unwrap();
            let mut open = level(directory.path());
            let given: Vec<_> = (0..chunks).map(|chunk| try_place(&mut open, chunk).unwrap()).collect();
            drop(open);
            let path = directory.path().join("log");
            let mut log = std::fs::read(&path).unwrap();
            *log.last_mut().unwrap() ^= 1;
            std::fs::write(&path, &log).unwrap();
            let (mut open, found) = try_level(directory.path(), slabs(directory.path())).unwrap();
            // The first slab is full.
            assert!(found.iter().map(|found| found.slab).eq([0, 0]));
            for chunk in 10..14 {
                let at = try_place(&mut open, chunk).unwrap();
                assert!(given.iter().all(|(slab, _)| *slab < at.0));
            }
        }
    }

    #[test]
    fn a_slab_that_is_logged_twice_keeps_its_slots() {
        let directory = tempfile::tempdir().unwrap();
        let mut open = level(directory.path());
        let slab = place(&mut open, 0);
        open.append(&[Record::Slab { slab, slots: 2 }]);
        drop(open);
        let open = level(directory.path());
        assert_eq!((open.slabs[&slab].first_free(), open.slabs[&slab].free), (Some(1), 1));
    }

    #[test]
    fn copies_of_a_source_whose_number_was_given_away_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let mut open = level(directory.path());
        let slab = place(&mut open, 0);
        let source =
            |key| Record::Source { number: 0, key: SourceKey([key; 16]), bytes: 1, path: String::new() };
        let sums = vec![PieceSum { piece: 0, start: 0, bytes: 1, crc: 0 }];
        let copy = Record::Copy(CopyRecord { slab, slot: 0, source: 0, chunk: 0, sums });
        // So many records that the log is rewritten.
        let rest = (0..=DEAD_RECORDS).map(|unix_s| Record::Used { number: 0, unix_s });
        open.append(&[source(1), copy, source(2)].into_iter().chain(rest).collect::<Vec<_>>());
        drop(open);
        assert!(try_level(directory.path(), slabs(directory.path())).unwrap().1.is_empty());
    }

    #[test]
    fn pieces_of_a_chunk_that_are_logged_one_by_one_make_one_copy() {
        let directory = tempfile::tempdir().unwrap();
        let mut open = level(directory.path());
        let slab = place(&mut open, 7);
        let sum = |piece: u8, crc| PieceSum { piece, start: u32::from(piece) << 16, bytes: 9, crc };
        for sums in [vec![sum(3, 1)], vec![sum(0, 2), sum(4, 3)], vec![sum(3, 4)]] {
            assert!(open.log_copy(&source(), (slab, 0), 7, &sums));
        }
        drop(open);
        let (mut open, found) = try_level(directory.path(), slabs(directory.path())).unwrap();
        let [found] = found.as_slice() else { panic!("expected one copy") };
        assert_eq!((found.slab, found.slot, found.chunk, found.is_recent), (slab, 0, 7, true));
        assert_eq!(found.pieces, Pieces(0b1_1001));
        let sums_in_log = |open: &DaemonLevel| {
            read_log(open.parts.directory.as_fd(), directory.path(), 1).unwrap().copies.remove(0).sums
        };
        assert_eq!(sums_in_log(&open), [sum(0, 2), sum(3, 4), sum(4, 3)]);
        // So many records that the log is rewritten.
        open.append(&vec![Record::Used { number: 0, unix_s: 9 }; DEAD_RECORDS as usize + 3]);
        drop(open);
        let (mut open, found) = try_level(directory.path(), slabs(directory.path())).unwrap();
        assert!(open.log.as_ref().unwrap().bytes() < DEAD_RECORDS);
        assert_eq!((found[0].pieces, found[0].is_recent), (Pieces(0b1_1001), true));
        assert_eq!(sums_in_log(&open), [sum(0, 2), sum(3, 4), sum(4, 3)]);
        assert!(open.is_at((slab, 0), &KEY, 7));
        open.drop_copy(slab, 0);
        drop(open);
        let (_, found) = try_level(directory.path(), slabs(directory.path())).unwrap();
        assert_eq!((found[0].chunk, found[0].pieces), (7, Pieces::NONE));
    }

    #[test]
    fn no_fault_of_a_call_gives_a_slot_twice_or_brings_back_a_deleted_copy() {
        let source = source();
        let sums = [PieceSum { piece: 0, start: 0, bytes: 9, crc: 7 }];
        let run = |fails_at: u64, fault: Option<Fault>| {
            let directory = tempfile::tempdir().unwrap();
            let script = (0..fails_at).map(|_| None).chain([fault]);
            let faulty = Arc::new(FaultyLevel::new(slabs(directory.path())).with_script(script));
            let storage: Arc<dyn LevelStorage> = faulty.clone();
            let Ok((mut open, _)) = try_level(directory.path(), storage) else { return faulty.calls() };
            let mut held = HashMap::new();
            // Twice the quota: the first slabs are deleted.
            for chunk in 0..32 {
                let mut gone = Vec::new();
                let at = open.place(&HashSet::from([KEY]), &source, chunk, &|_| Some(0), &mut gone);
                held.retain(|_, chunk| !gone.contains(&(KEY, *chunk)));
                let Some(at) = at else { continue };
                assert!(!held.contains_key(&at));
                if open.log_copy(&source, at, chunk, &sums) {
                    held.insert(at, chunk);
                }
            }
            drop(open);
            let copies = try_level(directory.path(), slabs(directory.path())).unwrap().1;
            assert!(copies.iter().all(|found| held.get(&(found.slab, found.slot)) == Some(&found.chunk)));
            assert!(fault.is_some() || copies.len() == held.len() && held.len() == 16);
            faulty.calls()
        };
        let calls = run(0, None);
        for fails_at in 0..calls {
            for fault in [Fault::Errno(libc::EIO), Fault::Errno(libc::ENOSPC), Fault::Removed] {
                run(fails_at, Some(fault));
            }
        }
    }

    #[test]
    fn a_level_without_room_is_full_and_one_that_fails_is_out() {
        let cases = [
            (libc::ENOSPC, LevelState::Full),
            (libc::EDQUOT, LevelState::Full),
            (libc::EIO, LevelState::Out),
        ];
        for call in [Call::Create, Call::Allocate] {
            for (errno, state) in cases {
                let directory = tempfile::tempdir().unwrap();
                let rule = move |made| (made == call).then_some(Fault::Errno(errno));
                let storage = FaultyLevel::new(slabs(directory.path())).with_rule(rule);
                let mut open = try_level(directory.path(), Arc::new(storage)).unwrap().0;
                let placed = try_place(&mut open, 0);
                assert_eq!((placed, open.state), (None, state));
            }
        }
    }
}
