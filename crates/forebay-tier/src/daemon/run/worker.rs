//! The worker of a run: takes wishes, makes copies, and publishes them in the table.
//!
//! It looks every few milliseconds, and when a thread is done: at the wishes, at the copies under
//! way, and at what its threads have done. A copy is begun if the source is a plain file that was
//! not changed for two seconds. Its blocks are copied as programs read them (`resident.rs`);
//! threads read the rest if that is little. When all is written, and the source is as it was, the
//! copy is logged and published.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_table::{
    CopyFile, Counter, Flags, Identity, Next, RecordId, RecordState, Settings, SourceFile, SourcePrefix,
    TableError, TableWriter,
};

use super::blocks::{BLOCK_BYTES, CopyProblem};
use super::copiers::{COPIERS, Copiers, Done, FileKey, Job};
use super::copying::Copying;
use super::file_facts::{has_attributes, is_regular, open_source, source_file, state};
use super::resident::Residency;
use super::scan::{Found, scan};
use super::shared::{News, Registry, RunShared, Staging, lock};
use super::table_file::TableFile;
use crate::daemon::cache::Cache;
use crate::daemon::file_store::RootId;
use crate::daemon::files::{CopyId, FileFacts, KnownCopy, NoCopy};
use crate::error::TierError;
use crate::run_options::Fetch;
use crate::source::SETTLED_NS;
use crate::source_watch::now_ns;
use crate::table::LevelState;
use crate::thread_priority::lower_own_priority;

/// Interval between two looks while something happens, and while nothing does.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOK_IDLE_EVERY: Duration = Duration::from_millis(20);

/// Interval between two looks at levels and at sources that were opened for writing.
const LOOK_AROUND_EVERY: Duration = Duration::from_millis(200);

/// How long nothing of a file comes into the page cache before its programs have read what they
/// want.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long an unfinished wish is waited for: its writer has died, or dropped it.
const WISH_WITHIN: Duration = Duration::from_millis(100);

/// Part of what programs asked for that the daemon may read beside it.
const FETCHED_SHARE: u64 = 20;

/// Copies under way, and files that wait for that.
const MOST_COPIES: usize = 64;
const MOST_WAITING: usize = 1 << 16;

/// Copies that reach their device while the next are made.
const FLUSHING: usize = 16;

/// Records of the first table.
const FIRST_RECORDS: usize = 4096;

/// A source of the run.
struct Root {
    id: RootId,
    /// Canonical.
    path: PathBuf,
    /// As the user wrote it; none for a link to a file, which is another file than its target.
    written: Option<PathBuf>,
    device: u64,
}

/// What the table says of a file.
#[derive(Clone)]
struct Entry {
    record: RecordId,
    root: usize,
    path: PathBuf,
    file: SourceFile,
    copy: Option<(CopyId, CopyFile)>,
}

/// A file that a program opened, or that is staged.
struct Wanted {
    key: FileKey,
    path: PathBuf,
    is_staged: bool,
    /// Not before.
    at_ns: i64,
}

/// What ends the work with a table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Full,
    Ended,
}

/// See the module header.
pub(super) struct Worker {
    shared: Arc<RunShared>,
    cache: Arc<Mutex<Cache>>,
    registry: Arc<Registry>,
    roots: Vec<Root>,
    levels: Vec<u8>,
    entries: HashMap<FileKey, Entry>,
    waiting: VecDeque<Wanted>,
    late: Vec<Wanted>,
    /// Files in `waiting` or `late`.
    wanted: HashSet<FileKey>,
    copying: HashMap<FileKey, Copying>,
    /// In the order in which they were begun.
    order: VecDeque<FileKey>,
    flushing: VecDeque<(FileKey, Copying)>,
    /// Keys of the records of the present table.
    keys: HashMap<RecordId, FileKey>,
    unverified: HashMap<CopyId, (usize, KnownCopy)>,
    /// Files that staging has found, while or after it looks for them.
    scanning: Option<Receiver<(Vec<Found>, Option<String>)>>,
    is_scanned: bool,
    staged: VecDeque<Found>,
    /// Copies that are to be compared at the end.
    to_compare: Option<Vec<FileKey>>,
    copiers: Copiers,
    /// Copies that are deleted at the end: those of this run, where they do not stay, and those
    /// that differ from their sources.
    passing: Vec<CopyId>,
    memory: Vec<u8>,
    ticket: u64,
    unfinished_since: Option<Instant>,
    looked_around: Instant,
    /// The table has no room for all entries.
    is_full: bool,
}

