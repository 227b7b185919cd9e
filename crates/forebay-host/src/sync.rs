//! Atomics, locks and fences behind one door, so that loom can model-check what is built on them.
//!
//! In a normal build these are the standard library's types. Under `--cfg loom` they are loom's,
//! and a test that runs inside `loom::model` sees every interleaving. Waiting goes through [`wait`]
//! and [`wait_timeout`], because the two differ there: loom has no clock, so a wait with a time
//! limit never ends by itself under loom. That is the harsher model: what needs the time limit in
//! order to go on is a lost wake-up, and loom reports it as a dead-lock.

use std::time::Duration;

#[cfg(not(loom))]
pub use std::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(loom)]
pub use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

/// Waits for the condition variable. A panic of another thread while it held the lock does not
/// matter here.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits for the condition variable, at most `timeout`. The second value says whether the time is
/// over.
///
/// Under loom the time is never over.
#[cfg(not(loom))]
pub fn wait_timeout<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> (MutexGuard<'a, T>, bool) {
    let (guard, result) =
        condvar.wait_timeout(guard, timeout).unwrap_or_else(std::sync::PoisonError::into_inner);
    (guard, result.timed_out())
}

/// As in a normal build, but the time is never over.
#[cfg(loom)]
pub fn wait_timeout<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    _timeout: Duration,
) -> (MutexGuard<'a, T>, bool) {
    (wait(condvar, guard), false)
}
