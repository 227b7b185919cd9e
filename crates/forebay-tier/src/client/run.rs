//! A process's connection to its run of the tier daemon.
//!
//! A thread notices if the daemon dies: it starts another one, opens the run again, and asks it to
//! stage or finish, if that was asked before. Programs go on meanwhile with the table that they
//! have mapped.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use forebay_host::own_pidfd;
use forebay_plan::options::TierSpec;
use serde_json::Value;

use crate::client::connection::{DaemonAddress, TierConnection, unexpected};
use crate::daemon::protocol::{RunAction, TierReply, TierRequest, VERSION};
use crate::daemon::run_options::RunOptions;
use crate::daemon::socket_path;
use crate::error::TierError;
use crate::level::directory_checks::check_sources;

/// Interval between two looks whether the daemon lives; a daemon is started at most so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval between two questions for something that takes a while.
const ASK_EVERY: Duration = Duration::from_millis(3);

/// Longest wait for the table: a log of millions of copies may have to be read.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A run that this process uses.
pub struct RunClient {
    inner: Arc<Inner>,
    watching: Option<JoinHandle<()>>,
}

struct Inner {
    daemon: DaemonAddress,
    tiers: Vec<TierSpec>,
    options: RunOptions,
    opened: Mutex<Opened>,
    /// Which daemon has finished the run, by `restarts`.
    finished: Mutex<Option<u64>>,
    is_closed: AtomicBool,
}

struct Opened {
    connection: TierConnection,
    run: u32,
    table: PathBuf,
    warnings: Vec<String>,
    /// What another daemon has to be asked again.
    ordered: Vec<RunAction>,
    /// How often another daemon had to be asked.
    restarts: u64,
}

impl RunClient {
    /// Begins a run, or joins that with the same tiers and options.
    ///
    /// # Errors
    /// A tier or source cannot be used, or the daemon does not answer.
    pub fn open(daemon: DaemonAddress, tiers: Vec<TierSpec>, options: RunOptions) -> Result<Self, TierError> {
        check_sources(&tiers, options.sources.iter().map(PathBuf::as_path))?;
        let opened = match open(&daemon, &tiers, &options) {
            // It may have ended meanwhile; another one is started.
            Err(TierError::Daemon { .. }) => open(&daemon, &tiers, &options),
            opened => opened,
        };
        let opened = Mutex::new(opened?);
        let (finished, is_closed) = (Mutex::new(None), AtomicBool::new(false));
        let inner = Arc::new(Inner { daemon, tiers, options, opened, finished, is_closed });
        let theirs = Arc::clone(&inner);
        let watching = Builder::new().name("forebay-run".into()).spawn(move || theirs.watch());
        let watching = Some(watching.map_err(TierError::io("", "start a thread"))?);
        Ok(Self { inner, watching })
    }

    /// The file table of the run.
    #[must_use]
    pub fn table(&self) -> PathBuf {
        self.inner.lock().table.clone()
    }

    /// What the user should know.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.inner.lock().warnings.clone()
    }

    /// Begins to copy all sources.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn stage(&self) -> Result<(), TierError> {
        self.inner.ask(RunAction::Stage).map(|_| ())
    }

    /// How far the run is.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn progress(&self) -> Result<Value, TierError> {
        Ok(self.inner.ask(RunAction::Progress)?.0)
    }

    /// How often another daemon took the place of one that had died. It counts from then on.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        self.inner.lock().restarts
    }

    /// What the run has done. If the run compares copies, and the daemon that did so has died,
    /// another one compares them first.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn summary(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Value, TierError> {
        loop {
            let (facts, restarts) = self.inner.ask(RunAction::Summary)?;
            let finished = *self.inner.finished();
            let is_compared = finished.is_none_or(|finished| finished == restarts);
            if !self.inner.options.check || is_compared || !go_on() {
                return Ok(facts);
            }
            self.finish(Duration::MAX, go_on)?;
        }
    }

    /// Ends copies under way, within a time unless the run compares copies; `go_on` is asked
    /// between.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn finish(&self, within: Duration, go_on: &mut dyn FnMut() -> bool) -> Result<(), TierError> {
        self.inner.ask(RunAction::Finish)?;
        let begun = Instant::now();
        while (self.inner.options.check || begun.elapsed() < within) && go_on() {
            let (progress, restarts) = self.inner.ask(RunAction::Progress)?;
            if progress["is_finished"] == Value::Bool(true) {
                *self.inner.finished() = Some(restarts);
                break;
            }
            std::thread::sleep(ASK_EVERY);
        }
        Ok(())
    }
}

