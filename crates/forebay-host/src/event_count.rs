//! An event count in shared memory: wakes processes that wait for a word to change, and costs one
//! fence when no process waits.
//!
//! The word is any other word in shared memory. A process that changes it calls
//! [`EventCount::notify`] afterwards; a process that waits for it passes a condition that reads it
//! to [`EventCount::wait`]. In order:
//!
//! 1. notify: *publish the word* (before), full fence, load `waiters`; if there are any, increment
//!    `sequence` and wake all by a futex (not a private one, because the memory is shared);
//! 2. wait: increment `waiters`, then in a loop: load `sequence`, full fence, *evaluate the
//!    condition*, and sleep while `sequence` is unchanged.
//!
//! The two fences rule out that the notifier misses the waiter *and* the waiter misses the word. A
//! notification between the evaluation and the sleep changes `sequence`, so the sleep does not
//! begin. `tests/loom_event_count.rs` checks every interleaving, with a lock and a condition
//! variable as the futex.
//!
//! A process that is killed while it waits leaves `waiters` one too high: notifications stay
//! correct and cost a system call. All zeros is a valid event count. A wait ends only when the
//! condition holds or the timeout expires; every notification re-evaluates the condition.

use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// See the module header.
#[derive(Debug, Default)]
#[repr(C)]
pub struct EventCount {
    sequence: AtomicU32,
    waiters: AtomicU32,
    #[cfg(loom)]
    model: model::Futex,
}

impl EventCount {
    /// An event count without waiters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes all waiters, to re-evaluate their conditions. Call it after publishing the word.
    #[inline]
    pub fn notify(&self) {
        // SYNC: event-published. Orders the caller's publishing store before the load of `waiters`;
        // pairs with the fence in `wait`, which orders the increment of `waiters` before the
        // evaluation of the condition.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // SYNC: event-sequence (release) pairs with the acquire in `wait`: a waiter that sees the
        // new count sees the word.
        self.sequence.fetch_add(1, Ordering::Release);
        self.futex_wake();
    }

    /// Waits until `condition` holds or `timeout` expires; returns whether it holds.
    ///
    /// The condition runs on this thread at the start and after each notification. It reads what
    /// other processes publish by an acquire load.
    pub fn wait(&self, mut condition: impl FnMut() -> bool, timeout: Duration) -> bool {
        if condition() {
            return true;
        }
        // `None`: beyond the range of the clock.
        let end = Instant::now().checked_add(timeout);
        let _waiter = Waiter::new(&self.waiters);
        loop {
            // SYNC: event-sequence (acquire) pairs with the release in `wake`.
            let remembered = self.sequence.load(Ordering::Acquire);
            // SYNC: event-published. Pairs with the fence in `notify`.
            fence(Ordering::SeqCst);
            if condition() {
                return true;
            }
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            self.futex_wait(remembered, left);
        }
    }

    /// Number of waiting processes, plus those killed while they waited.
    pub fn waiters(&self) -> u32 {
        self.waiters.load(Ordering::Relaxed)
    }

    #[cfg(not(loom))]
    fn futex_wake(&self) {
        use rustix::thread::futex;
        // Waking fails only for addresses that are not mapped, which a reference rules out.
        let _ = futex::wake(&self.sequence, futex::Flags::empty(), i32::MAX as u32);
    }

    #[cfg(not(loom))]
    fn futex_wait(&self, remembered: u32, limit: Duration) {
        use rustix::thread::futex;
        let limit = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // Woken, changed, interrupted by a signal or timed out: `wait` evaluates again in all
        // cases.
        let _ = futex::wait(&self.sequence, futex::Flags::empty(), remembered, Some(&limit));
    }

    #[cfg(loom)]
    fn futex_wake(&self) {
        self.model.wake();
    }

    #[cfg(loom)]
    fn futex_wait(&self, remembered: u32, _limit: Duration) {
        self.model.wait(|| self.sequence.load(Ordering::Relaxed) == remembered);
    }
}

/// Counts as a waiter while it lives, also through a panic of the condition.
struct Waiter<'a>(&'a AtomicU32);

impl<'a> Waiter<'a> {
    fn new(waiters: &'a AtomicU32) -> Self {
        waiters.fetch_add(1, Ordering::Relaxed);
        Self(waiters)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // After a panic of loom itself (a deadlock) there is no model to count in.
        if cfg!(loom) && std::thread::panicking() {
            return;
        }
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A futex in loom's terms: comparing and falling asleep are one atomic step.
#[cfg(loom)]
mod model {
    use crate::sync::{Condvar, Mutex, wait};

    #[derive(Debug)]
    pub(super) struct Futex {
        bucket: Mutex<()>,
        sleepers: Condvar,
    }

    impl Default for Futex {
        fn default() -> Self {
            Self { bucket: Mutex::new(()), sleepers: Condvar::new() }
        }
    }

    impl Futex {
        pub(super) fn wait(&self, unchanged: impl Fn() -> bool) {
            let guard = self.bucket.lock().expect("no thread panics in the model");
            if unchanged() {
                drop(wait(&self.sleepers, guard));
            }
        }

        pub(super) fn wake(&self) {
            let _guard = self.bucket.lock().expect("no thread panics in the model");
            self.sleepers.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_condition_that_holds_is_not_waited_for() {
        let events = EventCount::new();
        assert!(events.wait(|| true, Duration::ZERO));
        assert_eq!(events.waiters(), 0);
    }

    #[test]
    fn the_wait_ends_when_the_time_is_over() {
        let events = EventCount::new();
        assert!(!events.wait(|| false, Duration::from_millis(3)));
        assert_eq!(events.waiters(), 0);
    }

    #[test]
    fn every_published_value_is_seen_without_a_time_limit() {
        let both = Arc::new((EventCount::new(), EventCount::new(), AtomicU64::new(0), AtomicU64::new(0)));
        let other = Arc::clone(&both);
        let never = Duration::from_secs(3600);
        let echo = std::thread::spawn(move || {
            let (there, back, ball, answer) = &*other;
            for turn in 1..=20_000 {
                there.wait(|| ball.load(Ordering::Acquire) == turn, never);
                answer.store(turn, Ordering::Release);
                back.notify();
            }
        });
        let (there, back, ball, answer) = &*both;
        for turn in 1..=20_000 {
            ball.store(turn, Ordering::Release);
            there.notify();
            back.wait(|| answer.load(Ordering::Acquire) == turn, never);
        }
        echo.join().unwrap();
        assert_eq!((there.waiters(), back.waiters()), (0, 0));
    }

    #[test]
    fn a_panic_in_the_condition_leaves_no_waiter() {
        let events = EventCount::new();
        let mut looks = 0;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            events.wait(
                || {
                    looks += 1;
                    assert!(looks < 2, "on purpose");
                    false
                },
                Duration::from_secs(3600),
            )
        }));
        assert!(result.is_err());
        assert_eq!(events.waiters(), 0);
    }
}
