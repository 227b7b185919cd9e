//! Runs calls that storage may block on a thread of their own, so that the caller can always give
//! up.
//!
//! Opening files, building an index and querying a file's state are system calls that a dead mount
//! may block for ever. [`offload`] makes them on another thread. Meanwhile the caller's own thread
//! polls for cancellation, forwards the work's reports, warns when there is no progress, and gives
//! up after the limit. Cancelled work ends at its next call to the [`Host`]. If storage blocks it,
//! its thread stays behind with all that it holds; so the work must own what it uses.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_format::OpenOptions;
use forebay_io::guard;

use crate::error::Error;
use crate::host::Host;
use crate::host::warnings::Warnings;

/// How often the caller is polled for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long cancelled work may take to end before its thread is left behind.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(500);

/// A request of the work to the caller's own thread.
enum HostCall {
    Warn(String),
    Structure(PathBuf, OpenOptions),
}

struct State<T> {
    requests: VecDeque<HostCall>,
    /// Replies to [`HostCall::Structure`].
    structures: VecDeque<Option<Vec<u8>>>,
    progress: Option<(String, u64, u64)>,
    /// Counts signs of progress.
    moves: u64,
    stopped: bool,
    result: Option<Result<T, Error>>,
}

/// State that the two threads share.
struct Exchange<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

impl<T> Exchange<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State<T>>, limit: Duration) -> MutexGuard<'a, State<T>> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The work's [`Host`], which forwards to the caller's thread.
struct Relay<T>(Arc<Exchange<T>>);

impl<T: Send> Host for Relay<T> {
    fn interrupted(&self) -> bool {
        self.0.lock().stopped
    }

    fn progress(&self, what: &str, done: u64, all: u64) -> bool {
        let mut state = self.0.lock();
        let is_new = state.progress.as_ref().is_none_or(|before| *before != (what.to_owned(), done, all));
        if is_new {
            state.moves += 1;
            state.progress = Some((what.to_owned(), done, all));
        }
        !state.stopped
    }

    fn waits_for_others(&self) {
        self.0.lock().moves += 1;
    }

    fn find_structure(&self, path: &Path, options: &OpenOptions) -> Option<Vec<u8>> {
        let mut state = self.0.lock();
        state.requests.push_back(HostCall::Structure(path.to_owned(), options.clone()));
        self.0.changed.notify_all();
        loop {
            if let Some(found) = state.structures.pop_front() {
                return found;
            }
            if state.stopped {
                return None;
            }
            state = self.0.wait(state, POLL_INTERVAL);
        }
    }

    fn warn(&self, text: &str) {
        self.0.lock().requests.push_back(HostCall::Warn(text.to_owned()));
        self.0.changed.notify_all();
    }
}

/// Runs `work` on a thread of its own. Waits for it while the caller does not interrupt and there
/// is progress at least every `limit_s` seconds. Warnings and errors name `what` it is for:
/// "loader "train" is made".
///
/// # Errors
/// Those of the work; [`Error::Interrupted`]; [`Error::Stalled`].
pub fn offload<T: Send + 'static>(
    caller: &dyn Host,
    what: &str,
    limit_s: u64,
    work: impl FnOnce(&dyn Host) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let exchange = Arc::new(Exchange {
        state: Mutex::new(State {
            requests: VecDeque::new(),
            structures: VecDeque::new(),
            progress: None,
            moves: 0,
            stopped: false,
            result: None,
        }),
        changed: Condvar::new(),
    });
    let relay = Relay(Arc::clone(&exchange));
    let work = Arc::new(Mutex::new(Some(work)));
    let taken = Arc::clone(&work);
    let run = move || {
        guard::unblock();
        let Some(work) = take(&taken) else { return };
        let result = catch_unwind(AssertUnwindSafe(|| work(&relay)));
        let result = result.unwrap_or_else(|_| Err(Error::Panicked));
        relay.0.lock().result = Some(result);
        relay.0.changed.notify_all();
    };
    match std::thread::Builder::new().name("forebay-aside".into()).spawn(run) {
        Ok(_) => wait(&exchange, caller, what, limit_s),
        // At a limit of threads the caller does the work itself: slow storage then blocks it, which
        // is better than failing.
        Err(_) => take(&work).map_or_else(|| Err(Error::Panicked), |work| work(caller)),
    }
}

