//! What the daemon knows: which chunks of which sources have copies where, and who uses them.
//!
//! Nothing here waits for a client. Clients are numbers; the server (`server.rs`) tells when one
//! comes or goes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_plan::slots_of_levels;
use forebay_types::{ChunkId, Pieces};

use crate::copy::offer::Copied;
use crate::daemon::file_store::RootId;
use crate::daemon::level::{DaemonLevel, LevelParts};
use crate::daemon::protocol::{DatasetId, LevelUsage, SourceUsage};
use crate::daemon::replay::{FoundCopy, FoundSource};
use crate::daemon::sums::Sums;
use crate::error::TierError;
use crate::level::storage::LevelStorage;
use crate::log::PieceSum;
use crate::source::identity::{Source, SourceKey};
use crate::table::entry::{ChunkEntry, MAX_LEVELS, SlotId};
use crate::table::{LevelState, TableWriter};

/// See the module header.
pub struct Cache {
    boot: u128,
    pub(super) levels: Vec<DaemonLevel>,
    pub(super) sources: HashMap<SourceKey, SourceCopies>,
    datasets: BTreeMap<DatasetId, CachedDataset>,
    next_dataset: u64,
    /// Slots that chunks were given and nothing is published in: of each chunk, by level. Clients
    /// may write to them at any time, also those of a daemon that died, and write nothing but the
    /// chunk.
    pending: HashMap<(SourceKey, u64, u8), SlotId>,
    /// Roots that runs use.
    pub(super) roots: HashMap<RootId, PathBuf>,
    pub(super) next_root: u32,
}

pub(super) struct SourceCopies {
    pub(super) about: FoundSource,
    /// By chunk and level: datasets of other levels do not see a copy.
    copies: HashMap<(u64, u8), CopyState>,
    /// Datasets that it is in, of those that clients are attached to.
    pub(super) users: u32,
}

impl SourceCopies {
    /// The copy of a chunk on the nearest of these levels that has one.
    fn copy(&self, chunk: u64, levels: &[u8]) -> Option<&CopyState> {
        levels.iter().find_map(|level| self.copies.get(&(chunk, *level)))
    }
}

struct CopyState {
    at: SlotId,
    pieces: Pieces,
    /// Checksums of the pieces; none where they are in memory, and used without a comparison.
    sums: Option<Sums>,
    /// They must be compared before the pieces are used.
    is_unverified: bool,
    /// They were logged under another boot id.
    is_old: bool,
}

impl CopyState {
    fn entry(&self) -> ChunkEntry {
        let Self { at, pieces, .. } = *self;
        if self.is_unverified {
            ChunkEntry::Unverified { at, pieces }
        } else {
            ChunkEntry::Present { at, pieces }
        }
    }
}

/// A dataset that clients are attached to.
pub(super) struct CachedDataset {
    sources: Vec<Source>,
    keys: Arc<HashSet<SourceKey>>,
    /// First chunk of each source, and at the end the number of chunks.
    first_chunks: Vec<u64>,
    /// The levels of its tiers, in their order.
    pub(super) levels: Vec<u8>,
    pub(super) table: TableWriter,
    /// Slots that it may fill, of each level.
    slots: [u64; MAX_LEVELS],
    clients: u32,
}

impl CachedDataset {
    pub(super) fn chunks(&self) -> u64 {
        self.first_chunks[self.first_chunks.len() - 1]
    }

    fn chunk_of(&self, chunk: ChunkId) -> Option<(SourceKey, u64)> {
        if chunk.0 >= *self.first_chunks.last()? {
            return None;
        }
        let number = self.first_chunks.partition_point(|first| *first <= chunk.0) - 1;
        Some((self.sources[number].key, chunk.0 - self.first_chunks[number]))
    }

