//! Turns: of the threads that wait for a connection, one at a time drives it for all of them.
//!
//! How it works, in order:
//! 1. A thread that waits looks at the state under the lock. It returns what it waited for, sleeps,
//!    or takes the driver.
//! 2. The thread with the driver works without the lock. It changes the state by
//!    [`Turns::change`], which wakes the threads that sleep.
//! 3. It puts the driver back and wakes the threads that sleep, of which the first takes it.
//!
//! Promises: a driver is used by one thread at a time, and no thread sleeps while its outcome is
//! there or the driver is free. `tests/loom_turns.rs` checks both in every interleaving.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::PoisonError;
use std::time::Instant;

use forebay_host::sync::{Condvar, Mutex, MutexGuard, wait, wait_timeout};

/// What a thread that waits finds.
#[derive(Debug)]
pub enum Look<T, C> {
    /// What it waited for.
    Done(T),
    /// The connection needs a thread that drives it, with this.
    Drive(C),
    /// The state has to change first.
    Sleep,
}

/// A state that threads wait for, and the driver that changes it.
pub struct Turns<S, D> {
    held: Mutex<Held<S, D>>,
    changed: Condvar,
}

struct Held<S, D> {
    state: S,
    /// `None` while a thread drives.
    driver: Option<D>,
}

impl<S, D> fmt::Debug for Turns<S, D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Turns").finish_non_exhaustive()
    }
}

impl<S, D> Turns<S, D> {
    /// A state, and the driver that the first thread takes.
    pub fn new(state: S, driver: D) -> Self {
        Self { held: Mutex::new(Held { state, driver: Some(driver) }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Held<S, D>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the state in a way that no thread waits for.
    pub fn with<T>(&self, work: impl FnOnce(&mut S) -> T) -> T {
        work(&mut self.lock().state)
    }

    /// Changes the state, and wakes the threads that sleep.
    pub fn change<T>(&self, work: impl FnOnce(&mut S) -> T) -> T {
        let result = self.with(work);
        self.changed.notify_all();
        result
    }

    /// Waits until `look` finds an outcome; `None` after the deadline. `look` is told whether no
    /// thread drives. Where it asks for a drive and no thread does, this thread calls `drive`,
    /// which can end the wait.
    pub fn wait<T, C>(
        &self,
        deadline: Instant,
        mut look: impl FnMut(&S, bool) -> Look<T, C>,
        mut drive: impl FnMut(&mut D, C) -> ControlFlow<T>,
    ) -> Option<T> {
        let mut held = self.lock();
        loop {
            let is_free = held.driver.is_some();
            match look(&held.state, is_free) {
                Look::Done(outcome) => return Some(outcome),
                Look::Drive(with) if is_free => {
                    let mut driver = held.driver.take().expect("no thread drives");
                    drop(held);
                    let flow = drive(&mut driver, with);
                    held = self.lock();
                    held.driver = Some(driver);
                    self.changed.notify_all();
                    if let ControlFlow::Break(outcome) = flow {
                        return Some(outcome);
                    }
                }
                Look::Drive(_) | Look::Sleep => {
                    let left = deadline.checked_duration_since(Instant::now());
                    let left = left.filter(|left| !left.is_zero())?;
                    held = wait_timeout(&self.changed, held, left).0;
                }
            }
        }
    }

    /// Ends the drive, and starts again with another driver. `end` makes the thread that drives
    /// return; once it has, `start` sets the new state.
    pub fn restart<T>(&self, end: impl FnOnce(&mut S), driver: D, start: impl FnOnce(&mut S) -> T) -> T {
        let mut held = self.lock();
        end(&mut held.state);
        while held.driver.is_none() {
            held = wait(&self.changed, held);
        }
        held.driver = Some(driver);
        let result = start(&mut held.state);
        self.changed.notify_all();
        result
    }
}