impl Drop for RunClient {
    fn drop(&mut self) {
        self.inner.is_closed.store(true, Ordering::Release);
        if let Some(watching) = self.watching.take() {
            watching.thread().unpark();
            let _ = watching.join();
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finished(&self) -> MutexGuard<'_, Option<u64>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, and how many daemons came before the one that gave it.
    fn ask(&self, action: RunAction) -> Result<(Value, u64), TierError> {
        let mut opened = self.lock();
        if matches!(action, RunAction::Stage | RunAction::Finish) {
            opened.ordered.push(action);
        }
        let answer = match ask(&opened, action) {
            Err(TierError::Daemon { .. }) => {
                let (ordered, restarts) = (opened.ordered.clone(), opened.restarts + 1);
                let new = open(&self.daemon, &self.tiers, &self.options)?;
                *opened = Opened { ordered, restarts, ..new };
                for order in &opened.ordered {
                    ask(&opened, *order)?;
                }
                ask(&opened, action)
            }
            answer => answer,
        }?;
        Ok((answer, opened.restarts))
    }

    fn watch(&self) {
        while !self.is_closed.load(Ordering::Acquire) {
            std::thread::park_timeout(LOOK_EVERY);
            if self.is_closed.load(Ordering::Acquire) {
                return;
            }
            if let Err(error) = self.ask(RunAction::Progress) {
                tracing::info!(%error, "the run of the tier daemon is not reached");
            }
        }
    }
}

fn ask(opened: &Opened, action: RunAction) -> Result<Value, TierError> {
    match opened.connection.ask("use a run", &TierRequest::Run { run: opened.run, action }, &[])?.0 {
        TierReply::Run { facts } => Ok(facts),
        TierReply::Done => Ok(Value::Null),
        other => Err(unexpected("use a run", &other)),
    }
}

fn open(daemon: &DaemonAddress, tiers: &[TierSpec], options: &RunOptions) -> Result<Opened, TierError> {
    let connection = TierConnection::start(daemon)?;
    let request = TierRequest::OpenRun { version: VERSION, tiers: tiers.to_vec(), options: options.clone() };
    let pidfd = own_pidfd()?;
    let (run, table, warnings) = match connection.ask("open a run", &request, &[pidfd.as_fd()])?.0 {
        TierReply::OpenedRun { run, table, warnings } => (run, table, warnings),
        other => return Err(unexpected("open a run", &other)),
    };
    let opened = Opened { connection, run, table, warnings, ordered: Vec::new(), restarts: 0 };
    let begun = Instant::now();
    loop {
        let progress = ask(&opened, RunAction::Progress)?;
        if progress["is_ready"] == Value::Bool(true) {
            return match progress["problem"].as_str() {
                Some(problem) => {
                    Err(TierError::Daemon { attempt: "open a run", problem: problem.to_owned() })
                }
                None => Ok(opened),
            };
        }
        if begun.elapsed() > READY_WITHIN {
            let problem = format!("no file table within {} s", READY_WITHIN.as_secs());
            return Err(TierError::Daemon { attempt: "open a run", problem });
        }
        std::thread::sleep(ASK_EVERY);
    }
}

/// What all runs of this user's daemon on this node have done; `None` without a daemon.
///
/// # Errors
/// The daemon does not answer.
pub fn runs_usage() -> Result<Option<Vec<Value>>, TierError> {
    let Some(connection) = TierConnection::existing(socket_path()?.socket())? else { return Ok(None) };
    match connection.ask("runs", &TierRequest::Runs, &[])?.0 {
        TierReply::Runs { runs } => Ok(Some(runs)),
        other => Err(unexpected("runs", &other)),
    }
}