    /// The numbers that a chunk of a source has: one, unless the source is in it twice.
    fn numbers_of(&self, key: SourceKey, chunk: u64) -> impl Iterator<Item = ChunkId> {
        let within = move |source: &Source| source.key == key && chunk < source.chunks;
        let starts = self.sources.iter().zip(&self.first_chunks);
        starts.filter(move |(source, _)| within(source)).map(move |(_, first)| ChunkId(first + chunk))
    }
}

/// What a client is told when it attaches.
pub(super) struct Joined {
    pub(super) dataset: DatasetId,
    /// Slots that the dataset may fill, of each level.
    pub(super) slots: [u64; MAX_LEVELS],
    /// Chunks that have a copy.
    pub(super) copied_chunks: u64,
}

impl Cache {
    /// A cache without levels; `boot` is the boot id of the machine.
    #[must_use]
    pub fn new(boot: u128) -> Self {
        Self {
            boot,
            levels: Vec::new(),
            sources: HashMap::new(),
            datasets: BTreeMap::new(),
            // `RandomState` is the standard library's source of randomness.
            next_dataset: RandomState::new().build_hasher().finish(),
            pending: HashMap::new(),
            roots: HashMap::new(),
            next_root: 0,
        }
    }

    /// Adds a level and what it holds; returns its number. Where there are as many as there can be,
    /// it takes the place of one that nobody uses, and that is not `wanted`.
    ///
    /// # Errors
    /// A log that cannot be read or written, or too many levels.
    pub fn add_level(&mut self, parts: LevelParts, wanted: &[u8]) -> Result<u8, TierError> {
        let (mut sources, mut copies) = (Vec::new(), Vec::new());
        let number = self.free_number(&parts.name, wanted)?;
        let level = DaemonLevel::open(parts, self.boot, &mut sources, &mut copies)?;
        if usize::from(number) < self.levels.len() {
            self.retire(number);
            self.levels[usize::from(number)] = level;
        } else {
            self.levels.push(level);
        }
        for about in sources {
            let known = self.source(&about);
            known.about.used_unix_s = known.about.used_unix_s.max(about.used_unix_s);
        }
        let mut chunks: HashMap<SourceKey, usize> = HashMap::new();
        for found in &copies {
            *chunks.entry(found.key).or_default() += 1;
        }
        for (key, chunks) in chunks {
            if let Some(source) = self.sources.get_mut(&key) {
                source.copies.reserve(chunks);
            }
        }
        for FoundCopy { key, chunk, slab, slot, pieces, sums, is_recent } in copies {
            let Some(source) = self.sources.get_mut(&key) else { continue };
            let at = SlotId { level: number, slab, slot };
            if pieces.is_empty() {
                self.pending.insert((key, chunk, number), at);
                continue;
            }
            let sums = (!sums.is_empty()).then(|| Sums::new(&sums));
            let (is_unverified, is_old) = (!is_recent || sums.is_some(), !is_recent);
            let found = CopyState { at, pieces, sums, is_unverified, is_old };
            source.copies.entry((chunk, number)).or_insert(found);
        }
        Ok(number)
    }

    /// A number for another level: a new one, or that of a level that nobody uses.
    fn free_number(&self, name: &str, wanted: &[u8]) -> Result<u8, TierError> {
        if self.levels.len() < MAX_LEVELS {
            return Ok(self.levels.len() as u8);
        }
        let is_used = |number: &u8| {
            wanted.contains(number) || self.datasets.values().any(|dataset| dataset.levels.contains(number))
        };
        (0..MAX_LEVELS as u8).find(|number| !is_used(number)).ok_or_else(|| TierError::Tier {
            tier: name.to_owned(),
            problem: format!("expected at most {MAX_LEVELS} tiers in use by one user on a node"),
            hint: String::new(),
        })
    }

    /// Forgets what is on a level that nobody uses, as when the daemon ends.
    fn retire(&mut self, number: u8) {
        self.levels[usize::from(number)].end();
        self.pending.retain(|(.., level), _| *level != number);
        for source in self.sources.values_mut() {
            source.copies.retain(|(_, level), _| *level != number);
        }
        self.sources.retain(|_, source| source.users > 0 || !source.copies.is_empty());
    }