fn take<T>(work: &Mutex<Option<T>>) -> Option<T> {
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn wait<T>(exchange: &Exchange<T>, caller: &dyn Host, what: &str, limit_s: u64) -> Result<T, Error> {
    let mut state = exchange.lock();
    let limit = Duration::from_secs(limit_s);
    let mut warnings = Warnings::before(limit);
    let (mut moved, mut moves) = (Instant::now(), 0);
    let mut forwarded: Option<(String, u64, u64)> = None;
    loop {
        if state.moves != moves {
            (moved, moves) = (Instant::now(), state.moves);
            warnings = Warnings::before(limit);
        }
        // Forward the last report before the result.
        let report = state.progress.clone().filter(|report| forwarded.as_ref() != Some(report));
        if let Some((of, done, all)) = report {
            drop(state);
            let goes_on = caller.progress(&of, done, all);
            forwarded = Some((of, done, all));
            state = exchange.lock();
            if !goes_on {
                return give_up(exchange, state, Error::Interrupted);
            }
            continue;
        }
        if let Some(request) = state.requests.pop_front() {
            drop(state);
            let structure = match request {
                HostCall::Warn(text) => {
                    caller.warn(&text);
                    None
                }
                HostCall::Structure(path, options) => Some(caller.find_structure(&path, &options)),
            };
            state = exchange.lock();
            if let Some(found) = structure {
                state.structures.push_back(found);
                state.moves += 1;
                exchange.changed.notify_all();
            }
            continue;
        }
        if let Some(result) = state.result.take() {
            return result;
        }
        drop(state);
        if caller.interrupted() {
            return give_up(exchange, exchange.lock(), Error::Interrupted);
        }
        let still = moved.elapsed();
        let description = || {
            let so_far = match &forwarded {
                None => String::new(),
                Some((of, done, 0)) => format!(" ({done} {of} so far)"),
                Some((of, done, all)) => format!(" ({done} of {all} {of} so far)"),
            };
            format!("waiting for storage while {what}{so_far}")
        };
        if still >= limit {
            return give_up(
                exchange,
                exchange.lock(),
                Error::Stalled { seconds: limit_s, what: description() },
            );
        }
        if warnings.is_due(still) {
            caller.warn(&format!("nothing has moved for {} s, {}", still.as_secs(), description()));
        }
        state = exchange.lock();
        if state.result.is_none() && state.requests.is_empty() {
            state = exchange.wait(state, POLL_INTERVAL);
        }
    }
}

/// Cancels the work, waits up to [`CANCEL_TIMEOUT`] for its end, then leaves it behind.
fn give_up<'a, T>(
    exchange: &'a Exchange<T>,
    mut state: MutexGuard<'a, State<T>>,
    error: Error,
) -> Result<T, Error> {
    state.stopped = true;
    exchange.changed.notify_all();
    let begun = Instant::now();
    while state.result.is_none() && begun.elapsed() < CANCEL_TIMEOUT {
        state = exchange.wait(state, POLL_INTERVAL);
    }
    // The result is dropped here, or by the thread when it returns.
    let result = state.result.take();
    drop(state);
    drop(result);
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::NoHost;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel as mpsc_channel;

    const LONG_S: u64 = 3600;

    #[derive(Default)]
    struct RecordingHost {
        texts: Mutex<Vec<String>>,
        stop: AtomicBool,
    }

    impl Host for RecordingHost {
        fn interrupted(&self) -> bool {
            self.stop.load(Ordering::Acquire)
        }

        fn progress(&self, what: &str, done: u64, all: u64) -> bool {
            self.texts.lock().unwrap().push(format!("{what} {done}/{all}"));
            !self.interrupted()
        }

        fn find_structure(&self, path: &Path, options: &OpenOptions) -> Option<Vec<u8>> {
            Some(format!("{} {:?}", path.display(), options.fields).into_bytes())
        }

        fn warn(&self, text: &str) {
            self.texts.lock().unwrap().push(text.to_owned());
        }
    }

    #[test]
    fn requests_of_the_work_reach_the_caller_and_are_answered() {
        let host = RecordingHost::default();
        let options = OpenOptions { fields: vec!["x".into()], ..OpenOptions::default() };
        let found = offload(&host, "it is tested", LONG_S, move |caller| {
            caller.warn("odd");
            let found = caller.find_structure(Path::new("here"), &options);
            assert!(caller.progress("pages", 3, 3) && !caller.interrupted());
            Ok(found)
        });
        assert_eq!(found.unwrap().unwrap(), b"here [\"x\"]");
        assert_eq!(*host.texts.lock().unwrap(), ["odd", "pages 3/3"]);
    }

    #[test]
    fn an_error_and_a_panic_of_the_work_are_errors() {
        let failed = offload(&NoHost, "it is tested", LONG_S, |_| Err::<(), _>(Error::Closed));
        assert!(matches!(failed, Err(Error::Closed)));
        let panicked = offload::<()>(&NoHost, "it is tested", LONG_S, |_| panic!("on purpose"));
        assert!(matches!(panicked, Err(Error::Panicked)));
    }

    #[test]
    fn blocked_work_is_left_behind_after_the_limit_and_on_interruption() {
        for limit_s in [1, LONG_S] {
            let host = RecordingHost::default();
            host.stop.store(limit_s == LONG_S, Ordering::Release);
            let (answer, storage) = mpsc_channel::<()>();
            let (ended, has_ended) = mpsc_channel();
            // Storage has not answered when this returns: the answer is given below.
            let given_up = offload(&host, "it is tested", limit_s, move |caller| {
                caller.progress("pages", 7, 0);
                let _ = storage.recv();
                ended.send(caller.interrupted()).unwrap();
                Ok(())
            });
            match given_up {
                Err(Error::Stalled { seconds: 1, what }) if limit_s == 1 => {
                    assert!(what.contains("while it is tested (7 pages so far)"), "{what}");
                }
                Err(Error::Interrupted) if limit_s == LONG_S => {}
                other => panic!("{other:?}"),
            }
            answer.send(()).unwrap();
            assert!(has_ended.recv().unwrap(), "it is cancelled");
        }
    }

    #[test]
    fn work_with_progress_is_never_cancelled() {
        let moved = offload(&NoHost, "it is tested", 1, |caller| {
            for step in 0..8 {
                std::thread::sleep(Duration::from_millis(250));
                // Both kinds of progress.
                if step % 2 == 0 {
                    caller.waits_for_others();
                } else {
                    assert!(caller.progress("pages", step, 8));
                }
            }
            Ok(caller.interrupted())
        });
        assert!(!moved.unwrap());
    }
}
