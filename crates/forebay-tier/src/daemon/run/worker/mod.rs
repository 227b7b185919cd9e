//! The worker of a run: takes wishes, makes copies, and publishes them in the table.
//!
//! - `wishes`: what programs wish for. `stage`: all files of the sources.
//! - `copies`: copies under way.
//! - `served`: what the table says.
//! - `comparing`: comparisons of copies with their sources.
//! - `ending`: the end of the run.
//!
//! The worker looks every few milliseconds, and when a thread is done: at the wishes, at the copies
//! under way, and at what its threads have done. A copy is begun if the source is a plain file that
//! was not changed for two seconds. Its blocks are copied as programs read them (`resident.rs`);
//! threads read the rest if that is little. When all is written, and the source is as it was, the
//! copy is logged and published.

mod comparing;
mod copies;
mod ending;
mod served;
mod stage;
mod wishes;

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_plan::{BLOCK_BYTES, LOOK_IDLE_EVERY, look_again_after};
use forebay_table::{
    CopyFile, Flags, MAX_CAPACITY, MAX_PREFIX_PATH_BYTES, MAX_PREFIXES, RecordId, Settings, SourceFile,
    SourcePrefix, TableWriter,
};

use crate::daemon::cache::Cache;
use crate::daemon::file_store::RootId;
use crate::daemon::files::{CopyId, KnownCopy};
use crate::daemon::run::copiers::{Copiers, FileKey};
use crate::daemon::run::copying::Copying;
use crate::daemon::run::mounts::mounts_below;
use crate::daemon::run::scan::{Scan, ScannedFile};
use crate::daemon::run::shared::{Registry, RunShared, lock};
use crate::daemon::run::table_file::TableFile;
use crate::error::TierError;
use crate::table::LevelState;
use crate::thread_priority::lower_own_priority;

/// Most files that wait until they are copied.
const MOST_WAITING: usize = 1 << 16;

/// Interval between two looks at levels and at sources that were opened for writing.
const LOOK_AROUND_EVERY: Duration = Duration::from_millis(200);

/// What is counted of files to which paths of the sources lead.
const OUTSIDE: &str = "outside_of_the_sources";

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
    /// What is mounted below it.
    mounts: Vec<(PathBuf, u64)>,
}

impl Root {
    /// The device of a file below it, as far as the mounts tell.
    fn device_of(&self, path: &Path) -> u64 {
        if self.mounts.is_empty() {
            return self.device;
        }
        let whole = below(&self.path, path);
        let around = self.mounts.iter().filter(|(point, _)| whole.starts_with(point));
        around.max_by_key(|(point, _)| point.as_os_str().len()).map_or(self.device, |(_, device)| *device)
    }
}

/// What the table says of a file.
#[derive(Clone)]
struct TableEntry {
    record: RecordId,
    root: usize,
    path: PathBuf,
    file: SourceFile,
    copy: Option<(CopyId, CopyFile)>,
    /// The copy was compared with its source.
    is_compared: bool,
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
    entries: HashMap<FileKey, TableEntry>,
    /// Of the hashes of roots and paths.
    by_path: HashMap<u64, FileKey>,
    /// Copies, those first whose sources were looked for longest ago.
    copied: VecDeque<FileKey>,
    looked_for_sources: Instant,
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
    scanning: Option<Receiver<Scan>>,
    is_scanned: bool,
    staged: VecDeque<ScannedFile>,
    /// Copies that are compared before they are served.
    to_compare: VecDeque<FileKey>,
    comparing: usize,
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
            by_path: HashMap::new(),
            copied: VecDeque::new(),
            looked_for_sources: Instant::now(),
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
            to_compare: VecDeque::new(),
            comparing: 0,
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
            let mounts = mounts_below(&path);
            worker.roots.push(Root { id, path, written, device, mounts });
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
                    self.shared.is_compared.store(true, Ordering::Release);
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