impl Worker {
    pub(super) fn new(
        shared: Arc<RunShared>,
        cache: Arc<Mutex<Cache>>,
        registry: Arc<Registry>,
    ) -> Result<Self, TierError> {
        let levels: Vec<u8> = shared.levels.iter().map(|level| level.number).collect();
        let mut found = Vec::new();
        for written in &shared.options.sources {
            let failed = || TierError::io(written, "open a source");
            let path = written.canonicalize().map_err(failed())?;
            let device = {
                use std::os::unix::fs::MetadataExt;
                path.metadata().map_err(failed())?.dev()
            };
            let is_link = written.symlink_metadata().map_err(failed())?.is_symlink();
            let written = (path.is_dir() || !is_link).then(|| written.clone());
            found.push((path, written, device));
        }
        let copiers =
            Copiers::start(&shared.orders.end).map_err(TierError::io("", "start the threads of a run"))?;
        let mut worker = Self {
            roots: Vec::new(),
            levels,
            entries: HashMap::new(),
            waiting: VecDeque::new(),
            late: Vec::new(),
            wanted: HashSet::new(),
            copying: HashMap::new(),
            order: VecDeque::new(),
            flushing: VecDeque::new(),
            keys: HashMap::new(),
            unverified: HashMap::new(),
            scanning: None,
            is_scanned: false,
            staged: VecDeque::new(),
            to_compare: None,
            copiers,
            passing: Vec::new(),
            memory: vec![0; BLOCK_BYTES as usize],
            ticket: 0,
            unfinished_since: None,
            looked_around: Instant::now(),
            is_full: false,
            shared,
            cache,
            registry,
        };
        let mut cache = lock(&worker.cache);
        for (path, written, device) in found {
            let id = cache.use_root(&path, &worker.levels);
            worker.roots.push(Root { id, path, written, device });
        }
        drop(cache);
        Ok(worker)
    }

    /// Works until the run ends.
    pub(super) fn run(mut self) {
        lower_own_priority();
        self.find_copies();
        loop {
            match self.serve_table() {
                Ok(Outcome::Full) => {}
                Ok(Outcome::Ended) => break,
                Err(error) => {
                    tracing::error!(%error, "a run cannot go on");
                    *lock(&self.shared.staging.problem) = Some(error.to_string());
                    self.shared.staging.is_done.store(true, Ordering::Release);
                    self.shared.is_finished.store(true, Ordering::Release);
                    self.shared.is_ready.store(true, Ordering::Release);
                    while !self.is_ended() {
                        std::thread::sleep(LOOK_IDLE_EVERY);
                    }
                    break;
                }
            }
        }
        self.leave();
    }

    fn is_ended(&self) -> bool {
        self.shared.orders.end.load(Ordering::Acquire)
    }

    fn is_finishing(&self) -> bool {
        self.shared.orders.finish.load(Ordering::Acquire)
    }

    /// Gives up what is not done.
    fn leave(&mut self) {
        let left: Vec<Copying> = self
            .copying
            .drain()
            .map(|(key, copying)| {
                self.registry.end(key);
                copying
            })
            .chain(self.flushing.drain(..).map(|(key, copying)| {
                self.registry.end(key);
                copying
            }))
            .collect();
        let mut cache = lock(&self.cache);
        for copying in left {
            cache.abandon_copy(copying.copy);
        }
        self.passing.drain(..).for_each(|id| cache.delete_copy(id));
        self.roots.iter().for_each(|root| cache.leave_root(root.id, &self.levels));
        drop(cache);
        self.shared.orders.has_ended.store(true, Ordering::Release);
    }

