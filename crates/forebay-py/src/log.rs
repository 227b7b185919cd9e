//! Events of the engine (`tracing`) on their way to Python's `logging`.
//!
//! Engine threads never wait for the interpreter: an event goes into a bounded queue, and the next
//! call from Python hands what is there to `forebay._log`, also while it waits. How, in order:
//!
//! 1. [`prepare`] imports `forebay._log`, which reads `FOREBAY_LOG`, and takes over the level of
//!    the logger `forebay`. Until then, and for events below that level, a place costs two loads.
//! 2. [`Queue`], the subscriber, keeps at most [`MAX_EVENTS`] events. It never blocks: what finds
//!    the queue full, or locked for long (a child of fork(2) may inherit it locked), is counted as
//!    lost.
//! 3. [`drain`] runs with the interpreter attached, and calls Python without the lock. Events of
//!    the parent of a fork are dropped.

use std::collections::VecDeque;
use std::fmt;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Events that wait for Python at most: a storm of retries must not fill memory.
const MAX_EVENTS: usize = 1024;

/// How often the lock of the queue is tried. It is held for a push or a swap, so this ends early
/// unless its holder is gone.
const LOCK_TRIES: u32 = 1000;

/// An event as Python gets it.
struct RetainedValues {
    level: Level,
    target: &'static str,
    message: String,
    fields: Vec<(&'static str, Value)>,
    seconds: f64,
    thread: Option<String>,
    process: u32,
}

/// The value of a field.
enum Value {
    Integer(i64),
    Natural(u64),
    Flag(bool),
    Text(String),
}

static EVENTS: Mutex<VecDeque<RetainedValues>> = Mutex::new(VecDeque::new());
static IS_PENDING: AtomicBool = AtomicBool::new(false);
static LOST: AtomicU64 = AtomicU64::new(0);
/// The least level that is kept, as [`rank_of`] counts; 0: none.
static LEVEL: AtomicU8 = AtomicU8::new(0);
static PYTHON: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Levels by how much they let through: 1 (error) to 5 (trace).
fn rank_of(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        _ => 5,
    }
}

/// The number of a level in Python's `logging`.
fn number_of(level: Level) -> u32 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        _ => 5,
    }
}

fn lock() -> Option<MutexGuard<'static, VecDeque<RetainedValues>>> {
    for _ in 0..LOCK_TRIES {
        match EVENTS.try_lock() {
            Ok(events) => return Some(events),
            Err(TryLockError::Poisoned(events)) => return Some(PoisonError::into_inner(events)),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}

/// Keeps events for Python.
struct Queue;

impl Subscriber for Queue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.is_span() && rank_of(*metadata.level()) <= LEVEL.load(Ordering::Relaxed)
    }

    /// The level may change at any time.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let kept = RetainedValues {
            level: *event.metadata().level(),
            target: event.metadata().target(),
            message: fields.message,
            fields: fields.others,
            seconds: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            thread: thread::current().name().map(str::to_owned),
            process: process::id(),
        };
        match lock() {
            Some(mut events) if events.len() < MAX_EVENTS => events.push_back(kept),
            _ => {
                LOST.fetch_add(1, Ordering::Relaxed);
            }
        }
        IS_PENDING.store(true, Ordering::Release);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Collects what an event has.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.others.push((field.name(), Value::Text(text)));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.others.push((field.name(), Value::Text(value.to_owned())));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.others.push((field.name(), Value::Integer(value)));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.others.push((field.name(), Value::Natural(value)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.push((field.name(), Value::Flag(value)));
    }
}

/// Takes over the level of Python's logger; called where a dataset is opened, a loader made, or an
/// iteration begun.
///
/// # Errors
/// `FOREBAY_LOG` is no level.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    let python = PYTHON.get_or_try_init(py, || {
        let module = py.import("forebay._log")?;
        module.call_method0("configure")?;
        // Fails only where there is one already: this library sets none but this one.
        let _ = tracing::subscriber::set_global_default(Queue);
        Ok::<_, PyErr>(module.unbind())
    })?;
    let lowest: u32 = python.bind(py).call_method0("level")?.extract()?;
    let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
    let kept = levels.into_iter().filter(|level| number_of(*level) >= lowest).count();
    LEVEL.store(kept as u8, Ordering::Relaxed);
    Ok(())
}

/// Hands the events so far to Python.
///
/// # Errors
/// What Python raises, for example in a signal handler that runs meanwhile.
pub(crate) fn drain(py: Python<'_>) -> PyResult<()> {
    if !IS_PENDING.load(Ordering::Acquire) {
        return Ok(());
    }
    let (Some(python), Some(mut events)) = (PYTHON.get(py), lock()) else { return Ok(()) };
    IS_PENDING.store(false, Ordering::Relaxed);
    let taken = std::mem::take(&mut *events);
    drop(events);
    let emit = python.bind(py).getattr("emit")?;
    for event in taken.into_iter().filter(|event| event.process == process::id()) {
        let fields = PyDict::new(py);
        for (name, value) in event.fields {
            match value {
                Value::Integer(number) => fields.set_item(name, number)?,
                Value::Natural(number) => fields.set_item(name, number)?,
                Value::Flag(flag) => fields.set_item(name, flag)?,
                Value::Text(text) => fields.set_item(name, text)?,
            }
        }
        let level = number_of(event.level);
        emit.call1((level, event.target, event.message, fields, event.seconds, event.thread))?;
    }
    let lost = LOST.swap(0, Ordering::Relaxed);
    if lost > 0 {
        python.bind(py).call_method1("report_lost", (lost,))?;
    }
    Ok(())
}