    /// Makes a table with room for more, puts it in its place, and works with it.
    fn serve_table(&mut self) -> Result<Outcome, TierError> {
        let tables = lock(&self.shared.tables).len();
        let capacity = capacity(tables, self.entries.len(), self.staged.len());
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
            self.shared.levels.iter().map(|level| level.served.as_os_str().as_bytes()).collect();
        let prefixes: Vec<SourcePrefix<'_>> = self
            .roots
            .iter()
            .map(|root| (&root.path, root.device))
            .chain(
                self.roots.iter().flat_map(|root| root.mounts.iter().map(|(path, device)| (path, *device))),
            )
            .map(|(path, device)| SourcePrefix { device, path: path.as_os_str().as_bytes() })
            .enumerate()
            // Files of further mounts are found by absolute paths alone.
            .take_while(|(number, prefix)| {
                *number < self.roots.len()
                    || *number < MAX_PREFIXES && prefix.path.len() <= MAX_PREFIX_PATH_BYTES
            })
            .map(|(_, prefix)| prefix)
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
            acts |= self.follow();
            let is_done = self.take_done(table);
            acts |= is_done;
            acts |= self.finish_flushes(table);
            acts |= self.compare_next(table);
            self.look_around(file, table);
            if self.is_finishing() {
                acts |= self.finish();
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
            self.copiers.wait(look_again_after(acted.elapsed(), self.copying.len()));
        }
        Outcome::Ended
    }

    /// The source that a path lies in, and the path below it.
    fn place(&self, path: &Path) -> Option<(usize, PathBuf)> {
        let below =
            |(number, root): (usize, &Root)| Some((number, path.strip_prefix(&root.path).ok()?.to_owned()));
        self.roots.iter().enumerate().find_map(below)
    }

    /// Takes levels that failed out of service, and sources that were opened for writing.
    fn look_around(&mut self, file: &TableFile, table: &mut TableWriter<'_>) {
        if self.looked_around.elapsed() < LOOK_AROUND_EVERY {
            return;
        }
        self.looked_around = Instant::now();
        for (place, level) in self.levels.iter().enumerate() {
            if lock(&self.cache).level_state(*level) == LevelState::Out {
                table.set_level_state(place as u8, forebay_table::ServingState::Out);
            }
        }
        let stale: Vec<FileKey> =
            file.shared().stale().filter_map(|record| self.keys.get(&record).copied()).collect();
        for key in stale {
            self.forget(table, key);
        }
    }
}

/// Records of the table that follows so many others: a quarter more than there are entries, and
/// those of staged files. Each table is at least twice as large as the one before, since programs
/// map all of them, one after the other.
fn capacity(tables: usize, entries: usize, staged: usize) -> u32 {
    let doubled = u32::try_from(tables).ok().and_then(|tables| FIRST_RECORDS.checked_shl(tables));
    let least = doubled.filter(|least| *least >= FIRST_RECORDS).unwrap_or(MAX_CAPACITY as usize);
    (entries + entries / 4 + staged).max(least).min(MAX_CAPACITY as usize) as u32
}

fn key_of(file: &SourceFile) -> FileKey {
    (file.identity.device, file.identity.inode)
}

/// A path below a source, which may be the file itself.
fn below(root: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { root.to_owned() } else { root.join(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_double_so_that_a_process_maps_few_of_them() {
        let sizes: Vec<u32> = (0..70).map(|tables| capacity(tables, 0, 0)).collect();
        assert_eq!(sizes[..3], [4096, 8192, 16384]);
        assert!(sizes[..17].windows(2).all(|pair| pair[1] == 2 * pair[0]));
        assert!(sizes[16..].iter().all(|size| *size == MAX_CAPACITY));
        assert_eq!(capacity(0, 10_000, 2_000), 14_500);
        assert_eq!(capacity(3, 10_000, 0), 32768);
    }
}
