//! The threads of a session: started one by one, ended together, and left behind while storage
//! blocks them.
//!
//! A thread inside a system call or a page fault cannot be cancelled. So the end of a session waits
//! only for threads that storage does not block:
//!
//! 1. A thread records when it enters a storage call ([`in_storage`]).
//! 2. [`Threads::end`] waits for all threads until one has been inside a storage call for
//!    [`STUCK`]; then it no longer waits for any thread that is inside one.
//! 3. A thread that is left behind holds its session, and with it the region, the files and the
//!    batch buffers: nothing is unmapped or closed under it.
//!
//! Other processes must not use memory that such a thread may still write to. So the process
//! publishes that it is at rest, or gone, only when no thread that shares memory is left
//! (`Session::when_out`).

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::shm::counters::monotonic_ns;

/// Time inside a storage call after which a thread counts as blocked: healthy storage answers a
/// block in a tenth of it.
pub(crate) const STUCK: Duration = Duration::from_secs(1);
/// The same after another thread has proved to be blocked: a reply of healthy storage takes less.
const BRIEFLY: Duration = Duration::from_millis(50);
/// Maximum wait for a thread outside storage calls: it ends as soon as it is scheduled.
const LONGEST: Duration = Duration::from_secs(5);
/// How often threads are checked, because a blocked thread sends no notification.
const LOOK: Duration = Duration::from_millis(20);

thread_local! {
    /// When this thread entered a storage call [ns of the monotonic clock]; 0: it is in none.
    static STORAGE_SINCE: RefCell<Option<Arc<AtomicU64>>> = const { RefCell::new(None) };
}

