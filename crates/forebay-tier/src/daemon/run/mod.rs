//! Runs: programs that read copies of whole files without being changed.
//!
//! A run has a file table, which its programs map, and a worker thread. The worker takes the wishes
//! of programs, copies files to the levels, and publishes them in the table. Runs with equal tiers
//! and options are one run.

mod blocks;
mod copiers;
mod copying;
mod file_facts;
mod mounts;
mod resident;
mod scan;
mod shared;
mod table_file;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;

use forebay_host::runtime_directory;
use serde_json::Value;

use self::shared::{RunLevel, RunShared, lock};
use self::worker::Worker;
use crate::daemon::cache::Cache;
use crate::daemon::run_options::RunOptions;
use crate::error::TierError;

use self::shared::Registry;

/// A run that clients use.
struct Run {
    shared: Arc<RunShared>,
    levels: Vec<u8>,
    users: u32,
}

/// All runs.
#[derive(Default)]
pub(super) struct Runs {
    by_number: BTreeMap<u32, Run>,
    next: u32,
    registry: Arc<Registry>,
    /// Levels of runs that end.
    ending: Vec<(Vec<u8>, Arc<AtomicBool>)>,
}

impl Runs {
    /// Whether clients use any.
    pub(super) fn is_used(&self) -> bool {
        !self.by_number.is_empty()
    }

    /// Levels whose numbers must not be given away.
    pub(super) fn levels(&mut self) -> BTreeSet<u8> {
        self.ending.retain(|(_, has_ended)| !has_ended.load(Ordering::Acquire));
        let used = self.by_number.values().flat_map(|run| &run.levels);
        used.chain(self.ending.iter().flat_map(|(levels, _)| levels)).copied().collect()
    }

    /// Joins the run with these levels and options, or begins it; its number, and the path of its
    /// table.
    pub(super) fn open(
        &mut self,
        cache: &Arc<Mutex<Cache>>,
        levels: &[u8],
        options: RunOptions,
    ) -> Result<(u32, PathBuf), TierError> {
        let same = |run: &&mut Run| run.levels == levels && run.shared.options == options;
        if let Some(run) = self.by_number.values_mut().find(same) {
            run.users += 1;
            return Ok((run.shared.number, run.shared.table_path.clone()));
        }
        let number = self.next;
        let run_levels = {
            let mut cache = lock(cache);
            for level in levels {
                cache.keep_quota(*level);
            }
            let level = |number: &u8| RunLevel {
                number: *number,
                directory: cache.level_parts(*number).path.clone(),
                served: cache.served_path(*number).to_owned(),
            };
            levels.iter().map(level).collect::<Vec<_>>()
        };
        let table_path = table_path(&run_levels, &options)?;
        let shared = Arc::new(RunShared {
            number,
            options,
            levels: run_levels,
            table_path: table_path.clone(),
            tables: Mutex::default(),
            counts: shared::Counts::default(),
            staging: shared::Staging::default(),
            not_copied: Mutex::default(),
            asked: Mutex::default(),
            differences: Mutex::default(),
            orders: shared::Orders::default(),
            is_finished: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            is_compared: AtomicBool::new(false),
        });
        self.registry.join(number);
        let worker = Worker::new(Arc::clone(&shared), Arc::clone(cache), Arc::clone(&self.registry));
        let worker = worker.inspect_err(|_| self.registry.leave(number))?;
        let started = Builder::new().name("forebay-run".into()).spawn(move || worker.run());
        started.map_err(TierError::io("", "start the thread of a run"))?;
        self.next += 1;
        self.by_number.insert(number, Run { shared, levels: levels.to_vec(), users: 1 });
        Ok((number, table_path))
    }

    /// A client does not use a run any more.
    pub(super) fn leave(&mut self, number: u32) {
        let Some(run) = self.by_number.get_mut(&number) else { return };
        run.users -= 1;
        if run.users == 0 {
            self.end(number);
        }
    }

    fn end(&mut self, number: u32) {
        let Some(run) = self.by_number.remove(&number) else { return };
        let _ = std::fs::remove_file(&run.shared.table_path);
        self.registry.leave(number);
        run.shared.orders.end.store(true, Ordering::Release);
        let has_ended = Arc::clone(&run.shared.orders.has_ended);
        self.ending.push((run.levels, has_ended));
    }

    /// Ends all.
    pub(super) fn end_all(&mut self) {
        let numbers: Vec<u32> = self.by_number.keys().copied().collect();
        for number in numbers {
            self.end(number);
        }
        while self.ending.iter().any(|(_, has_ended)| !has_ended.load(Ordering::Acquire)) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Begins to copy all sources.
    pub(super) fn stage(&self, number: u32) {
        if let Some(run) = self.by_number.get(&number) {
            run.shared.orders.stage.store(true, Ordering::Release);
        }
    }

    /// Ends copies under way, and makes no more.
    pub(super) fn finish(&self, number: u32) {
        if let Some(run) = self.by_number.get(&number)
            // Others may go on.
            && run.users == 1
        {
            run.shared.orders.finish.store(true, Ordering::Release);
        }
    }

    /// How far a run is.
    pub(super) fn progress(&self, number: u32) -> Value {
        let mut progress = self.by_number.get(&number).map_or(Value::Null, |run| run.shared.progress());
        if self.by_number.get(&number).is_some_and(|run| run.users > 1) {
            progress["is_finished"] = true.into();
        }
        progress
    }

    /// What a run has done.
    pub(super) fn summary(&self, number: u32, cache: &Cache) -> Value {
        self.by_number.get(&number).map_or(Value::Null, |run| run.shared.summary(cache))
    }

    /// What all runs have done.
    pub(super) fn summaries(&self, cache: &Cache) -> Vec<Value> {
        self.by_number.values().map(|run| run.shared.summary(cache)).collect()
    }
}

/// The same for the same tiers and options, so that another daemon finds the table of a run whose
/// daemon died.
fn table_path(levels: &[RunLevel], options: &RunOptions) -> Result<PathBuf, TierError> {
    let mut hash = DefaultHasher::new();
    for level in levels {
        level.directory.hash(&mut hash);
    }
    options.hash(&mut hash);
    Ok(runtime_directory()?.join(Path::new(&format!("run-{:016x}.table", hash.finish()))))
}