    /// Names of the levels, as users call them.
    pub(super) fn level_name(&self, level: u8) -> &str {
        &self.levels[usize::from(level)].parts.name
    }

    /// Sets what a level may take \[bytes\], and whether copies in memory stay, as the client says
    /// that came last.
    pub(super) fn set_limits(&mut self, level: u8, bytes: u64, keep: bool) {
        let parts = &mut self.levels[usize::from(level)].parts;
        (parts.quota_bytes, parts.keep) = (bytes, keep);
    }

    /// A level's slabs, and the number of one for a probe; `None` where no slab can be made.
    pub(super) fn spare_slab(&mut self, level: u8) -> Option<(Arc<dyn LevelStorage>, u32)> {
        let level = &mut self.levels[usize::from(level)];
        Some((Arc::clone(&level.parts.storage), level.spare_slab()?))
    }

    /// Where programs find the level.
    pub(super) fn served_path(&self, level: u8) -> &Path {
        self.levels[usize::from(level)].served_path()
    }

    /// A level's parts.
    pub(super) fn level_parts(&self, level: u8) -> &LevelParts {
        &self.levels[usize::from(level)].parts
    }

    fn source(&mut self, about: &FoundSource) -> &mut SourceCopies {
        self.sources.entry(about.key).or_insert_with(|| SourceCopies {
            about: about.clone(),
            copies: HashMap::new(),
            users: 0,
        })
    }

    /// A dataset's table and claims.
    pub(super) fn dataset(&self, id: DatasetId) -> Option<&CachedDataset> {
        self.datasets.get(&id)
    }

    /// A client uses a dataset, with copies on these levels, the nearest first.
    pub(super) fn attach(&mut self, sources: Vec<Source>, levels: &[u8]) -> Result<Joined, TierError> {
        let existing =
            self.datasets.iter().find(|(_, known)| known.sources == sources && known.levels == levels);
        let id = match existing {
            Some((id, _)) => *id,
            None => self.new_dataset(sources, levels)?,
        };
        Ok(self.join(id).expect("it is known"))
    }

    /// A client uses a dataset that others use; `None` if none does.
    pub(super) fn join(&mut self, id: DatasetId) -> Option<Joined> {
        let dataset = self.datasets.get_mut(&id)?;
        dataset.clients += 1;
        let is_copied = |chunk: &u64| dataset.table.get(ChunkId(*chunk)) != ChunkEntry::Absent;
        let copied_chunks = (0..dataset.chunks()).filter(is_copied).count() as u64;
        Some(Joined { dataset: id, slots: dataset.slots, copied_chunks })
    }

    fn new_dataset(&mut self, sources: Vec<Source>, levels: &[u8]) -> Result<DatasetId, TierError> {
        let mut first_chunks = vec![0];
        for source in &sources {
            let next: u64 = first_chunks[first_chunks.len() - 1];
            first_chunks.push(next.saturating_add(source.chunks));
        }
        let chunks = *first_chunks.last().expect("it begins with 0");
        let table = TableWriter::new(chunks)?;
        let now = unix_s();
        let keys: Arc<HashSet<SourceKey>> = Arc::new(sources.iter().map(|source| source.key).collect());
        for source in &sources {
            let Source { key, path, bytes, .. } = source.clone();
            self.source(&FoundSource { key, path, bytes, used_unix_s: now });
        }
        for key in &*keys {
            let known = self.sources.get_mut(key).expect("it was just made");
            if known.users == 0 {
                // Copies without a user may have been damaged since they were written or compared.
                let on_disk = known.copies.values_mut().filter(|copy| copy.sums.is_some());
                on_disk.for_each(|copy| copy.is_unverified = true);
            }
            known.users += 1;
            known.about.used_unix_s = now;
            for level in &mut self.levels {
                level.log_use(key, now);
            }
        }
        let slots = self.slots_for(&keys, chunks, levels);
        let id = DatasetId(self.next_dataset);
        self.next_dataset = self.next_dataset.wrapping_add(1);
        let dataset =
            CachedDataset { sources, keys, first_chunks, levels: levels.to_vec(), table, slots, clients: 0 };
        for (source, first) in dataset.sources.iter().zip(&dataset.first_chunks) {
            let copies = &self.sources[&source.key].copies;
            // The nearest level last: it counts.
            for level in levels.iter().rev() {
                let here = copies.iter().filter(|((chunk, on), _)| on == level && *chunk < source.chunks);
                for ((chunk, _), copy) in here {
                    dataset.table.set(ChunkId(first + chunk), copy.entry());
                }
            }
        }
        for (number, level) in self.levels.iter().enumerate() {
            dataset.table.set_level(number as u8, level.state);
        }
        self.datasets.insert(id, dataset);
        Ok(id)
    }

