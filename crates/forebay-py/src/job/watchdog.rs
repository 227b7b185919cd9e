//! A watch over a call that holds the interpreter and cannot be cancelled: `MPI_Init`, above all.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_host::Siblings;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// How often the processes of this node are looked at: one that has ended is named only if it was
/// seen alive before.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// Writes to standard error, ever more rarely, that a block lasts, and which ranks of this node
/// have ended.
///
/// It ends the process only where the caller asks for that. A thread without Python does all this,
/// as the block may hold the interpreter.
#[pyclass(module = "forebay._native", frozen)]
pub(crate) struct Watchdog {
    limits: Limits,
    watched: Mutex<Option<Sender<()>>>,
}

#[derive(Clone)]
struct Limits {
    what: String,
    warn_after: Duration,
    end_after: Option<Duration>,
    /// Variable of the environment that holds the rank, and the rank.
    rank: Option<(String, u32)>,
}

impl Limits {
    /// Watches until `ended` says that the block has ended.
    fn run(&self, ended: impl Fn(Duration) -> bool) {
        let begun = Instant::now();
        let mut siblings =
            self.rank.as_ref().and_then(|(variable, rank)| Siblings::find(Some(variable), *rank));
        let mut warn_at = self.warn_after;
        while !ended(PROBE_INTERVAL.min(warn_at.saturating_sub(begun.elapsed()))) {
            if let Some(siblings) = &mut siblings {
                siblings.probe();
            }
            let lasted = begun.elapsed();
            let ends = self.end_after.is_some_and(|end| lasted >= end);
            if lasted < warn_at && !ends {
                continue;
            }
            warn_at = 2 * lasted;
            let mut text =
                format!("{}: has waited for {:.0} s for other ranks", self.what, lasted.as_secs_f64());
            for (rank, process) in siblings.iter().flat_map(Siblings::all_ended) {
                let _ = write!(
                    text,
                    "; rank {rank} (process {}) of this node has ended{}",
                    process.pid, process.how
                );
            }
            // Whether standard error is open does not matter.
            let _ = writeln!(
                io::stderr(),
                "{text}{}",
                if ends { "; this process ends, as was asked for" } else { "" }
            );
            if ends {
                // SAFETY: ends the process as it is; handlers of a library that has not finished
                // its start are left out.
                unsafe { libc::_exit(1) }
            }
        }
    }
}

#[pymethods]
impl Watchdog {
    #[new]
    #[pyo3(signature = (what, warn_after_s, *, end_after_s = None, rank = None))]
    fn new(
        what: String,
        warn_after_s: f64,
        end_after_s: Option<f64>,
        rank: Option<(String, u32)>,
    ) -> PyResult<Self> {
        let span = |seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
        };
        let (warn_after, end_after) = (span(warn_after_s)?, end_after_s.map(span).transpose()?);
        Ok(Self { limits: Limits { what, warn_after, end_after, rank }, watched: Mutex::default() })
    }

    fn __enter__(&self) {
        let (sender, receiver) = channel::<()>();
        let watch = self.limits.clone();
        let run = move || watch.run(|span| receiver.recv_timeout(span) != Err(RecvTimeoutError::Timeout));
        // Without a thread there is no watch, and the block runs all the same.
        let thread = thread::Builder::new().name("forebay-watchdog".to_owned()).spawn(run);
        *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = thread.ok().map(|_| sender);
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyAny>) {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}
