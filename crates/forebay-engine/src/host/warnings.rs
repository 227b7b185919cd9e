//! When a user is warned of a wait: after a while, then ever more rarely.

use std::time::Duration;

/// After how long the user is warned of a wait, unless half the limit is shorter.
pub(crate) const STALL_WARNING: Duration = Duration::from_secs(10);

/// Schedule of the warnings of one wait: each comes after twice the time of the previous one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Warnings {
    next: Duration,
}

impl Warnings {
    /// Warnings of a wait with this limit.
    pub(crate) fn before(limit: Duration) -> Self {
        Self { next: STALL_WARNING.min(limit / 2) }
    }

    /// Whether a warning is due after a wait of `elapsed`.
    pub(crate) fn is_due(&mut self, elapsed: Duration) -> bool {
        if elapsed < self.next {
            return false;
        }
        self.next = elapsed * 2;
        true
    }
}
