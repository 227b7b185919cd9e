//! A bell in shared memory: waking processes that wait for a word to change, at no cost when nobody does.
//!
//! The word is anything else in shared memory. Who changes it rings afterwards; who waits for it gives [`Bell::wait`] a
//! condition that reads it. In order:
//!
//! 1. ring: *publish the word* (before), full fence, look at `waiting`; only when somebody waits, count `rings` up and
//!    wake everybody by a futex (not a private one, for the memory is shared);
//! 2. wait: count `waiting` up, then in a loop: remember `rings`, full fence, *look at the condition*, and sleep as long
//!    as `rings` is what was remembered.
//!
//! The two fences make it impossible that the ringer misses the waiter *and* the waiter misses the word. A ring that
//! comes between the look and the sleep changes `rings`, so the sleep does not begin. `tests/loom_bell.rs` checks this
//! in every interleaving; there a futex is a lock and a condition variable.
//!
//! A process that is killed while it waits leaves `waiting` one too high: rings stay right and cost a system call.
//! All zeros is a valid bell. Waits end early only when the condition holds or the time is over, but the condition is
//! looked at on every ring, whatever it was for.

use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// See the module header.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Bell {
    rings: AtomicU32,
    waiting: AtomicU32,
    #[cfg(loom)]
    model: model::Futex,
}

impl Bell {
    /// A bell that nobody waits for.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes everybody whose condition may hold now. To be called after the word was published.
    #[inline]
    pub fn ring(&self) {
        // SYNC: bell-published. Orders the caller's publishing store before the load of `waiting`; pairs with the fence
        // in `wait`, which orders the count of `waiting` before the look at the condition.
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // SYNC: bell-rings (release) pairs with the acquire in `wait`: who sees the new count sees the word.
        self.rings.fetch_add(1, Ordering::Release);
        self.futex_wake();
    }

    /// Waits until `condition` holds or `timeout` is over; returns whether it holds.
    ///
    /// The condition runs on this thread at the start and after every ring. It reads what other processes publish by an
    /// acquire load.
    pub fn wait(&self, mut condition: impl FnMut() -> bool, timeout: Duration) -> bool {
        if condition() {
            return true;
        }
        // `None`: so far away that the clock cannot say it.
        let end = Instant::now().checked_add(timeout);
        let _waiter = Waiter::new(&self.waiting);
        loop {
            // SYNC: bell-rings (acquire) pairs with the release in `wake`.
            let remembered = self.rings.load(Ordering::Acquire);
            // SYNC: bell-published. Pairs with the fence in `ring`.
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

    /// Processes that wait now, and processes that were killed while they waited.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    #[cfg(not(loom))]
    fn futex_wake(&self) {
        use rustix::thread::futex;
        // Waking fails only for addresses that are not mapped, which a reference rules out.
        let _ = futex::wake(&self.rings, futex::Flags::empty(), i32::MAX as u32);
    }

    #[cfg(not(loom))]
    fn futex_wait(&self, remembered: u32, limit: Duration) {
        use rustix::thread::futex;
        let limit = futex::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // Woken, changed meanwhile, interrupted by a signal, time over: `wait` looks again in all of them.
        let _ = futex::wait(&self.rings, futex::Flags::empty(), remembered, Some(&limit));
    }

    #[cfg(loom)]
    fn futex_wake(&self) {
        self.model.wake();
    }

    #[cfg(loom)]
    fn futex_wait(&self, remembered: u32, _limit: Duration) {
        self.model.wait(|| self.rings.load(Ordering::Relaxed) == remembered);
    }
}

/// Counts itself among the waiting as long as it lives, also through a panic of the condition.
struct Waiter<'a>(&'a AtomicU32);

impl<'a> Waiter<'a> {
    fn new(waiting: &'a AtomicU32) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // A panic of loom itself (it found a dead-lock) leaves no model to count in.
        if cfg!(loom) && std::thread::panicking() {
            return;
        }
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the kernel promises of a futex, in loom's terms: comparing and falling asleep are one step.
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
        let bell = Bell::new();
        assert!(bell.wait(|| true, Duration::ZERO));
        assert_eq!(bell.waiting(), 0);
    }

    #[test]
    fn the_wait_ends_when_the_time_is_over() {
        let bell = Bell::new();
        assert!(!bell.wait(|| false, Duration::from_millis(3)));
        assert_eq!(bell.waiting(), 0);
    }

    #[test]
    fn every_published_value_is_seen_without_a_time_limit() {
        let bells = Arc::new((Bell::new(), Bell::new(), AtomicU64::new(0), AtomicU64::new(0)));
        let other = Arc::clone(&bells);
        let never = Duration::from_secs(3600);
        let echo = std::thread::spawn(move || {
            let (there, back, ball, answer) = &*other;
            for turn in 1..=20_000 {
                there.wait(|| ball.load(Ordering::Acquire) == turn, never);
                answer.store(turn, Ordering::Release);
                back.ring();
            }
        });
        let (there, back, ball, answer) = &*bells;
        for turn in 1..=20_000 {
            ball.store(turn, Ordering::Release);
            there.ring();
            back.wait(|| answer.load(Ordering::Acquire) == turn, never);
        }
        echo.join().unwrap();
        assert_eq!((there.waiting(), back.waiting()), (0, 0));
    }

    #[test]
    fn a_panic_in_the_condition_leaves_no_waiter() {
        let bell = Bell::new();
        let mut looks = 0;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            bell.wait(
                || {
                    looks += 1;
                    assert!(looks < 2, "on purpose");
                    false
                },
                Duration::from_secs(3600),
            )
        }));
        assert!(result.is_err());
        assert_eq!(bell.waiting(), 0);
    }
}
