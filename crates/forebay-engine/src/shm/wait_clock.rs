//! How long a wait has lasted: what counts towards its limit, and when the user is told of it.

use std::time::Duration;

use crate::shm::stall::Fault;

/// The most time that counts at once: a longer look means that this process did not run itself.
const AT_ONCE: Duration = Duration::from_secs(1);

/// How long a rank has waited for what may become an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitClock {
    counted: Duration,
    /// Up to when it was looked at [ns of the monotonic clock].
    until_ns: u64,
}

impl WaitClock {
    /// A wait that begins now.
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { counted: Duration::ZERO, until_ns: now_ns }
    }

    /// Counts the time since the last look where the fault is storage, or unknown; returns what has
    /// been counted so far.
    pub(crate) fn count(&mut self, now_ns: u64, fault: Fault) -> Duration {
        let (from, to) = match fault {
            // A process that does not run may have its answer already: only as long as it was known
            // to run.
            Fault::Storage { since_ns, until_ns, .. } => (since_ns.max(self.until_ns), until_ns.min(now_ns)),
            Fault::Unknown { until_ns } => (self.until_ns, until_ns.min(now_ns)),
            Fault::Rank { .. } | Fault::OtherNodes => (now_ns, now_ns),
        };
        self.counted += Duration::from_nanos(to.saturating_sub(from)).min(AT_ONCE);
        self.until_ns = self.until_ns.max(to);
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::warnings::Warnings;
    use crate::shm::stall::Who;

    const SECOND: u64 = 1_000_000_000;

    fn storage(who: Who, since_ns: u64, until_ns: u64) -> Fault {
        Fault::Storage { who, since_ns, until_ns }
    }

    #[test]
    fn only_stalled_storage_and_the_unexplained_count() {
        // One look after the other, 200 ms apart: what it finds, given the time, and what is
        // counted in the end [ms].
        type Case = (&'static str, fn(u64) -> Fault, u64);
        let read = |since, until| storage(Who::Reader(0), since, until);
        let cases: [Case; 6] = [
            ("storage all the time", |now| storage(Who::Reader(0), 5, now), 2000),
            ("nothing explains it", |now| Fault::Unknown { until_ns: now }, 2000),
            ("a slow rank", |_| Fault::Rank { local: 1, runs: true }, 0),
            ("other nodes", |_| Fault::OtherNodes, 0),
            (
                "a read in a process that ran for the first second",
                |_| storage(Who::Reader(0), 5, SECOND + 100),
                1000,
            ),
            ("every read began just now", |now| storage(Who::Reader(0), now - SECOND / 10, now), 1000),
        ];
        for (name, fault, expected_ms) in cases {
            let mut waited = WaitClock::new(100);
            let mut counted = Duration::ZERO;
            for look in 1..=10 {
                let now = 100 + look * SECOND / 5;
                counted = waited.count(now, fault(now));
            }
            assert_eq!(counted.as_millis(), u128::from(expected_ms), "{name}");
        }
        // A stop of this very process, and one of the reader's that ends.
        let mut waited = WaitClock::new(0);
        assert_eq!(waited.count(60 * SECOND, read(0, 60 * SECOND)), AT_ONCE);
        assert_eq!(waited.count(61 * SECOND, Fault::Rank { local: 1, runs: false }), AT_ONCE);
        assert_eq!(waited.count(62 * SECOND, read(0, 62 * SECOND)), 2 * AT_ONCE);
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