    /// Finds the copies that the levels have, so that programs get them from the start on.
    fn find_copies(&mut self) {
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

    fn add_known(&mut self, root: usize, known: &KnownCopy) -> Option<FileKey> {
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

    /// Makes a table with room for a quarter more entries and for what is staged, puts it in its
    /// place, and works with it.
    fn serve_table(&mut self) -> Result<Outcome, TierError> {
        let entries = self.entries.len();
        let capacity = (entries + entries / 4 + self.staged.len()).max(FIRST_RECORDS) as u32;
        let path = &self.shared.table_path;
        let file = Arc::new(TableFile::create(path, capacity)?);
        let mut table = self.writer(&file)?;
        self.keys.clear();
        self.is_full = false;
        let keys: Vec<FileKey> = self.entries.keys().copied().collect();
        for key in keys {
            self.publish(&mut table, key);
        }
        TableFile::install(&self.shared.table_path)?;
        self.ticket = 0;
        lock(&self.shared.tables).push(Arc::clone(&file));
        self.shared.is_ready.store(true, Ordering::Release);
        Ok(self.serve(&file, &mut table))
    }

    fn writer<'a>(&self, file: &'a TableFile) -> Result<TableWriter<'a>, TierError> {
        let levels: Vec<&[u8]> =
            self.shared.levels.iter().map(|level| level.directory.as_os_str().as_bytes()).collect();
        let prefixes: Vec<SourcePrefix<'_>> = self
            .roots
            .iter()
            .map(|root| SourcePrefix { device: root.device, path: root.path.as_os_str().as_bytes() })
            .collect();
        let settings = Settings {
            flags: Flags { frozen: self.shared.options.frozen, check: self.shared.options.check },
            generation: lock(&self.shared.tables).len() as u64 + 1,
            levels: &levels,
            prefixes: &prefixes,
        };
        TableWriter::create(file.words(), file.layout(), &settings).map_err(|error| TierError::Protocol {
            attempt: "make a file table",
            expected: "a table".into(),
            found: error.to_string(),
        })
    }

    /// Serves programs until the table is full, or the run ends.
    fn serve(&mut self, file: &TableFile, table: &mut TableWriter<'_>) -> Outcome {
        let mut acted = Instant::now();
        while !self.is_ended() {
            let mut acts = self.take_wishes(file);
            self.take_news(table);
            acts |= self.stage();
            acts |= self.begin_copies(table);
            acts |= self.follow(table);
            let is_done = self.take_done(table);
            acts |= is_done;
            acts |= self.finish_flushes(table);
            self.look_around(file, table);
            if self.is_finishing() {
                acts |= self.finish(table);
            }
            if self.is_full {
                return Outcome::Full;
            }
            let counts = &self.shared.counts;
            let waiting = self.waiting.len() + self.late.len() + self.staged.len();
            counts.waiting_files.store(waiting as u64, Ordering::Relaxed);
            let copying = self.copying.len() + self.flushing.len();
            counts.copying_files.store(copying as u64, Ordering::Relaxed);
            if acts {
                acted = Instant::now();
            }
            if is_done {
                // The threads may have nothing to do now.
                continue;
            }
            let is_idle = acted.elapsed() > LOOK_IDLE_EVERY && self.copying.is_empty();
            self.copiers.wait(if is_idle { LOOK_IDLE_EVERY } else { LOOK_EVERY });
        }
        Outcome::Ended
    }