    /// Slots that a dataset may fill: what the datasets that are in use leave, from the nearest
    /// level on.
    fn slots_for(&self, keys: &HashSet<SourceKey>, chunks: u64, levels: &[u8]) -> [u64; MAX_LEVELS] {
        let room = |number: &u8| {
            let level = usize::from(*number);
            let others: u64 = self
                .datasets
                .values()
                .filter(|other| other.keys.is_disjoint(keys))
                .map(|other| other.slots[level])
                .sum();
            self.levels[level].quota_slots().saturating_sub(others)
        };
        let mut slots = [0; MAX_LEVELS];
        for (number, found) in levels.iter().zip(slots_of_levels(chunks, levels.iter().map(room))) {
            slots[usize::from(*number)] = found;
        }
        slots
    }

    /// A client no longer uses a dataset. It may have left claims behind.
    pub(super) fn detach(&mut self, id: DatasetId) {
        let Some(dataset) = self.datasets.get_mut(&id) else { return };
        dataset.table.claims().clear();
        dataset.clients -= 1;
        if dataset.clients > 0 {
            return;
        }
        let dataset = self.datasets.remove(&id).expect("it was just found");
        for key in &*dataset.keys {
            let source = self.sources.get_mut(key).expect("sources of a dataset are known");
            source.users -= 1;
            source.about.used_unix_s = unix_s();
            for level in &mut self.levels {
                level.log_use(key, source.about.used_unix_s);
            }
        }
    }

