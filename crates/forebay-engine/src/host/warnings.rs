//! When a user is warned of a wait: after a while, then ever more rarely.

use std::time::Duration;

/// After how long the user is told what is being waited for, unless half the limit is shorter.
pub(crate) const STALL_WARNING: Duration = Duration::from_secs(10);

/// When the user is told of a wait: after a while, and then ever more rarely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Warnings {
    next: Duration,
}

impl Warnings {
    /// Warnings of a wait whose limit is `limit`, or would be if storage were waited for.
    pub(crate) fn before(limit: Duration) -> Self {
        Self { next: STALL_WARNING.min(limit / 2) }
    }

    /// Whether to tell now, where the wait has lasted for `elapsed`.
    pub(crate) fn is_due(&mut self, elapsed: Duration) -> bool {
        if elapsed < self.next {
            return false;
        }
        self.next = elapsed * 2;
        true
    }
}
