//! The end of a run: no more copies are begun, and all are compared if that was asked for.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use forebay_table::Identity;

use crate::daemon::run::copiers::{COPIERS, FileKey, Job};
use crate::daemon::run::file_facts::{open_source, source_file};
use crate::daemon::run::shared::lock;
use crate::daemon::run::worker::{Worker, below};

impl Worker {
    /// Ends copies under way, compares all if that was asked for, and says so.
    pub(super) fn finish(&mut self) -> bool {
        if self.shared.is_finished.load(Ordering::Acquire) {
            return false;
        }
        self.waiting.clear();
        self.late.clear();
        self.staged.clear();
        self.wanted.clear();
        if !self.copying.is_empty() || !self.flushing.is_empty() {
            return true;
        }
        if self.shared.options.check {
            if self.to_compare.is_none() {
                self.to_compare = Some(self.entries.keys().copied().collect());
            }
            while self.copiers.under_way() < 2 * COPIERS
                && let Some(key) = self.to_compare.as_mut().and_then(Vec::pop)
            {
                self.compare(key);
            }
        }
        if self.copiers.under_way() == 0 {
            self.shared.is_finished.store(true, Ordering::Release);
        }
        true
    }

    fn compare(&mut self, key: FileKey) -> Option<()> {
        let entry = self.entries.get(&key)?;
        let (id, _) = entry.copy?;
        let source = open_source(&below(&self.roots[entry.root].path, &entry.path)).ok()?;
        let now: Identity = source_file(source.as_fd()).ok()?.identity;
        if now != entry.file.identity {
            return None;
        }
        let copy: OwnedFd = lock(&self.cache).open_copy(id).ok()?;
        self.copiers.give(Job::Compare { key, copy, source, bytes: now.bytes });
        Some(())
    }
}
