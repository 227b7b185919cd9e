//! What the worker of a run and the daemon's loop share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_table::{CopyFile, TableCounter};
use serde_json::{Value, json};

use super::copiers::FileKey;
use super::scan::Scanned;
use super::table_file::TableFile;
use crate::daemon::cache::Cache;
use crate::daemon::files::{CopyId, FileFacts};
use crate::daemon::run_options::RunOptions;

/// Differences that are told of.
const MOST_DIFFERENCES: usize = 1000;

/// Files without a copy that are known by their reason; programs may wish for any number.
const MOST_NOT_COPIED: usize = 1 << 20;

/// A level of a run.
#[derive(Clone, Debug)]
pub(super) struct RunLevel {
    /// The daemon's number.
    pub(super) number: u8,
    /// Its directory.
    pub(super) directory: PathBuf,
    /// The same, as programs see it.
    pub(super) served: PathBuf,
}

/// Numbers of a run that only grow.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) copied_files: AtomicU64,
    pub(super) copied_bytes: AtomicU64,
    pub(super) followed_bytes: AtomicU64,
    pub(super) fetched_bytes: AtomicU64,
    pub(super) requested_bytes: AtomicU64,
    pub(super) waiting_files: AtomicU64,
    pub(super) copying_files: AtomicU64,
    pub(super) compared_files: AtomicU64,
}

/// How far staging is.
#[derive(Default)]
pub(super) struct Staging {
    pub(super) scanned: Scanned,
    pub(super) files: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) copied_files: AtomicU64,
    pub(super) copied_bytes: AtomicU64,
    pub(super) is_done: AtomicBool,
    pub(super) problem: Mutex<Option<String>>,
}

/// What the daemon's loop asks of a worker.
#[derive(Default)]
pub(super) struct Orders {
    pub(super) stage: AtomicBool,
    pub(super) finish: AtomicBool,
    pub(super) end: Arc<AtomicBool>,
    /// The worker has left.
    pub(super) has_ended: Arc<AtomicBool>,
}

/// Files that programs opened and that were to be copied.
#[derive(Default)]
pub(super) struct Asked {
    files: HashSet<FileKey>,
    largest: Option<(u64, PathBuf)>,
}

