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
use serde_json::Value;

use crate::client::{Connection, DaemonAddress, unexpected};
use crate::daemon::socket_path;
use crate::directory_checks::check_sources;
use crate::error::TierError;
use crate::protocol::{Answer, Request, RunAction, VERSION};
use crate::run_options::RunOptions;
use crate::spec::TierSpec;

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
    is_closed: AtomicBool,
}

struct Opened {
    connection: Connection,
    run: u32,
    table: PathBuf,
    warnings: Vec<String>,
    /// What another daemon has to be asked again.
    ordered: Vec<RunAction>,
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
        let inner = Arc::new(Inner { daemon, tiers, options, opened, is_closed: AtomicBool::new(false) });
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
        self.inner.ask(RunAction::Progress)
    }

    /// What the run has done.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn summary(&self) -> Result<Value, TierError> {
        self.inner.ask(RunAction::Summary)
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
            if self.progress()?["is_finished"] == Value::Bool(true) {
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

    fn ask(&self, action: RunAction) -> Result<Value, TierError> {
        let mut opened = self.lock();
        if matches!(action, RunAction::Stage | RunAction::Finish) {
            opened.ordered.push(action);
        }
        match ask(&opened, action) {
            Err(TierError::Daemon { .. }) => {
                let ordered = opened.ordered.clone();
                *opened = Opened { ordered, ..open(&self.daemon, &self.tiers, &self.options)? };
                for order in &opened.ordered {
                    ask(&opened, *order)?;
                }
                ask(&opened, action)
            }
            answer => answer,
        }
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
    match opened.connection.ask("use a run", &Request::Run { run: opened.run, action }, &[])?.0 {
        Answer::Run { facts } => Ok(facts),
        Answer::Done => Ok(Value::Null),
        other => Err(unexpected("use a run", &other)),
    }
}

fn open(daemon: &DaemonAddress, tiers: &[TierSpec], options: &RunOptions) -> Result<Opened, TierError> {
    let connection = Connection::start(daemon)?;
    let request = Request::OpenRun { version: VERSION, tiers: tiers.to_vec(), options: options.clone() };
    let pidfd = own_pidfd()?;
    let (run, table, warnings) = match connection.ask("open a run", &request, &[pidfd.as_fd()])?.0 {
        Answer::OpenedRun { run, table, warnings } => (run, table, warnings),
        other => return Err(unexpected("open a run", &other)),
    };
    let opened = Opened { connection, run, table, warnings, ordered: Vec::new() };
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
    let Some(connection) = Connection::existing(socket_path()?.socket())? else { return Ok(None) };
    match connection.ask("runs", &Request::Runs, &[])?.0 {
        Answer::Runs { runs } => Ok(Some(runs)),
        other => Err(unexpected("runs", &other)),
    }
}
