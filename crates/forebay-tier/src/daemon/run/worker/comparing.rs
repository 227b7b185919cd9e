//! `--check`: copies are compared with their sources before they are served. Later changes of a
//! copy are seen at its opens.

use std::io;
use std::sync::atomic::Ordering;

use forebay_plan::COPIERS;
use forebay_table::TableWriter;

use crate::daemon::run::copiers::{Compared, FileKey, Job};
use crate::daemon::run::file_facts::{open_source, source_file};
use crate::daemon::run::shared::lock;
use crate::daemon::run::worker::{Worker, below};

impl Worker {
    /// Gives comparisons to the threads.
    pub(super) fn compare_next(&mut self, table: &mut TableWriter<'_>) -> bool {
        let mut acts = false;
        while self.comparing < 2 * COPIERS
            && let Some(key) = self.to_compare.pop_front()
        {
            acts = true;
            let is_to_do = self.entries.get(&key).is_some_and(|entry| !entry.is_compared);
            if is_to_do && self.begin_comparison(key).is_none() {
                self.forget(table, key);
            }
        }
        let is_compared = self.to_compare.is_empty() && self.comparing == 0;
        self.shared.is_compared.store(is_compared, Ordering::Release);
        acts
    }

    /// `None` if the source was changed, or one of both cannot be opened.
    fn begin_comparison(&mut self, key: FileKey) -> Option<()> {
        use std::os::fd::AsFd;
        let entry = self.entries.get(&key)?;
        let (id, _) = entry.copy?;
        let source = open_source(&below(&self.roots[entry.root].path, &entry.path)).ok()?;
        let expected = entry.file.identity;
        if source_file(source.as_fd()).ok()?.identity != expected {
            return None;
        }
        let copy = lock(&self.cache).open_copy(id).ok()?;
        self.copiers.give(Job::Compare { key, copy, source, expected });
        self.comparing += 1;
        Some(())
    }

    /// Serves a copy that is equal, and reports one that differs.
    pub(super) fn compared(
        &mut self,
        table: &mut TableWriter<'_>,
        key: FileKey,
        compared: &io::Result<Compared>,
    ) {
        self.comparing -= 1;
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let Some((id, _)) = entry.copy else { return };
        match compared {
            Ok(Compared::Equal(identity)) => {
                self.shared.counts.compared_files.fetch_add(1, Ordering::Relaxed);
                let Some(copy) = lock(&self.cache).trust_copy(id, identity) else {
                    return self.forget(table, key);
                };
                entry.copy = Some((id, copy));
                entry.is_compared = true;
                self.publish(table, key);
            }
            Ok(Compared::Differ(offset)) => {
                self.shared.counts.compared_files.fetch_add(1, Ordering::Relaxed);
                let path = below(&self.roots[entry.root].path, &entry.path);
                self.shared.add_difference(path, *offset);
                self.stop_serving(table, key);
            }
            Ok(Compared::Changed) | Err(_) => self.forget(table, key),
        }
    }
}
