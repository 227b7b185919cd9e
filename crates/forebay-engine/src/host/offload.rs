//! Calls that may wait for storage, made by a thread of their own, so that the caller never has to
//! wait for them to return.
//!
//! Opening files, building an index and asking for the state of a file are system calls that a dead
//! mount may keep for ever. [`offload`] lets another thread make them. The caller's own thread
//! meanwhile asks whether to go on, passes on what the work reports, warns when nothing has moved
//! for a while, and gives up when that lasts for the limit. Work that is given up ends at its next
//! question to the [`Host`]; where storage keeps it, its thread is left behind with all that it
//! holds, which is why it must own what it uses.

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

/// How often the caller is asked whether to go on.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How long work that is given up may take to notice it before it is left behind.
const GIVEN_UP: Duration = Duration::from_millis(500);

/// What the work asks of the caller's own thread.
enum Ask {
    Warn(String),
    Structure(PathBuf, OpenOptions),
}

struct State<T> {
    asks: VecDeque<Ask>,
    /// Answers to what was asked about structures.
    structures: VecDeque<Option<Vec<u8>>>,
    progress: Option<(String, u64, u64)>,
    /// Counts what shows that the work goes on.
    moves: u64,
    stopped: bool,
    outcome: Option<Result<T, Error>>,
}

/// What the two threads share.
struct Desk<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

impl<T> Desk<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State<T>>, limit: Duration) -> MutexGuard<'a, State<T>> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The caller, as the work sees it.
struct Relay<T>(Arc<Desk<T>>);

impl<T: Send> Host for Relay<T> {
    fn interrupted(&self) -> bool {
        self.0.lock().stopped
    }

    fn progress(&self, what: &str, done: u64, all: u64) -> bool {
        let mut state = self.0.lock();
        let is_news = state.progress.as_ref().is_none_or(|before| *before != (what.to_owned(), done, all));
        if is_news {
            state.moves += 1;
            state.progress = Some((what.to_owned(), done, all));
        }
        !state.stopped
    }

    fn waits_for_others(&self) {
        self.0.lock().moves += 1;
    }

    fn find_hdf5_structure(&self, path: &Path, options: &OpenOptions) -> Option<Vec<u8>> {
        let mut state = self.0.lock();
        state.asks.push_back(Ask::Structure(path.to_owned(), options.clone()));
        self.0.changed.notify_all();
        loop {
            if let Some(found) = state.structures.pop_front() {
                return found;
            }
            if state.stopped {
                return None;
            }
            state = self.0.wait(state, ASK_EVERY);
        }
    }

    fn warn(&self, text: &str) {
        self.0.lock().asks.push_back(Ask::Warn(text.to_owned()));
        self.0.changed.notify_all();
    }
}

/// Runs `work` on a thread of its own and waits for it as long as the caller wants to, and
/// something moves at least every `limit_s` seconds. `what` it is for is said in warnings and
/// errors: "loader "train" is made".
///
/// # Errors
/// Those of the work; [`Error::Interrupted`]; [`Error::Stalled`].
pub fn offload<T: Send + 'static>(
    caller: &dyn Host,
    what: &str,
    limit_s: u64,
    work: impl FnOnce(&dyn Host) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let desk = Arc::new(Desk {
        state: Mutex::new(State {
            asks: VecDeque::new(),
            structures: VecDeque::new(),
            progress: None,
            moves: 0,
            stopped: false,
            outcome: None,
        }),
        changed: Condvar::new(),
    });
    let relay = Relay(Arc::clone(&desk));
    let work = Arc::new(Mutex::new(Some(work)));
    let taken = Arc::clone(&work);
    let run = move || {
        guard::unblock();
        let Some(work) = take(&taken) else { return };
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&relay)));
        let outcome = outcome.unwrap_or_else(|_| Err(Error::Panicked));
        relay.0.lock().outcome = Some(outcome);
        relay.0.changed.notify_all();
    };
    match std::thread::Builder::new().name("forebay-aside".into()).spawn(run) {
        Ok(_) => wait(&desk, caller, what, limit_s),
        // At a limit of threads the caller does the work: slow storage then keeps it, which is
        // better than no work.
        Err(_) => take(&work).map_or_else(|| Err(Error::Panicked), |work| work(caller)),
    }
}

