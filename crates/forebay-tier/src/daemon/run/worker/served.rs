//! What the table says of files: copies that are served, and sources that are not copied.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_table::{
    CopyFile, CopyIdentity, Identity, RecordId, RecordState, SourceFile, TableError, TableWriter,
};

use crate::daemon::files::{CopyId, KnownCopy};
use crate::daemon::run::copiers::{FileKey, Job};
use crate::daemon::run::shared::{News, lock};
use crate::daemon::run::worker::{TableEntry, Worker, below, key_of};

/// How many sources are looked for when there is no room, and how often.
const SOURCES_AT_ONCE: usize = 64;
const LOOK_FOR_SOURCES_EVERY: Duration = Duration::from_secs(1);

fn hash_of(root: usize, path: &Path) -> u64 {
    let mut hash = DefaultHasher::new();
    (root, path.as_os_str()).hash(&mut hash);
    hash.finish()
}

impl Worker {
    /// Finds the copies that the levels have, so that programs get them from the start on.
    pub(super) fn find_copies(&mut self) {
        for root in 0..self.roots.len() {
            let known = lock(&self.cache).copies_of(self.roots[root].id, &self.levels);
            for mut known in known {
                known.facts.source.identity.device = self.roots[root].device_of(&known.facts.path);
                let key = key_of(&known.facts.source);
                if self.entries.contains_key(&key) {
                    continue;
                }
                if known.copy.is_some() || self.shared.options.check {
                    self.add_known(root, known);
                } else {
                    self.verify(root, known);
                }
            }
        }
    }

    /// Notes a copy that a level has. `publish` compares it first where that was asked for.
    fn add_known(&mut self, root: usize, known: KnownCopy) -> FileKey {
        let KnownCopy { id, facts, copy, .. } = known;
        let unknown = || CopyFile { level: id.level, number: id.number, ..CopyFile::default() };
        let key = key_of(&facts.source);
        self.insert(key, root, facts.path, facts.source, Some((id, copy.unwrap_or_else(unknown))));
        key
    }

    pub(super) fn insert(
        &mut self,
        key: FileKey,
        root: usize,
        path: PathBuf,
        file: SourceFile,
        copy: Option<(CopyId, CopyFile)>,
    ) {
        self.by_path.insert(hash_of(root, &path), key);
        if copy.is_some() {
            self.copied.push_back(key);
        }
        let entry = TableEntry { record: RecordId(u32::MAX), root, path, file, copy, is_compared: false };
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, table: &mut TableWriter<'_>, key: FileKey) -> Option<TableEntry> {
        let entry = self.entries.remove(&key)?;
        let hash = hash_of(entry.root, &entry.path);
        if self.by_path.get(&hash) == Some(&key) {
            self.by_path.remove(&hash);
        }
        if self.keys.remove(&entry.record).is_some() {
            table.advance(entry.record, RecordState::Stale);
        }
        Some(entry)
    }

