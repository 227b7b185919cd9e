//! How much of a wait counts towards its limit.

use std::time::Duration;

use crate::shm::stall::StallCause;

/// Maximum time that one check counts: after a longer interval this process itself did not run.
const MAX_COUNTED_AT_ONCE: Duration = Duration::from_secs(1);

/// How long a rank has waited for a cause that may become an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitClock {
    counted: Duration,
    /// Time of the last check [ns of the monotonic clock].
    until_ns: u64,
}

impl WaitClock {
    /// A wait that begins now.
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { counted: Duration::ZERO, until_ns: now_ns }
    }

    /// Counts the time since the last check if the cause is storage or unknown; returns the total.
    pub(crate) fn count(&mut self, now_ns: u64, cause: StallCause) -> Duration {
        let (from, to) = match cause {
            // A stopped process may have its data already: count only while it was known to run.
            StallCause::Storage { since_ns, until_ns, .. } => {
                (since_ns.max(self.until_ns), until_ns.min(now_ns))
            }
            StallCause::Unknown { until_ns } => (self.until_ns, until_ns.min(now_ns)),
            StallCause::Rank { .. } | StallCause::OtherNodes => (now_ns, now_ns),
        };
        self.counted += Duration::from_nanos(to.saturating_sub(from)).min(MAX_COUNTED_AT_ONCE);
        self.until_ns = self.until_ns.max(to);
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::warnings::Warnings;
    use crate::shm::stall::Actor;

    const SECOND: u64 = 1_000_000_000;

    fn storage(actor: Actor, since_ns: u64, until_ns: u64) -> StallCause {
        StallCause::Storage { actor, since_ns, until_ns }
    }

    #[test]
    fn only_stalled_storage_and_the_unexplained_count() {
        // Checks that are 200 ms apart: the cause at a given time, and the counted total [ms].
        type Case = (&'static str, fn(u64) -> StallCause, u64);
        let read = |since, until| storage(Actor::Reader(0), since, until);
        let cases: [Case; 6] = [
            ("storage all the time", |now| storage(Actor::Reader(0), 5, now), 2000),
            ("nothing explains it", |now| StallCause::Unknown { until_ns: now }, 2000),
            ("a slow rank", |_| StallCause::Rank { local: 1, runs: true }, 0),
            ("other nodes", |_| StallCause::OtherNodes, 0),
            (
                "a read in a process that ran for the first second",
                |_| storage(Actor::Reader(0), 5, SECOND + 100),
                1000,
            ),
            ("every read began just now", |now| storage(Actor::Reader(0), now - SECOND / 10, now), 1000),
        ];
        for (name, cause, expected_ms) in cases {
            let mut waited = WaitClock::new(100);
            let mut counted = Duration::ZERO;
            for check in 1..=10 {
                let now = 100 + check * SECOND / 5;
                counted = waited.count(now, cause(now));
            }
            assert_eq!(counted.as_millis(), u128::from(expected_ms), "{name}");
        }
        // A stop of this very process, and one of the reader's that ends.
        let mut waited = WaitClock::new(0);
        assert_eq!(waited.count(60 * SECOND, read(0, 60 * SECOND)), MAX_COUNTED_AT_ONCE);
        assert_eq!(
            waited.count(61 * SECOND, StallCause::Rank { local: 1, runs: false }),
            MAX_COUNTED_AT_ONCE
        );
        assert_eq!(waited.count(62 * SECOND, read(0, 62 * SECOND)), 2 * MAX_COUNTED_AT_ONCE);
    }

    #[test]
    fn warnings_become_rare() {
        for (limit, expected) in [(600, [10, 20, 40, 80, 160]), (12, [6, 12, 24, 48, 96])] {
            let mut warnings = Warnings::before(Duration::from_secs(limit));
            let due = (0..191).filter(|second| warnings.is_due(Duration::from_secs(*second)));
            assert_eq!(due.collect::<Vec<u64>>(), expected);
        }
    }
}
