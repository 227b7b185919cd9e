//! Stages: looks for all files of the sources, and wants those that have no copy.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use forebay_plan::may_stage;

use crate::daemon::run::scan::{Scan, ScannedFile, scan};
use crate::daemon::run::shared::{Staging, lock};
use crate::daemon::run::worker::{OUTSIDE, Wanted, Worker, below, key_of};

impl Worker {
    /// Begins to look for all files, and wants those that it found.
    pub(super) fn stage(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let staging = &shared.staging;
        if staging.is_done.load(Ordering::Acquire) || !shared.orders.stage.load(Ordering::Acquire) {
            return false;
        }
        if !self.is_scanned {
            let Some(scanning) = &self.scanning else {
                self.start_scan();
                return true;
            };
            let Ok(Scan { files, outside, problem }) = scanning.try_recv() else { return true };
            self.is_scanned = true;
            self.scanning = None;
            if let Some(problem) = problem {
                *lock(&staging.problem) = Some(problem);
            }
            for key in outside {
                shared.note_not_copied(key, OUTSIDE);
            }
            self.take_found(files);
        }
        while may_stage(self.waiting.len(), self.copying.len())
            && let Some(found) = self.staged.pop_front()
        {
            let path = below(&self.roots[found.root].path, &found.path);
            self.want(Wanted { key: key_of(&found.file), path, is_staged: true, at_ns: 0 });
        }
        let is_staged = |wanted: &Wanted| wanted.is_staged;
        let is_open = !self.staged.is_empty()
            || self.waiting.iter().any(is_staged)
            || self.late.iter().any(is_staged)
            || self
                .copying
                .values()
                .chain(self.flushing.iter().map(|(_, copying)| copying))
                .any(|copying| copying.is_staged);
        if !is_open {
            staging.is_done.store(true, Ordering::Release);
        }
        true
    }

    fn start_scan(&mut self) {
        let (sender, receiver) = channel();
        let roots: Vec<PathBuf> = self.roots.iter().map(|root| root.path.clone()).collect();
        let theirs = Arc::clone(&self.shared);
        let look = move || {
            let _ = sender.send(scan(&roots, &theirs.staging.scanned, &theirs.orders.end));
        };
        self.scanning = Some(receiver);
        if let Err(error) = std::thread::Builder::new().name("forebay-scan".into()).spawn(look) {
            *lock(&self.shared.staging.problem) = Some(error.to_string());
            self.shared.staging.is_done.store(true, Ordering::Release);
        }
    }

    /// Stages those of the files that have no copy.
    fn take_found(&mut self, found: Vec<ScannedFile>) {
        let staging = &self.shared.staging;
        for found in found {
            let bytes = found.file.identity.bytes;
            staging.files.fetch_add(1, Ordering::Relaxed);
            staging.bytes.fetch_add(bytes, Ordering::Relaxed);
            let entry = self.entries.get(&key_of(&found.file));
            if entry.is_some_and(|entry| entry.file.identity == found.file.identity && entry.copy.is_some()) {
                count_staged(staging, bytes);
            } else {
                self.staged.push_back(found);
            }
        }
    }
}

pub(super) fn count_staged(staging: &Staging, bytes: u64) {
    staging.copied_files.fetch_add(1, Ordering::Relaxed);
    staging.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
}
