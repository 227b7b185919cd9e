//! Work that threads share: they take numbered parts, one after the other, until all are done, one
//! fails, or the caller ends it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::Error;
use crate::host::Host;

/// What threads that load the share of a node report.
pub(crate) const LOADS_SHARE: &str = "load the share of this node";

/// Interval between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Calls `work` with each number below `parts` and memory of the thread; it returns the bytes that
/// it got. Reports progress towards `all_bytes` as `what`. Returns the bytes of all parts.
pub(crate) fn work_in_threads(
    parts: usize,
    threads: usize,
    what: &str,
    all_bytes: u64,
    caller: &dyn Host,
    work: impl Fn(usize, &mut Vec<u8>) -> Result<u64, Error> + Sync,
) -> Result<u64, Error> {
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let stopped = AtomicBool::new(false);
    let failure: Mutex<Option<Error>> = Mutex::default();
    let run = || {
        let mut memory = Vec::new();
        while !stopped.load(Ordering::Relaxed) {
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return;
            }
            match work(part, &mut memory) {
                Ok(bytes) => done.fetch_add(bytes, Ordering::Relaxed),
                Err(error) => {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    stopped.store(true, Ordering::Relaxed);
                    return;
                }
            };
        }
    };
    let is_interrupted = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads.min(parts))
            .map_while(|number| {
                let thread = std::thread::Builder::new().name(format!("forebay-load-{number}"));
                thread.spawn_scoped(scope, run).ok()
            })
            .collect();
        if started.is_empty() {
            run();
        }
        let mut is_interrupted = false;
        while started.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(PROGRESS_INTERVAL);
            if !caller.progress(what, done.load(Ordering::Relaxed).min(all_bytes), all_bytes) {
                is_interrupted = true;
                stopped.store(true, Ordering::Relaxed);
            }
        }
        is_interrupted
    });
    if is_interrupted {
        return Err(Error::Interrupted);
    }
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(done.into_inner()),
    }
}