/// See the module header.
pub(super) struct RunShared {
    pub(super) number: u32,
    pub(super) options: RunOptions,
    pub(super) levels: Vec<RunLevel>,
    pub(super) table_path: PathBuf,
    /// Each table that the run had; programs may still count in the first ones.
    pub(super) tables: Mutex<Vec<Arc<TableFile>>>,
    pub(super) counts: Counts,
    pub(super) staging: Staging,
    /// Why files got no copy when that was last tried.
    pub(super) not_copied: Mutex<HashMap<FileKey, &'static str>>,
    pub(super) asked: Mutex<Asked>,
    pub(super) differences: Mutex<Vec<(PathBuf, u64)>>,
    pub(super) orders: Orders,
    pub(super) is_finished: AtomicBool,
    /// The table is in its place.
    pub(super) is_ready: AtomicBool,
    /// No copy waits to be compared.
    pub(super) is_compared: AtomicBool,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RunShared {
    /// Notes why a file is not copied.
    pub(super) fn note_not_copied(&self, file: FileKey, reason: &'static str) {
        let mut files = lock(&self.not_copied);
        if files.len() < MOST_NOT_COPIED || files.contains_key(&file) {
            files.insert(file, reason);
        }
    }

    /// Notes a file that programs opened, and that is to be copied.
    pub(super) fn note_asked(&self, file: FileKey, bytes: u64, path: &Path) {
        self.counts.requested_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut asked = lock(&self.asked);
        asked.files.insert(file);
        if asked.largest.as_ref().is_none_or(|(largest, _)| *largest < bytes) {
            asked.largest = Some((bytes, path.to_owned()));
        }
    }

    pub(super) fn add_difference(&self, path: PathBuf, offset: u64) {
        let mut differences = lock(&self.differences);
        if differences.len() < MOST_DIFFERENCES {
            differences.push((path, offset));
        }
    }

    /// What all programs have counted.
    pub(super) fn total(&self, counter: TableCounter) -> u64 {
        lock(&self.tables).iter().map(|table| table.shared().total(counter)).sum()
    }

    /// How far staging is, and whether the run is finished.
    pub(super) fn progress(&self) -> Value {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let staging = &self.staging;
        json!({
            "scanned_files": get(&staging.scanned.files),
            "scanned_bytes": get(&staging.scanned.bytes),
            "files": get(&staging.files),
            "bytes": get(&staging.bytes),
            "copied_files": get(&staging.copied_files),
            "copied_bytes": get(&staging.copied_bytes),
            "is_done": staging.is_done.load(Ordering::Acquire),
            "problem": *lock(&staging.problem),
            "is_finished": self.is_finished.load(Ordering::Acquire),
            "is_ready": self.is_ready.load(Ordering::Acquire),
            "is_compared": self.is_compared.load(Ordering::Acquire),
            "compared_files": get(&self.counts.compared_files),
        })
    }

    /// What the run has done, for its user.
    pub(super) fn summary(&self, cache: &Cache) -> Value {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let usage = cache.usage();
        let mut served = 0;
        let levels: Vec<Value> = self
            .levels
            .iter()
            .enumerate()
            .map(|(place, level)| {
                let opens = self.total(TableCounter::Opened(place as u8));
                served += opens;
                let held = &usage[usize::from(level.number)];
                let (copies, copied_bytes) = cache.copies_on(level.number);
                json!({
                    "name": held.name,
                    "path": held.path,
                    "opens": opens,
                    "bytes": self.total(TableCounter::OpenedBytes(place as u8)),
                    "copies": copies,
                    "copied_bytes": copied_bytes,
                    "quota_bytes": held.quota_bytes,
                    "taken_bytes": held.taken_bytes,
                    "state": held.state,
                })
            })
            .collect();
        let from_source = [
            TableCounter::Copying,
            TableCounter::Refused,
            TableCounter::Unknown,
            TableCounter::Changed,
            TableCounter::Stale,
            TableCounter::Direct,
            TableCounter::LevelOut,
            TableCounter::OpenFailed,
            TableCounter::OtherCopy,
            TableCounter::NumberFailed,
            TableCounter::Retired,
        ];
        let opens = served + from_source.iter().map(|counter| self.total(*counter)).sum::<u64>();
        let named: BTreeMap<&str, u64> =
            TableCounter::NAMED.iter().map(|(counter, name)| (*name, self.total(*counter))).collect();
        let differences: Vec<Value> = lock(&self.differences)
            .iter()
            .map(|(path, offset)| json!({"path": path.to_string_lossy(), "offset": offset}))
            .collect();
        let mut not_copied: BTreeMap<&str, u64> = BTreeMap::new();
        for reason in lock(&self.not_copied).values() {
            *not_copied.entry(reason).or_insert(0) += 1;
        }
        let asked = lock(&self.asked);
        let largest = asked
            .largest
            .as_ref()
            .map(|(bytes, path)| json!({"path": path.to_string_lossy(), "bytes": bytes}));
        json!({
            "sources": self.options.sources.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
            "levels": levels,
            "counters": named,
            "opens": opens,
            "opens_served": served,
            "programs": named["programs"],
            "copied_files": get(&self.counts.copied_files),
            "copied_bytes": get(&self.counts.copied_bytes),
            "followed_bytes": get(&self.counts.followed_bytes),
            "fetched_bytes": get(&self.counts.fetched_bytes),
            "requested_bytes": get(&self.counts.requested_bytes),
            "requested_files": asked.files.len(),
            "largest_requested": largest,
            "not_copied": not_copied,
            "waiting_files": get(&self.counts.waiting_files),
            "copying_files": get(&self.counts.copying_files),
            "compared_files": get(&self.counts.compared_files),
            "differences": differences,
        })
    }
}

/// What runs tell each other: which files are being copied, and which copies there are now.
#[derive(Default)]
pub(super) struct Registry {
    copying: Mutex<HashSet<FileKey>>,
    news: Mutex<HashMap<u32, Vec<News>>>,
}

/// A copy that another run has made, of the file with this path.
#[derive(Clone)]
pub(super) struct News {
    pub(super) path: PathBuf,
    pub(super) facts: FileFacts,
    pub(super) id: CopyId,
    pub(super) copy: CopyFile,
}

impl Registry {
    pub(super) fn join(&self, run: u32) {
        lock(&self.news).insert(run, Vec::new());
    }

    pub(super) fn leave(&self, run: u32) {
        lock(&self.news).remove(&run);
    }

    /// Whether nobody else copies the file: then the caller does.
    pub(super) fn begin(&self, file: FileKey) -> bool {
        lock(&self.copying).insert(file)
    }

    pub(super) fn end(&self, file: FileKey) {
        lock(&self.copying).remove(&file);
    }

    /// Tells all runs but this one.
    pub(super) fn tell(&self, run: u32, news: &News) {
        for (_, others) in lock(&self.news).iter_mut().filter(|(other, _)| **other != run) {
            others.push(news.clone());
        }
    }

    pub(super) fn take(&self, run: u32) -> Vec<News> {
        lock(&self.news).get_mut(&run).map(std::mem::take).unwrap_or_default()
    }
}
