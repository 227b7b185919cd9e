//! Makes copies: begins them, follows what programs read, and publishes what is written.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_plan::{CopyStep, NoCopy, copy_step, is_flush_due, is_patient, may_begin_copy};
use forebay_table::{TableCounter, TableWriter};

use crate::daemon::files::FileFacts;
use crate::daemon::run::blocks::CopyProblem;
use crate::daemon::run::copiers::{Done, FileKey, Job};
use crate::daemon::run::copying::Copying;
use crate::daemon::run::file_facts::{has_attributes, is_database, open_wanted, source_file, state};
use crate::daemon::run::resident::Residency;
use crate::daemon::run::shared::{News, lock};
use crate::daemon::run::worker::stage::count_staged;
use crate::daemon::run::worker::{MOST_WAITING, OUTSIDE, Wanted, Worker, below, key_of};
use crate::source::identity::SETTLED_NS;
use crate::source::open_writers::is_open_for_writing;
use crate::source::watch::now_ns;

/// What is counted of copies that are given up.
const TARGET_FAILED: &str = "the_tier_failed";
const SOURCE_FAILED: &str = "the_source_failed";
const OPEN_FOR_WRITING: &str = "open_for_writing";

impl Worker {
    pub(super) fn begin_copies(&mut self, table: &mut TableWriter<'_>) -> bool {
        let now = now_ns();
        if !self.late.is_empty() {
            let (due, late) =
                std::mem::take(&mut self.late).into_iter().partition(|wanted: &Wanted| wanted.at_ns <= now);
            self.late = late;
            self.waiting.extend::<Vec<_>>(due);
        }
        let mut acts = false;
        while may_begin_copy(self.copying.len())
            && let Some(wanted) = self.waiting.pop_front()
        {
            self.wanted.remove(&wanted.key);
            self.begin_copy(table, wanted);
            acts = true;
        }
        acts
    }

    /// Begins to copy a file, unless that cannot be or has no use. All that a program wrote into a
    /// wish is checked.
    fn begin_copy(&mut self, table: &mut TableWriter<'_>, wanted: Wanted) -> Option<()> {
        let Ok((source, real)) = open_wanted(&wanted.path) else {
            self.shared.note_not_copied(wanted.key, "cannot_be_opened");
            return None;
        };
        let file = source_file(source.as_fd()).ok()?;
        let key = key_of(&file);
        if key != wanted.key || file.links == 0 {
            return None;
        }
        let Some((root, path)) = self.place(&real) else {
            self.refuse(table, &file, 0, real, OUTSIDE);
            return None;
        };
        if self.is_known_by_path(table, root, &path, &file) {
            if wanted.is_staged {
                count_staged(&self.shared.staging, file.identity.bytes);
            }
            return None;
        }
        if let Some(entry) = self.entries.get(&key) {
            if entry.file.identity == file.identity {
                return None;
            }
            self.forget(table, key);
        }
        let bytes = file.identity.bytes;
        if bytes == 0 {
            self.refuse(table, &file, root, path, "empty");
            return None;
        }
        if has_attributes(&source) {
            self.refuse(table, &file, root, path, "attributes");
            return None;
        }
        if is_database(source.as_fd(), &real) {
            self.refuse(table, &file, root, path, "a_database");
            return None;
        }
        let now = now_ns();
        if !state(&file).is_settled(now) {
            let settled = file.identity.modified_ns.max(file.identity.changed_ns).saturating_add(SETTLED_NS);
            // A time in the future may never come.
            if settled - now > 2 * SETTLED_NS {
                self.shared.note_not_copied(key, "changed_in_the_future");
                return None;
            }
            self.postpone(Wanted { at_ns: settled, ..wanted });
            return None;
        }
        if is_open_for_writing(source.as_fd()) == Some(true) {
            self.shared.note_not_copied(key, OPEN_FOR_WRITING);
            return None;
        }
        if !self.registry.begin(key) {
            self.postpone(Wanted { at_ns: now + 100_000_000, ..wanted });
            return None;
        }
        let begin = |worker: &Self| lock(&worker.cache).begin_copy(&worker.levels, bytes);
        let mut placed = begin(self);
        if matches!(placed, Err(NoCopy::Full)) && self.make_room(table) {
            placed = begin(self);
        }
        let copy = match placed {
            Ok(copy) => copy,
            Err(why) => {
                self.registry.end(key);
                match why {
                    NoCopy::Full => self.refuse(table, &file, root, path, "no_room"),
                    NoCopy::TooLarge => self.refuse(table, &file, root, path, "too_large"),
                    NoCopy::LevelsOut => self.shared.note_not_copied(key, "tiers_failed"),
                }
                return None;
            }
        };
        let fetch = self.shared.options.fetch;
        let reads_whole = fetch.reads_whole(wanted.is_staged);
        if !wanted.is_staged {
            self.shared.note_asked(key, bytes, &real);
        }
        let residency = Residency::of(source.as_fd(), &real, fetch);
        match Copying::new((root, path), Arc::new(source), file, copy, wanted.is_staged, residency) {
            Ok(copying) => {
                self.copying.insert(key, copying);
                self.order.push_back(key);
                if reads_whole {
                    self.hand(key);
                }
            }
            Err((error, copy)) => {
                tracing::info!(%error, "a copy cannot be begun");
                lock(&self.cache).abandon_copy(copy);
                self.registry.end(key);
            }
        }
        Some(())
    }