/// Runs a storage call, and records that the thread is inside one. Calls may be nested.
pub(crate) fn in_storage<T>(call: impl FnOnce() -> T) -> T {
    struct Noted(Option<Arc<AtomicU64>>);
    impl Drop for Noted {
        fn drop(&mut self) {
            if let Some(since) = &self.0 {
                since.store(0, Ordering::Release);
            }
        }
    }
    let since = STORAGE_SINCE.with_borrow(Clone::clone);
    let _noted = Noted(since.filter(|since| {
        since.compare_exchange(0, monotonic_ns(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }));
    call()
}

/// Runs a wait for something else inside a storage call.
pub(crate) fn out_of_storage<T>(call: impl FnOnce() -> T) -> T {
    let Some(noted) = STORAGE_SINCE.with_borrow(Clone::clone) else { return call() };
    let before = noted.swap(0, Ordering::AcqRel);
    let answer = call();
    if before != 0 {
        noted.store(monotonic_ns(), Ordering::Release);
    }
    answer
}

/// How a thread uses memory that other processes also use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadKind {
    /// Touches it at any time: readers, roots, planners.
    Shares,
    /// Touches it only inside a claim of the pool (`buffer_pool.rs`).
    Gathers,
}

/// Action to run when no thread shares memory any more.
pub(crate) type WhenOut = Box<dyn FnOnce() + Send>;

struct Thread {
    number: u64,
    storage_since: Arc<AtomicU64>,
    handle: Option<JoinHandle<()>>,
    ended: bool,
}

impl Thread {
    /// Whether it has been inside a storage call for this long.
    fn is_kept(&self, so_long: Duration) -> bool {
        let since = self.storage_since.load(Ordering::Acquire);
        since != 0 && monotonic_ns().saturating_sub(since) >= so_long.as_nanos() as u64
    }
}

/// Whether storage calls block all of these threads, for longer than they are waited for.
fn are_stuck(threads: &[Thread]) -> bool {
    threads.iter().any(|one| one.is_kept(STUCK)) && threads.iter().all(|one| one.is_kept(BRIEFLY))
}

#[derive(Default)]
struct State {
    threads: Vec<Thread>,
    started: u64,
    /// Threads of [`ThreadKind::Shares`] that have not ended.
    sharers: usize,
    closed: bool,
    when_out: Option<WhenOut>,
}

/// See the module header.
#[derive(Default)]
pub(crate) struct Threads {
    state: Mutex<State>,
    changed: Condvar,
}

impl Threads {
    /// Starts a thread that runs `run`, and drops its captures before it counts as ended. Does
    /// nothing after [`Threads::end`].
    ///
    /// A thread of [`ThreadKind::Shares`] calls [`Threads::shares_no_more`] before it ends.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: &str,
        kind: ThreadKind,
        run: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let storage_since = Arc::<AtomicU64>::default();
        let number = {
            let mut state = self.lock();
            if state.closed {
                return Ok(());
            }
            state.started += 1;
            state.sharers += usize::from(kind == ThreadKind::Shares);
            let number = state.started;
            let storage_since = Arc::clone(&storage_since);
            state.threads.push(Thread { number, storage_since, handle: None, ended: false });
            number
        };
        let threads = Arc::clone(self);
        let spawned = std::thread::Builder::new().name(format!("forebay-{name}")).spawn(move || {
            STORAGE_SINCE.set(Some(storage_since));
            run();
            threads.ended(number);
        });
        let mut state = self.lock();
        match spawned {
            Ok(handle) => {
                if let Some(thread) = state.threads.iter_mut().find(|thread| thread.number == number) {
                    thread.handle = Some(handle);
                }
                self.changed.notify_all();
                Ok(())
            }
            Err(error) => {
                state.threads.retain(|thread| thread.number != number);
                state.sharers -= usize::from(kind == ThreadKind::Shares);
                Err(error)
            }
        }
    }

    fn ended(&self, number: u64) {
        let mut state = self.lock();
        if let Some(thread) = state.threads.iter_mut().find(|thread| thread.number == number) {
            thread.ended = true;
        }
        self.changed.notify_all();
    }

    /// A thread of [`ThreadKind::Shares`] shares no memory from now on.
    pub(crate) fn shares_no_more(&self) {
        self.lock().sharers -= 1;
    }

    /// Sets the action for when no thread shares memory any more; replaces an earlier one.
    pub(crate) fn when_out(&self, act: WhenOut) {
        self.lock().when_out = Some(act);
    }

    /// The action, if no thread shares memory any more: no sharer is left and the pool
    /// `is_settled`.
    pub(crate) fn take_when_out(&self, is_settled: impl FnOnce() -> bool) -> Option<WhenOut> {
        let mut state = self.lock();
        if state.sharers > 0 || !is_settled() {
            return None;
        }
        state.when_out.take()
    }

    /// Whether any of the threads has been inside a storage call for [`STUCK`].
    pub(crate) fn any_stuck(&self) -> bool {
        self.lock().threads.iter().any(|one| one.is_kept(STUCK))
    }

    /// Joins the stopped threads, leaves behind those that storage blocks; returns whether all have
    /// ended.
    pub(crate) fn end(&self) -> bool {
        let begun = Instant::now();
        let mut state = self.lock();
        state.closed = true;
        loop {
            let (ended, running): (Vec<_>, Vec<_>) = std::mem::take(&mut state.threads)
                .into_iter()
                .partition(|one| one.ended && one.handle.is_some());
            state.threads = running;
            if !ended.is_empty() {
                drop(state);
                for thread in ended {
                    // A thread that panicked has printed its message; the session ends either way.
                    let _ = thread.handle.map(JoinHandle::join);
                }
                state = self.lock();
                continue;
            }
            if state.threads.is_empty() {
                return true;
            }
            if are_stuck(&state.threads) || begun.elapsed() > LONGEST {
                // Without handles the threads are detached.
                state.threads.clear();
                return false;
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn threads_that_end_are_joined_and_none_begins_afterwards() {
        let threads = Arc::new(Threads::default());
        let held = Arc::new(());
        for kind in [ThreadKind::Shares, ThreadKind::Gathers] {
            let (threads_there, held) = (Arc::clone(&threads), Arc::clone(&held));
            let run = move || {
                in_storage(|| in_storage(|| ()));
                if kind == ThreadKind::Shares {
                    threads_there.shares_no_more();
                }
                drop(held);
            };
            threads.spawn("test", kind, run).unwrap();
        }
        assert!(threads.end());
        assert_eq!(Arc::strong_count(&held), 1, "what they held is dropped before they count as ended");
        threads.spawn("late", ThreadKind::Shares, || unreachable!("the threads were ended")).unwrap();
        assert!(threads.end());
    }

    #[test]
    fn a_thread_that_storage_keeps_is_left_behind_and_acts_when_it_is_out() {
        let threads = Arc::new(Threads::default());
        let (answer, storage) = channel::<()>();
        let (out, is_out) = channel();
        let (ended, has_ended) = channel();
        let there = Arc::clone(&threads);
        let run = move || {
            in_storage(|| storage.recv().unwrap());
            there.shares_no_more();
            if let Some(act) = there.take_when_out(|| true) {
                act();
            }
            ended.send(()).unwrap();
        };
        threads.spawn("stuck", ThreadKind::Shares, run).unwrap();
        // Storage has not answered when this returns: the answer is given below.
        assert!(!threads.end());
        threads.when_out(Box::new(move || out.send(()).unwrap()));
        assert!(threads.take_when_out(|| true).is_none(), "it may still write");
        assert!(is_out.try_recv().is_err());
        answer.send(()).unwrap();
        is_out.recv().unwrap();
        has_ended.recv().unwrap();
    }
}