    /// Looks whether another file was at a path before. It was replaced, or is on a file system
    /// that was mounted anew: then its copy serves the file, too.
    pub(super) fn is_known_by_path(
        &mut self,
        table: &mut TableWriter<'_>,
        root: usize,
        path: &Path,
        file: &SourceFile,
    ) -> bool {
        let Some(before) = self.by_path.get(&hash_of(root, path)).copied() else { return false };
        let is_other = before != key_of(file);
        let Some(entry) = self.entries.get(&before).filter(|entry| is_other && entry.path == path) else {
            return false;
        };
        let known = Identity { device: file.identity.device, ..entry.file.identity };
        if known != file.identity || entry.copy.is_none() {
            self.forget(table, before);
            return false;
        }
        let Some(TableEntry { copy, is_compared, .. }) = self.remove(table, before) else { return false };
        let key = key_of(file);
        self.insert(key, root, path.to_owned(), *file, copy);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.is_compared = is_compared;
        }
        self.publish(table, key);
        true
    }

    /// Deletes copies whose sources are gone. A look costs a system call on the source, so there
    /// are few at once.
    pub(super) fn make_room(&mut self, table: &mut TableWriter<'_>) -> bool {
        if self.looked_for_sources.elapsed() < LOOK_FOR_SOURCES_EVERY {
            return false;
        }
        self.looked_for_sources = Instant::now();
        let mut deletes = false;
        for _ in 0..SOURCES_AT_ONCE.min(self.copied.len()) {
            let Some(key) = self.copied.pop_front() else { break };
            let Some(entry) = self.entries.get(&key).filter(|entry| entry.copy.is_some()) else { continue };
            let path = below(&self.roots[entry.root].path, &entry.path);
            if path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
                self.forget(table, key);
                deletes = true;
            } else {
                self.copied.push_back(key);
            }
        }
        deletes
    }

    fn verify(&mut self, root: usize, known: KnownCopy) {
        let Ok(copy) = lock(&self.cache).open_copy(known.id) else { return };
        let bytes = known.facts.source.identity.bytes;
        self.copiers.give(Job::Verify { id: known.id, copy, bytes, crc: known.crc });
        self.unverified.insert(known.id, (root, known));
    }

    /// A copy was compared with its checksum: it is served from now on, or deleted.
    pub(super) fn verified(&mut self, table: &mut TableWriter<'_>, id: CopyId, right: Option<CopyIdentity>) {
        let copy = {
            let mut cache = lock(&self.cache);
            let copy = right.and_then(|identity| cache.trust_copy(id, &identity));
            if copy.is_none() {
                cache.delete_copy(id);
            }
            copy
        };
        let Some((root, known)) = self.unverified.remove(&id) else { return };
        if copy.is_some() && !self.entries.contains_key(&key_of(&known.facts.source)) {
            let key = self.add_known(root, KnownCopy { copy, ..known });
            self.publish(table, key);
        }
    }

    /// Serves copies that other runs have made.
    pub(super) fn take_news(&mut self, table: &mut TableWriter<'_>) {
        for News { path, facts, id, copy } in self.registry.take(self.shared.number) {
            let key = key_of(&facts.source);
            let is_known =
                self.entries.get(&key).is_some_and(|entry| entry.file.identity == facts.source.identity);
            let Some((root, path)) = self.place(&path).filter(|_| !is_known) else { continue };
            if self.levels.contains(&copy.level) {
                lock(&self.shared.not_copied).remove(&key);
                self.forget(table, key);
                self.insert(key, root, path, facts.source, Some((id, copy)));
                self.publish(table, key);
            }
        }
    }

    /// Adds an entry to the table: a copy that is served, or a source that is not copied.
    pub(super) fn publish(&mut self, table: &mut TableWriter<'_>, key: FileKey) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if self.shared.options.check && entry.copy.is_some() && !entry.is_compared {
            return self.to_compare.push_back(key);
        }
        let root = &self.roots[entry.root];
        let written = root.written.as_ref().filter(|_| self.shared.options.frozen);
        let path = written.map(|written| below(written, &entry.path));
        let added = table.add(&entry.file, path.as_ref().map(|path| path.as_os_str().as_bytes()));
        let added = added.and_then(|record| {
            entry.record = record;
            let Some((_, copy)) = entry.copy else {
                table.advance(record, RecordState::Refused);
                return Ok(());
            };
            let place = self.levels.iter().position(|level| *level == copy.level);
            let level = place.ok_or(TableError::Header { field: "level", found: copy.level.into() })? as u8;
            table.publish(record, &CopyFile { level, ..copy })
        });
        match added {
            Ok(()) => {
                self.keys.insert(entry.record, key);
            }
            Err(TableError::Full) => self.is_full = true,
            Err(error) => {
                tracing::info!(%error, "a copy cannot be in a file table");
                self.remove(table, key);
            }
        }
    }

    /// A source was changed, or its copy is wrong: it is not served any more.
    pub(super) fn forget(&mut self, table: &mut TableWriter<'_>, key: FileKey) {
        let Some(entry) = self.remove(table, key) else { return };
        if let Some((id, _)) = entry.copy {
            lock(&self.cache).delete_copy(id);
        }
    }

    /// A copy differs from its source. If this daemon dies before the user is told, another one has
    /// to find that again.
    pub(super) fn stop_serving(&mut self, table: &mut TableWriter<'_>, key: FileKey) {
        let Some(entry) = self.remove(table, key) else { return };
        self.passing.extend(entry.copy.map(|(id, _)| id));
    }

    /// Notes that a file is not copied, so that programs do not wish for it again.
    pub(super) fn refuse(
        &mut self,
        table: &mut TableWriter<'_>,
        file: &SourceFile,
        root: usize,
        path: PathBuf,
        why: &'static str,
    ) {
        let key = key_of(file);
        self.shared.note_not_copied(key, why);
        self.insert(key, root, path, *file, None);
        self.publish(table, key);
    }
}
