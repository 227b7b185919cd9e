//! What the table says of files: copies that are served, and sources that are not copied.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use forebay_table::{CopyFile, RecordId, RecordState, SourceFile, TableError, TableWriter};

use crate::daemon::files::KnownCopy;
use crate::daemon::run::copiers::{FileKey, Job};
use crate::daemon::run::shared::{News, lock};
use crate::daemon::run::worker::{Entry, Worker, below, key_of};

impl Worker {
    /// Finds the copies that the levels have, so that programs get them from the start on.
    pub(super) fn find_copies(&mut self) {
        for root in 0..self.roots.len() {
            let known = lock(&self.cache).copies_of(self.roots[root].id, &self.levels);
            for mut known in known {
                known.facts.source.identity.device = self.roots[root].device;
                let key = key_of(&known.facts.source);
                if self.entries.contains_key(&key) {
                    continue;
                }
                if known.is_trusted {
                    self.add_known(root, &known);
                } else {
                    self.verify(root, known);
                }
            }
        }
    }

    pub(super) fn add_known(&mut self, root: usize, known: &KnownCopy) -> Option<FileKey> {
        let copy = lock(&self.cache).copy_file(known.id)?;
        let file = known.facts.source;
        let key = key_of(&file);
        let path = known.facts.path.clone();
        let entry = Entry { record: RecordId(u32::MAX), root, path, file, copy: Some((known.id, copy)) };
        self.entries.insert(key, entry);
        Some(key)
    }

    fn verify(&mut self, root: usize, known: KnownCopy) {
        let Ok(copy) = lock(&self.cache).open_copy(known.id) else { return };
        let bytes = known.facts.source.identity.bytes;
        self.copiers.give(Job::Verify { id: known.id, copy, bytes, crc: known.crc });
        self.unverified.insert(known.id, (root, known));
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
                let entry = Entry {
                    record: RecordId(u32::MAX),
                    root,
                    path,
                    file: facts.source,
                    copy: Some((id, copy)),
                };
                self.entries.insert(key, entry);
                self.publish(table, key);
            }
        }
    }

    /// Adds an entry to the table: a copy that is served, or a source that is not copied.
    pub(super) fn publish(&mut self, table: &mut TableWriter<'_>, key: FileKey) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
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
                self.entries.remove(&key);
            }
        }
    }

    /// A source was changed, or its copy is wrong: it is not served any more.
    pub(super) fn forget(&mut self, table: &mut TableWriter<'_>, key: FileKey) {
        let Some(entry) = self.entries.remove(&key) else { return };
        if self.keys.remove(&entry.record).is_some() {
            table.advance(entry.record, RecordState::Stale);
        }
        if let Some((id, _)) = entry.copy {
            lock(&self.cache).delete_copy(id);
        }
    }

    /// A copy differs from its source. If this daemon dies before the user is told, another one has
    /// to find that again.
    pub(super) fn stop_serving(&mut self, table: &mut TableWriter<'_>, key: FileKey) {
        let Some(entry) = self.entries.remove(&key) else { return };
        if self.keys.remove(&entry.record).is_some() {
            table.advance(entry.record, RecordState::Stale);
        }
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
        self.entries.insert(key, Entry { record: RecordId(u32::MAX), root, path, file: *file, copy: None });
        self.publish(table, key);
    }
}
