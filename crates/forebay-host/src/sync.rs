//! Atomics, locks and fences that loom can replace, to model-check the code that uses them.
//!
//! A normal build uses the standard library's types. Under `--cfg loom` they are loom's, and a test
//! inside `loom::model` runs every interleaving. [`wait`] and [`wait_timeout`] differ between the
//! two: loom has no clock, so under loom a wait never times out. That is the stricter model: code
//! that needs the timeout to make progress has lost a wake-up, and loom reports a deadlock.

use std::time::Duration;

#[cfg(not(loom))]
pub use std::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(loom)]
pub use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

/// Waits for the condition variable. Ignores a poisoned lock.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits for the condition variable, at most `timeout`; the second value is whether it timed out.
///
/// Never times out under loom.
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

/// As in a normal build, but never times out.
#[cfg(loom)]
pub fn wait_timeout<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    _timeout: Duration,
) -> (MutexGuard<'a, T>, bool) {
    (wait(condvar, guard), false)
}