    fn postpone(&mut self, wanted: Wanted) {
        if self.is_finishing() || self.late.len() >= MOST_WAITING {
            self.shared.note_not_copied(wanted.key, "changed_just_before");
        } else if self.wanted.insert(wanted.key) {
            self.late.push(wanted);
        }
    }

    /// Lets threads read the rest of a file.
    fn hand(&mut self, key: FileKey) {
        let Some(copying) = self.copying.get_mut(&key) else { return };
        copying.is_handed = true;
        self.shared.counts.fetched_bytes.fetch_add(copying.blocks.missing_bytes(), Ordering::Relaxed);
        let (source, target) = (Arc::clone(&copying.source), Arc::clone(&copying.target));
        let (bytes, blocks) = (copying.blocks.bytes(), copying.blocks.missing().collect());
        self.copiers.give(Job::Copy { key, source, target, bytes, blocks });
    }

    /// Copies what programs have read since the last look.
    pub(super) fn follow(&mut self) -> bool {
        let mut acts = false;
        let keys: Vec<FileKey> = self.order.iter().copied().collect();
        for key in keys {
            let Some(copying) = self.copying.get_mut(&key).filter(|copying| !copying.is_handed) else {
                continue;
            };
            match copying.follow(&mut self.memory) {
                Ok(bytes) => {
                    acts |= bytes > 0;
                    self.shared.counts.followed_bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                Err(problem) => {
                    self.abandon(key, problem.reason());
                    continue;
                }
            }
            let is_finishing = self.shared.orders.finish.load(Ordering::Acquire);
            let is_known = copying.residency != Residency::Unknown;
            let is_patient = is_patient(copying.progressed.elapsed(), is_known, is_finishing);
            let missing_bytes = copying.blocks.missing_bytes();
            match copy_step(missing_bytes, is_patient, |bytes| self.may_fetch(bytes)) {
                CopyStep::Finish => self.written(key),
                CopyStep::Wait => {}
                CopyStep::ReadRest => self.hand(key),
                CopyStep::GiveUp => self.abandon(key, "not_in_memory"),
            }
        }
        acts
    }

    /// Whether so many bytes may be read that no program has read, or that have left the memory.
    fn may_fetch(&self, bytes: u64) -> bool {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let served: u64 = (0..self.levels.len())
            .map(|level| self.shared.total(TableCounter::OpenedBytes(level as u8)))
            .sum();
        let asked = get(&self.shared.counts.requested_bytes) + served;
        self.shared.options.fetch.may_read(bytes, get(&self.shared.counts.fetched_bytes), asked)
    }

    /// Gives a copy up.
    fn abandon(&mut self, key: FileKey, why: &'static str) {
        let Some(copying) = self.copying.remove(&key) else { return };
        self.order.retain(|other| *other != key);
        self.registry.end(key);
        self.shared.note_not_copied(key, why);
        let level = copying.copy.id.level;
        let mut cache = lock(&self.cache);
        cache.abandon_copy(copying.copy);
        if why == TARGET_FAILED {
            cache.level_failed(level);
        }
    }

    /// All of a file is written.
    fn written(&mut self, key: FileKey) {
        let Some(copying) = self.copying.get(&key) else { return };
        if copying.start_flush().is_err() {
            return self.abandon(key, TARGET_FAILED);
        }
        let mut copying = self.copying.remove(&key).expect("it was just found");
        self.order.retain(|other| *other != key);
        copying.progressed = Instant::now();
        self.flushing.push_back((key, copying));
    }

    pub(super) fn take_done(&mut self, table: &mut TableWriter<'_>) -> bool {
        let mut acts = false;
        while let Some(done) = self.copiers.take() {
            acts = true;
            match done {
                Done::Copied { key, copied: Ok(blocks) } => {
                    let Some(copying) = self.copying.get_mut(&key) else { continue };
                    for (block, sum) in blocks {
                        copying.written(block, sum);
                    }
                    if copying.blocks.is_whole() {
                        self.written(key);
                    } else {
                        self.abandon(key, SOURCE_FAILED);
                    }
                }
                Done::Copied { key, copied: Err(problem) } => self.abandon(key, problem.reason()),
                Done::Verified { id, right } => self.verified(table, id, right),
                Done::Compared { key, compared } => self.compared(table, key, &compared),
            }
        }
        acts
    }

    /// Publishes copies that have reached their device.
    pub(super) fn finish_flushes(&mut self, table: &mut TableWriter<'_>) -> bool {
        let mut acts = false;
        while self
            .flushing
            .front()
            .is_some_and(|(_, copying)| is_flush_due(self.flushing.len(), copying.progressed.elapsed()))
        {
            let (key, copying) = self.flushing.pop_front().expect("it was just seen");
            self.finish_copy(table, key, copying);
            acts = true;
        }
        acts
    }

    fn finish_copy(&mut self, table: &mut TableWriter<'_>, key: FileKey, copying: Copying) {
        let is_flushed = copying.finish_flush().is_ok();
        let is_written = is_open_for_writing(copying.source.as_fd()) == Some(true);
        let is_same = !is_written
            && source_file(copying.source.as_fd()).is_ok_and(|now| now.identity == copying.file.identity);
        let sum = copying.sum();
        let Copying { root, path, file, copy, is_staged, .. } = copying;
        let id = copy.id;
        let facts = FileFacts { root: self.roots[root].id, path: path.clone(), source: file };
        let finished = {
            let mut cache = lock(&self.cache);
            if is_flushed && is_same {
                cache.finish_copy(copy, &facts, sum)
            } else {
                cache.abandon_copy(copy);
                if !is_flushed {
                    cache.level_failed(id.level);
                }
                None
            }
        };
        self.registry.end(key);
        let Some(copy) = finished else {
            let why = match (is_same, is_written) {
                (true, _) => TARGET_FAILED,
                (false, true) => OPEN_FOR_WRITING,
                (false, false) => "changed_meanwhile",
            };
            self.shared.note_not_copied(key, why);
            return;
        };
        if !self.shared.options.keep {
            self.passing.push(id);
        }
        let counts = &self.shared.counts;
        counts.copied_files.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.not_copied).remove(&key);
        counts.copied_bytes.fetch_add(file.identity.bytes, Ordering::Relaxed);
        if is_staged {
            count_staged(&self.shared.staging, file.identity.bytes);
        }
        let whole_path = below(&self.roots[root].path, &path);
        self.forget(table, key);
        self.insert(key, root, path, file, Some((id, copy)));
        self.publish(table, key);
        self.registry.tell(self.shared.number, &News { path: whole_path, facts, id, copy });
    }
}

impl CopyProblem {
    fn reason(&self) -> &'static str {
        match self {
            Self::Source => SOURCE_FAILED,
            Self::Target => TARGET_FAILED,
        }
    }
}