fn take<T>(work: &Mutex<Option<T>>) -> Option<T> {
    work.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn wait<T>(desk: &Desk<T>, caller: &dyn Host, what: &str, limit_s: u64) -> Result<T, Error> {
    let mut state = desk.lock();
    let limit = Duration::from_secs(limit_s);
    let mut warnings = Warnings::before(limit);
    let (mut moved, mut moves) = (Instant::now(), 0);
    let mut told: Option<(String, u64, u64)> = None;
    loop {
        if state.moves != moves {
            (moved, moves) = (Instant::now(), state.moves);
            warnings = Warnings::before(limit);
        }
        // What was reported last is passed on before the end is.
        let news = state.progress.clone().filter(|news| told.as_ref() != Some(news));
        if let Some((of, done, all)) = news {
            drop(state);
            let goes_on = caller.progress(&of, done, all);
            told = Some((of, done, all));
            state = desk.lock();
            if !goes_on {
                return give_up(desk, state, Error::Interrupted);
            }
            continue;
        }
        if let Some(ask) = state.asks.pop_front() {
            drop(state);
            let structure = match ask {
                Ask::Warn(text) => {
                    caller.warn(&text);
                    None
                }
                Ask::Structure(path, options) => Some(caller.find_hdf5_structure(&path, &options)),
            };
            state = desk.lock();
            if let Some(found) = structure {
                state.structures.push_back(found);
                state.moves += 1;
                desk.changed.notify_all();
            }
            continue;
        }
        if let Some(outcome) = state.outcome.take() {
            return outcome;
        }
        drop(state);
        if caller.interrupted() {
            return give_up(desk, desk.lock(), Error::Interrupted);
        }
        let still = moved.elapsed();
        let words = || {
            let so_far = match &told {
                None => String::new(),
                Some((of, done, 0)) => format!(" ({done} {of} so far)"),
                Some((of, done, all)) => format!(" ({done} of {all} {of} so far)"),
            };
            format!("waiting for storage while {what}{so_far}")
        };
        if still >= limit {
            return give_up(desk, desk.lock(), Error::Stalled { seconds: limit_s, what: words() });
        }
        if warnings.is_due(still) {
            caller.warn(&format!("nothing has moved for {} s, {}", still.as_secs(), words()));
        }
        state = desk.lock();
        if state.outcome.is_none() && state.asks.is_empty() {
            state = desk.wait(state, ASK_EVERY);
        }
    }
}

/// Tells the work to end, gives it a moment for that, and leaves it behind.
fn give_up<'a, T>(desk: &'a Desk<T>, mut state: MutexGuard<'a, State<T>>, error: Error) -> Result<T, Error> {
    state.stopped = true;
    desk.changed.notify_all();
    let begun = Instant::now();
    while state.outcome.is_none() && begun.elapsed() < GIVEN_UP {
        state = desk.wait(state, ASK_EVERY);
    }
    // What came of it is dropped here, or by its thread when that returns.
    let outcome = state.outcome.take();
    drop(state);
    drop(outcome);
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::NoHost;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;

    const LONG_S: u64 = 3600;

    #[derive(Default)]
    struct Told {
        texts: Mutex<Vec<String>>,
        stop: AtomicBool,
    }

    impl Host for Told {
        fn interrupted(&self) -> bool {
            self.stop.load(Ordering::Acquire)
        }

        fn progress(&self, what: &str, done: u64, all: u64) -> bool {
            self.texts.lock().unwrap().push(format!("{what} {done}/{all}"));
            !self.interrupted()
        }

        fn find_hdf5_structure(&self, path: &Path, options: &OpenOptions) -> Option<Vec<u8>> {
            Some(format!("{} {:?}", path.display(), options.fields).into_bytes())
        }

        fn warn(&self, text: &str) {
            self.texts.lock().unwrap().push(text.to_owned());
        }
    }

    #[test]
    fn the_work_reaches_the_caller_and_its_answer_comes_back() {
        let told = Told::default();
        let options = OpenOptions { fields: vec!["x".into()], ..OpenOptions::default() };
        let found = offload(&told, "it is tested", LONG_S, move |caller| {
            caller.warn("odd");
            let found = caller.find_hdf5_structure(Path::new("here"), &options);
            assert!(caller.progress("pages", 3, 3) && !caller.interrupted());
            Ok(found)
        });
        assert_eq!(found.unwrap().unwrap(), b"here [\"x\"]");
        assert_eq!(*told.texts.lock().unwrap(), ["odd", "pages 3/3"]);
    }

    #[test]
    fn an_error_and_a_panic_of_the_work_are_errors() {
        let failed = offload(&NoHost, "it is tested", LONG_S, |_| Err::<(), _>(Error::Closed));
        assert!(matches!(failed, Err(Error::Closed)));
        let panicked = offload::<()>(&NoHost, "it is tested", LONG_S, |_| panic!("on purpose"));
        assert!(matches!(panicked, Err(Error::Panicked)));
    }

    #[test]
    fn work_that_storage_keeps_is_left_behind_after_the_limit_and_on_interruption() {
        for limit_s in [1, LONG_S] {
            let told = Told::default();
            told.stop.store(limit_s == LONG_S, Ordering::Release);
            let (answer, storage) = channel::<()>();
            let (ended, has_ended) = channel();
            // Storage has not answered when this returns: the answer is given below.
            let given_up = offload(&told, "it is tested", limit_s, move |caller| {
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
            assert!(has_ended.recv().unwrap(), "it is told to end");
        }
    }

    #[test]
    fn work_that_moves_is_never_given_up() {
        let moved = offload(&NoHost, "it is tested", 1, |caller| {
            for step in 0..8 {
                std::thread::sleep(Duration::from_millis(250));
                // Either way of moving.
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