    /// Whether any client uses a dataset.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.datasets.is_empty()
    }

    /// Finds a slot for each chunk in its level; `None` where there is no room.
    pub(super) fn place(&mut self, id: DatasetId, wanted: &[(ChunkId, u8)]) -> Vec<Option<SlotId>> {
        let place = |(chunk, level): &(ChunkId, u8)| self.place_one(id, *chunk, *level);
        wanted.iter().map(place).collect()
    }

    fn place_one(&mut self, id: DatasetId, chunk: ChunkId, level: u8) -> Option<SlotId> {
        let dataset = self.datasets.get(&id)?;
        let (key, chunk) = dataset.chunk_of(chunk)?;
        if let Some(copy) = self.sources[&key].copy(chunk, &dataset.levels) {
            return (!copy.is_unverified).then_some(copy.at);
        }
        let is_pending = |level: &u8| self.pending.get(&(key, chunk, *level));
        if let Some(at) = dataset.levels.iter().find_map(is_pending) {
            return Some(*at);
        }
        // A level may fill by chance before the others do.
        let others = dataset.levels.iter().filter(|other| **other != level);
        let levels: Vec<u8> =
            dataset.levels.iter().filter(|own| **own == level).chain(others).copied().collect();
        let keys = Arc::clone(&dataset.keys);
        let at = levels.into_iter().find_map(|level| self.place_on(level, &keys, key, chunk))?;
        self.pending.insert((key, chunk, at.level), at);
        Some(at)
    }

    fn place_on(
        &mut self,
        level: u8,
        keys: &HashSet<SourceKey>,
        key: SourceKey,
        chunk: u64,
    ) -> Option<SlotId> {
        let sources = &self.sources;
        let last_used = |key: &SourceKey| {
            let known = sources.get(key);
            known.map_or(Some(0), |known| (known.users == 0).then_some(known.about.used_unix_s))
        };
        let mut gone = Vec::new();
        let store = &mut self.levels[usize::from(level)];
        let about = &sources[&key].about;
        let (before, placed) = (store.state, store.place(keys, about, chunk, &last_used, &mut gone));
        let is_changed = store.state != before;
        self.forget(level, &gone);
        if is_changed {
            self.publish_state(level);
        }
        placed.map(|(slab, slot)| SlotId { level, slab, slot })
    }

    /// Forgets copies whose slabs were deleted.
    pub(super) fn forget(&mut self, level: u8, gone: &[(SourceKey, u64)]) {
        for (key, chunk) in gone {
            self.pending.remove(&(*key, *chunk, level));
            if let Some(source) = self.sources.get_mut(key) {
                source.copies.remove(&(*chunk, level));
                if source.copies.is_empty() && source.users == 0 {
                    self.sources.remove(key);
                }
            }
        }
    }

    /// Logs and publishes copies; those that are not what was placed are passed over.
    pub(super) fn publish(&mut self, id: DatasetId, copied: &[Copied]) {
        for copy in copied {
            self.publish_one(id, copy);
        }
    }

    fn publish_one(&mut self, id: DatasetId, copied: &Copied) -> Option<()> {
        let (key, chunk) = self.datasets.get(&id)?.chunk_of(copied.chunk)?;
        let at = copied.at;
        let source = self.sources.get_mut(&key)?;
        let known = source.copies.get(&(chunk, at.level));
        let expected =
            known.map(|known| known.at).or_else(|| self.pending.get(&(key, chunk, at.level)).copied());
        let level = self.levels.get_mut(usize::from(at.level))?;
        let before = level.state;
        let pieces = copied.numbers();
        let fits = expected == Some(at)
            && level.is_at((at.slab, at.slot), &key, chunk)
            && !copied.sums.is_empty()
            && copied.sums.iter().all(PieceSum::is_valid)
            && copied.sums.is_sorted_by(|one, next| one.piece < next.piece)
            && known.is_none_or(|known| !known.is_unverified);
        if fits && level.log_copy(&source.about, (at.slab, at.slot), chunk, &copied.sums) {
            let copy = source.copies.entry((chunk, at.level));
            let sums = (!level.parts.storage.is_memory()).then(|| Sums::new(&[]));
            let new = CopyState { at, pieces, sums, is_unverified: false, is_old: false };
            let copy = copy.or_insert(new);
            copy.pieces = copy.pieces.union(pieces);
            if let Some(sums) = &mut copy.sums {
                sums.add(&copied.sums);
            }
            self.pending.remove(&(key, chunk, at.level));
            self.publish_entry(key, chunk);
        } else if level.state != before {
            self.publish_state(at.level);
        }
        Some(())
    }

    /// What must be compared before the copy of a chunk is used.
    pub(super) fn sums(&self, id: DatasetId, chunk: ChunkId) -> Option<(SlotId, Vec<PieceSum>)> {
        let dataset = self.datasets.get(&id)?;
        let (key, chunk) = dataset.chunk_of(chunk)?;
        let copy = self.sources.get(&key)?.copy(chunk, &dataset.levels)?;
        copy.is_unverified.then(|| (copy.at, copy.sums.as_ref().map_or_else(Vec::new, Sums::to_vec)))
    }

    /// A client compared the pieces of an unverified chunk: these are right. Where none is, the
    /// copy is forgotten.
    pub(super) fn verified(&mut self, id: DatasetId, chunk: ChunkId, good: Pieces) -> Option<()> {
        let dataset = self.datasets.get(&id)?;
        let (key, chunk) = dataset.chunk_of(chunk)?;
        let source = self.sources.get_mut(&key)?;
        let number = source.copy(chunk, &dataset.levels)?.at.level;
        let copy = source.copies.get_mut(&(chunk, number))?;
        if !std::mem::take(&mut copy.is_unverified) {
            return None;
        }
        let sums = copy.sums.as_ref().map_or_else(Vec::new, Sums::to_vec);
        let is_good = |sum: &PieceSum| good.contains(Pieces(1 << sum.piece));
        let good_sums: Vec<PieceSum> = sums.into_iter().filter(is_good).collect();
        let (at, is_old) = (copy.at, std::mem::take(&mut copy.is_old));
        copy.pieces = copy.pieces.intersection(good);
        let level = &mut self.levels[usize::from(at.level)];
        copy.sums = (!level.parts.storage.is_memory()).then(|| Sums::new(&good_sums));
        if good_sums.is_empty() {
            source.copies.remove(&(chunk, number));
            level.drop_copy(at.slab, at.slot);
            self.pending.insert((key, chunk, number), at);
        } else if is_old {
            level.log_copy(&source.about, (at.slab, at.slot), chunk, &good_sums);
        }
        self.publish_entry(key, chunk);
        Some(())
    }

    /// A client found that the copies of a source of its dataset are not the source's bytes.
    pub(super) fn source_differs(&mut self, id: DatasetId, number: usize) -> Option<()> {
        let key = self.datasets.get(&id)?.sources.get(number)?.key;
        for level in 0..self.levels.len() as u8 {
            self.drop_copies(&key, level);
        }
        Some(())
    }

    /// Forgets the copies of a source on a level, also while clients use them: they are wrong. Each
    /// slot stays that of its chunk.
    pub fn drop_copies(&mut self, key: &SourceKey, level: u8) {
        let Some(source) = self.sources.get_mut(key) else { return };
        let here = source.copies.iter().filter(|((_, on), _)| *on == level);
        let dropped: Vec<(u64, SlotId)> = here.map(|((chunk, _), copy)| (*chunk, copy.at)).collect();
        source.copies.retain(|(_, on), _| *on != level);
        let Some(store) = self.levels.get_mut(usize::from(level)) else { return };
        for (_, at) in &dropped {
            store.drop_copy(at.slab, at.slot);
        }
        for (chunk, at) in dropped {
            self.pending.insert((*key, chunk, level), at);
            self.publish_entry(*key, chunk);
        }
    }

    /// Deletes the unused copies of what is at or below a path from a level; returns the space that
    /// was given back \[bytes\]. Slots in slabs that hold other sources as well stay taken.
    pub fn clear_source(&mut self, number: u8, path: &Path) -> u64 {
        let is_wanted = |source: &SourceCopies| source.users == 0 && source.about.is_below(path);
        let wanted: HashSet<SourceKey> =
            self.sources.iter().filter(|(_, source)| is_wanted(source)).map(|(key, _)| *key).collect();
        let level = &mut self.levels[usize::from(number)];
        let (before, mut gone) = (level.taken_bytes(), Vec::new());
        level.remove_slabs_of(&wanted, &mut gone);
        level.delete_files(&level.files.unused_below(path));
        let freed = before - level.taken_bytes();
        self.forget(number, &gone);
        for key in &wanted {
            self.drop_copies(key, number);
        }
        freed
    }

    /// Deletes copies of files, unless a run uses them; returns the space that was given back
    /// \[bytes\].
    pub fn drop_files(&mut self, number: u8, files: &[u64]) -> u64 {
        let level = &mut self.levels[usize::from(number)];
        let before = level.taken_bytes();
        let unused: HashSet<u64> = level.files.unused_below(Path::new("/")).into_iter().collect();
        let files: Vec<u64> = files.iter().copied().filter(|file| unused.contains(file)).collect();
        level.delete_files(&files);
        before - level.taken_bytes()
    }

    /// A client found that a level fails: nobody uses it any more.
    pub(super) fn level_failed(&mut self, level: u8) {
        if let Some(store) = self.levels.get_mut(usize::from(level)) {
            store.state = LevelState::Out;
            self.publish_state(level);
        }
    }

    /// The directory of a level was deleted: nothing of it is left.
    pub(super) fn level_removed(&mut self, level: u8) {
        self.level_failed(level);
        self.pending.retain(|_, at| at.level != level);
        let gone: Vec<(SourceKey, u64)> = self
            .sources
            .iter()
            .flat_map(|(key, source)| {
                let here = source.copies.keys().filter(|(_, on)| *on == level);
                here.map(move |(chunk, _)| (*key, *chunk))
            })
            .collect();
        for (key, chunk) in gone {
            if let Some(source) = self.sources.get_mut(&key) {
                source.copies.remove(&(chunk, level));
            }
            self.publish_entry(key, chunk);
        }
    }

    fn publish_entry(&self, key: SourceKey, chunk: u64) {
        for dataset in self.datasets.values().filter(|dataset| dataset.keys.contains(&key)) {
            let copy = self.sources.get(&key).and_then(|source| source.copy(chunk, &dataset.levels));
            let entry = copy.map_or(ChunkEntry::Absent, CopyState::entry);
            dataset.numbers_of(key, chunk).for_each(|number| dataset.table.set(number, entry));
        }
    }

    pub(super) fn publish_state(&self, level: u8) {
        let state = self.levels[usize::from(level)].state;
        for dataset in self.datasets.values() {
            dataset.table.set_level(level, state);
        }
    }

    /// What the levels hold.
    #[must_use]
    pub fn usage(&self) -> Vec<LevelUsage> {
        let of_level = |(number, level): (usize, &DaemonLevel)| {
            let mut sources: Vec<SourceUsage> = Vec::new();
            for source in self.sources.values() {
                let here = source.copies.values().filter(|copy| usize::from(copy.at.level) == number);
                let (mut chunks, mut pieces) = (0, 0);
                for copy in here {
                    chunks += 1;
                    pieces += u64::from(copy.pieces.count());
                }
                if chunks > 0 {
                    sources.push(SourceUsage {
                        path: source.about.path.clone(),
                        key: source.about.key,
                        bytes: source.about.bytes,
                        chunks,
                        pieces,
                        used_unix_s: source.about.used_unix_s,
                        is_used: source.users > 0,
                    });
                }
            }
            sources.sort_by(|one, other| (&one.path, one.key).cmp(&(&other.path, other.key)));
            LevelUsage {
                name: level.parts.name.clone(),
                path: level.parts.path.display().to_string(),
                quota_bytes: level.parts.quota_bytes,
                taken_bytes: level.taken_bytes(),
                slabs: level.slabs() as u64,
                is_memory: level.parts.storage.is_memory(),
                state: format!("{:?}", level.state).to_lowercase(),
                sources,
                roots: level.files.usage(),
            }
        };
        self.levels.iter().enumerate().map(of_level).collect()
    }

    /// Deletes one slab, or the files of one root, that nobody uses; returns the space that was
    /// given back, `None` where there is none \[bytes\].
    pub fn clear_one(&mut self, number: u8) -> Option<u64> {
        let sources = &self.sources;
        let last_used = |key: &SourceKey| {
            let known = sources.get(key);
            known.map_or(Some(0), |known| (known.users == 0).then_some(known.about.used_unix_s))
        };
        let level = &mut self.levels[usize::from(number)];
        let (before, mut gone) = (level.taken_bytes(), Vec::new());
        let is_deleted = level.reclaim(&last_used, &mut gone);
        let freed = before - level.taken_bytes();
        self.forget(number, &gone);
        is_deleted.then_some(freed)
    }

    /// Ends: what is in memory goes, unless it is to be kept.
    pub fn end(&mut self) {
        self.levels.iter_mut().for_each(DaemonLevel::end);
    }
}

pub(super) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs())
}