    /// Adds an entry to the table: a copy that is served, or a source that is not copied.
    fn publish(&mut self, table: &mut TableWriter<'_>, key: FileKey) {
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
    fn forget(&mut self, table: &mut TableWriter<'_>, key: FileKey) {
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
    fn stop_serving(&mut self, table: &mut TableWriter<'_>, key: FileKey) {
        let Some(entry) = self.entries.remove(&key) else { return };
        if self.keys.remove(&entry.record).is_some() {
            table.advance(entry.record, RecordState::Stale);
        }
        self.passing.extend(entry.copy.map(|(id, _)| id));
    }

    /// Notes that a file is not copied, so that programs do not wish for it again.
    fn refuse(
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

    fn take_wishes(&mut self, file: &TableFile) -> bool {
        let ring = file.shared().wishes();
        let first = self.ticket;
        for _ in 0..file.layout().wishes() {
            match ring.read(self.ticket) {
                Next::Wish(wish) => {
                    let path = PathBuf::from(std::ffi::OsString::from_vec(wish.path().to_vec()));
                    self.want(Wanted { key: (wish.device, wish.inode), path, is_staged: false, at_ns: 0 });
                    self.ticket += 1;
                }
                Next::Lost(ticket) => self.ticket = ticket,
                Next::Empty => break,
                Next::Unfinished => {
                    if self.unfinished_since.get_or_insert_with(Instant::now).elapsed() < WISH_WITHIN {
                        break;
                    }
                    self.ticket += 1;
                }
            }
            self.unfinished_since = None;
        }
        self.ticket != first
    }

    fn want(&mut self, wanted: Wanted) {
        let key = wanted.key;
        let is_known =
            self.copying.contains_key(&key) || self.flushing.iter().any(|(other, _)| *other == key);
        if self.is_finishing() || is_known || !self.wanted.insert(key) {
            return;
        }
        if self.waiting.len() >= MOST_WAITING && !wanted.is_staged {
            self.wanted.remove(&key);
            self.shared.note_not_copied(key, "too_many_wishes");
            return;
        }
        self.waiting.push_back(wanted);
    }

    /// Serves copies that other runs have made.
    fn take_news(&mut self, table: &mut TableWriter<'_>) {
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

    /// The source that a path lies in, and the path below it.
    fn place(&self, path: &Path) -> Option<(usize, PathBuf)> {
        let below =
            |(number, root): (usize, &Root)| Some((number, path.strip_prefix(&root.path).ok()?.to_owned()));
        self.roots.iter().enumerate().find_map(below)
    }

    /// Begins to look for all files, and wants those that it found.
    fn stage(&mut self) -> bool {
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
            let Ok((found, problem)) = scanning.try_recv() else { return true };
            self.is_scanned = true;
            self.scanning = None;
            if let Some(problem) = problem {
                *lock(&staging.problem) = Some(problem);
            }
            self.take_found(found);
        }
        while self.waiting.len() + self.copying.len() < 4 * COPIERS
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
    fn take_found(&mut self, found: Vec<Found>) {
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

    fn begin_copies(&mut self, table: &mut TableWriter<'_>) -> bool {
        let now = now_ns();
        if !self.late.is_empty() {
            let (due, late) =
                std::mem::take(&mut self.late).into_iter().partition(|wanted: &Wanted| wanted.at_ns <= now);
            self.late = late;
            self.waiting.extend::<Vec<_>>(due);
        }
        let mut acts = false;
        while self.copying.len() < MOST_COPIES
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
        let (root, path) = self.place(&wanted.path)?;
        let source = open_source(&wanted.path).ok()?;
        let file = source_file(source.as_fd()).ok()?;
        let key = key_of(&file);
        if key != wanted.key || !is_regular(&file) {
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
        if !self.registry.begin(key) {
            self.postpone(Wanted { at_ns: now + 100_000_000, ..wanted });
            return None;
        }
        let placed = lock(&self.cache).begin_copy(&self.levels, bytes);
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
        let reads_whole = wanted.is_staged || fetch == Fetch::Whole;
        if !wanted.is_staged {
            self.shared.note_asked(key, bytes, &wanted.path);
        }
        let residency = Residency::of(source.as_fd(), &wanted.path, fetch);
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
        self.shared.counts.fetched_bytes.fetch_add(copying.missing_bytes(), Ordering::Relaxed);
        let (source, target) = (Arc::clone(&copying.source), Arc::clone(&copying.target));
        let (bytes, blocks) = (copying.bytes(), copying.missing());
        self.copiers.give(Job::Copy { key, source, target, bytes, blocks });
    }

    /// Copies what programs have read since the last look.
    fn follow(&mut self, table: &mut TableWriter<'_>) -> bool {
        let _ = table;
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
            if copying.is_whole() {
                self.written(key);
                continue;
            }
            let patience = if copying.residency == Residency::Unknown { PATIENCE / 10 } else { PATIENCE };
            if copying.progressed.elapsed() < patience && !self.shared.orders.finish.load(Ordering::Acquire) {
                continue;
            }
            let missing = copying.missing_bytes();
            if self.may_fetch(missing) {
                self.hand(key);
            } else {
                self.abandon(key, "not_in_memory");
            }
        }
        acts
    }

    /// Whether so many bytes may be read that no program has read, or that have left the memory.
    fn may_fetch(&self, bytes: u64) -> bool {
        if self.shared.options.fetch == Fetch::None {
            return false;
        }
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let served: u64 =
            (0..self.levels.len()).map(|level| self.shared.total(Counter::OpenedBytes(level as u8))).sum();
        let asked = get(&self.shared.counts.asked_bytes) + served;
        get(&self.shared.counts.fetched_bytes) + bytes <= asked / FETCHED_SHARE
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

    fn take_done(&mut self, table: &mut TableWriter<'_>) -> bool {
        let mut acts = false;
        while let Some(done) = self.copiers.take() {
            acts = true;
            match done {
                Done::Copied { key, copied: Ok(blocks) } => {
                    let Some(copying) = self.copying.get_mut(&key) else { continue };
                    for (block, sum) in blocks {
                        copying.written(block, sum);
                    }
                    if copying.is_whole() {
                        self.written(key);
                    } else {
                        self.abandon(key, SOURCE_FAILED);
                    }
                }
                Done::Copied { key, copied: Err(problem) } => self.abandon(key, problem.reason()),
                Done::Verified { id, is_right } => {
                    lock(&self.cache).trust_copy(id, is_right);
                    if let Some((root, known)) = self.unverified.remove(&id)
                        && is_right
                        && !self.entries.contains_key(&key_of(&known.facts.source))
                        && let Some(key) = self.add_known(root, &known)
                    {
                        self.publish(table, key);
                    }
                }
                Done::Compared { key, differs_at } => {
                    self.shared.counts.compared_files.fetch_add(1, Ordering::Relaxed);
                    if let (Ok(Some(offset)), Some(entry)) = (differs_at, self.entries.get(&key)) {
                        let path = below(&self.roots[entry.root].path, &entry.path);
                        self.shared.add_difference(path, offset);
                        self.stop_serving(table, key);
                    }
                }
            }
        }
        acts
    }

    /// Publishes copies that have reached their device.
    fn finish_flushes(&mut self, table: &mut TableWriter<'_>) -> bool {
        let mut acts = false;
        while self.flushing.front().is_some_and(|(_, copying)| {
            self.flushing.len() > FLUSHING || copying.progressed.elapsed() >= FLUSH_AFTER
        }) {
            let (key, copying) = self.flushing.pop_front().expect("it was just seen");
            self.finish_copy(table, key, copying);
            acts = true;
        }
        acts
    }

    fn finish_copy(&mut self, table: &mut TableWriter<'_>, key: FileKey, copying: Copying) {
        let is_flushed = copying.finish_flush().is_ok();
        let is_same =
            source_file(copying.source.as_fd()).is_ok_and(|now| now.identity == copying.file.identity);
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
            self.shared.note_not_copied(key, if is_same { TARGET_FAILED } else { "changed_meanwhile" });
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
        self.entries
            .insert(key, Entry { record: RecordId(u32::MAX), root, path, file, copy: Some((id, copy)) });
        self.publish(table, key);
        self.registry.tell(self.shared.number, &News { path: whole_path, facts, id, copy });
    }

    /// Takes levels that failed out of service, and sources that were opened for writing.
    fn look_around(&mut self, file: &TableFile, table: &mut TableWriter<'_>) {
        if self.looked_around.elapsed() < LOOK_AROUND_EVERY {
            return;
        }
        self.looked_around = Instant::now();
        for (place, level) in self.levels.iter().enumerate() {
            if lock(&self.cache).level_state(*level) == LevelState::Out {
                table.set_level_state(place as u8, forebay_table::LevelState::Out);
            }
        }
        let stale: Vec<FileKey> =
            file.shared().stale().filter_map(|record| self.keys.get(&record).copied()).collect();
        for key in stale {
            self.forget(table, key);
        }
    }

    /// Ends copies under way, compares all if that was asked for, and says so.
    fn finish(&mut self, table: &mut TableWriter<'_>) -> bool {
        let _ = table;
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

/// What is counted of copies that are given up.
const TARGET_FAILED: &str = "the_tier_failed";
const SOURCE_FAILED: &str = "the_source_failed";

/// How long a copy may take to reach its device before that is waited for.
const FLUSH_AFTER: Duration = Duration::from_millis(20);

impl CopyProblem {
    fn reason(&self) -> &'static str {
        match self {
            Self::Source => SOURCE_FAILED,
            Self::Target => TARGET_FAILED,
        }
    }
}

fn key_of(file: &SourceFile) -> FileKey {
    (file.identity.device, file.identity.inode)
}

fn count_staged(staging: &Staging, bytes: u64) {
    staging.copied_files.fetch_add(1, Ordering::Relaxed);
    staging.copied_bytes.fetch_add(bytes, Ordering::Relaxed);
}

/// A path below a source, which may be the file itself.
fn below(root: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { root.to_owned() } else { root.join(path) }
}
