//! What the daemon of `forebay run` copies: it follows what programs read, and reads little itself.
//!
//! A copy is begun when a program opens a file. Blocks that programs have read are copied from the
//! page cache. Once they read no more, the daemon reads the rest, if that is a small part of what
//! programs asked for; else the copy is given up.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Threads of a run that read sources.
pub const COPIERS: usize = 4;

/// Interval between two looks of the daemon while something happens.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The same while nothing does, and how long nothing has to.
pub const LOOK_IDLE_EVERY: Duration = Duration::from_millis(20);

/// Most copies under way.
const MAX_COPIES: usize = 64;

/// Copies that reach their device while the next are made.
const FLUSHING: usize = 16;

/// How long a copy may take to reach its device before that is waited for.
const FLUSH_AFTER: Duration = Duration::from_millis(20);

/// How long nothing of a file comes into the page cache before its programs have read what they
/// want.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same where nothing says what is in the page cache.
const PATIENCE_UNKNOWN: Duration = Duration::from_millis(100);

/// Part of what programs asked for that the daemon may read beside it.
const FETCHED_SHARE: u64 = 20;

/// What the daemon reads of the sources for copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fetch {
    /// What programs have read, from the page cache, and little more.
    #[default]
    Follow,
    /// All of a file, once it is opened.
    Whole,
    /// Nothing that is not in the page cache.
    None,
}

impl Fetch {
    /// Whether a copy is read as a whole at once. One that is staged is.
    #[must_use]
    pub fn reads_whole(self, is_staged: bool) -> bool {
        is_staged || self == Self::Whole
    }

    /// Whether `bytes` may be read that no program has read, or that have left the memory: beside
    /// `fetched_bytes` before, and `requested_bytes` that programs asked for.
    #[must_use]
    pub fn may_read(self, bytes: u64, fetched_bytes: u64, requested_bytes: u64) -> bool {
        self != Self::None && fetched_bytes + bytes <= requested_bytes / FETCHED_SHARE
    }
}

/// Whether another copy may begin beside those under way.
#[must_use]
pub fn may_begin_copy(under_way: usize) -> bool {
    under_way < MAX_COPIES
}

/// Whether another file may be staged, beside files that wait and copies under way.
#[must_use]
pub fn may_stage(waiting: usize, under_way: usize) -> bool {
    waiting + under_way < 4 * COPIERS
}

/// How long the daemon waits until it looks again, if no thread ends. `acted_before` is how long
/// ago it last did something, `under_way` the number of copies.
#[must_use]
pub fn look_again_after(acted_before: Duration, under_way: usize) -> Duration {
    let is_idle = acted_before > LOOK_IDLE_EVERY && under_way == 0;
    if is_idle { LOOK_IDLE_EVERY } else { LOOK_EVERY }
}

/// What becomes of a copy after a look at its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStep {
    /// All is written: it goes to its device, and then programs get it.
    Finish,
    /// Programs may read on.
    Wait,
    /// A thread reads what is missing.
    ReadRest,
    /// It is given up.
    GiveUp,
}

/// Decides it for a copy that lacks `missing_bytes`. `may_read` is [`Fetch::may_read`] of them.
pub fn copy_step(missing_bytes: u64, is_patient: bool, may_read: impl FnOnce(u64) -> bool) -> CopyStep {
    match missing_bytes {
        0 => CopyStep::Finish,
        _ if is_patient => CopyStep::Wait,
        _ if may_read(missing_bytes) => CopyStep::ReadRest,
        _ => CopyStep::GiveUp,
    }
}

/// Whether the programs of a file, of which nothing has come into the page cache `for_long`, are
/// given more time to read. `is_residency_known`: the system says what is there. `is_finishing`:
/// the run is to end.
#[must_use]
pub fn is_patient(for_long: Duration, is_residency_known: bool, is_finishing: bool) -> bool {
    for_long < if is_residency_known { PATIENCE } else { PATIENCE_UNKNOWN } && !is_finishing
}

/// Whether to wait for the oldest of `flushing` copies, which has been on its way to its device
/// `for_long`.
#[must_use]
pub fn is_flush_due(flushing: usize, for_long: Duration) -> bool {
    flushing > FLUSHING || for_long >= FLUSH_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_reads_a_twentieth_of_what_programs_asked_for() {
        for (fetch, bytes, fetched_bytes, requested_bytes, expected) in [
            (Fetch::Follow, 5, 0, 100, true),
            (Fetch::Follow, 6, 0, 100, false),
            (Fetch::Follow, 3, 2, 100, true),
            (Fetch::Follow, 3, 3, 100, false),
            (Fetch::Whole, 5, 0, 100, true),
            (Fetch::Whole, 6, 0, 100, false),
            (Fetch::None, 0, 0, 100, false),
        ] {
            let found = fetch.may_read(bytes, fetched_bytes, requested_bytes);
            assert_eq!(found, expected, "{fetch:?}, {bytes} beside {fetched_bytes} of {requested_bytes}");
        }
    }

    #[test]
    fn a_copy_is_read_whole_where_the_user_says_so_or_it_is_staged() {
        for (fetch, is_staged, expected) in [
            (Fetch::Follow, false, false),
            (Fetch::None, false, false),
            (Fetch::Whole, false, true),
            (Fetch::Follow, true, true),
            (Fetch::None, true, true),
        ] {
            assert_eq!(fetch.reads_whole(is_staged), expected, "{fetch:?}, {is_staged}");
        }
    }

    #[test]
    fn programs_have_a_second_to_read_on_and_less_where_nothing_shows_what_they_read() {
        for (for_ms, is_residency_known, is_finishing, expected) in [
            (999, true, false, true),
            (1000, true, false, false),
            (99, false, false, true),
            (100, false, false, false),
            (0, true, true, false),
        ] {
            let found = is_patient(Duration::from_millis(for_ms), is_residency_known, is_finishing);
            assert_eq!(found, expected, "{for_ms} ms, {is_residency_known}, {is_finishing}");
        }
    }

    #[test]
    fn few_copies_are_under_way_and_few_on_their_way_to_a_device() {
        assert!(may_begin_copy(63) && !may_begin_copy(64));
        for (flushing, for_ms, expected) in [(1, 19, false), (1, 20, true), (16, 0, false), (17, 0, true)] {
            assert_eq!(
                is_flush_due(flushing, Duration::from_millis(for_ms)),
                expected,
                "{flushing}, {for_ms}"
            );
        }
    }
    #[test]
    fn a_copy_waits_for_programs_and_then_is_read_or_given_up() {
        for (missing_bytes, is_patient, may_read, expected) in [
            (0, false, false, CopyStep::Finish),
            (0, true, true, CopyStep::Finish),
            (7, true, true, CopyStep::Wait),
            (7, true, false, CopyStep::Wait),
            (7, false, true, CopyStep::ReadRest),
            (7, false, false, CopyStep::GiveUp),
        ] {
            let found = copy_step(missing_bytes, is_patient, |bytes| {
                assert_eq!(bytes, missing_bytes);
                may_read
            });
            assert_eq!(found, expected, "{missing_bytes}, {is_patient}, {may_read}");
        }
    }

    #[test]
    fn the_daemon_looks_often_while_it_has_something_to_do() {
        for (acted_before_ms, under_way, expected_ms) in
            [(0, 0, 5), (20, 0, 5), (21, 0, 20), (21, 1, 5), (1000, 64, 5), (1000, 0, 20)]
        {
            let found = look_again_after(Duration::from_millis(acted_before_ms), under_way);
            assert_eq!(found, Duration::from_millis(expected_ms), "{acted_before_ms} ms, {under_way}");
        }
    }

    #[test]
    fn few_files_are_staged_at_a_time() {
        for (waiting, under_way, expected) in [(0, 0, true), (15, 0, true), (7, 8, true), (8, 8, false)] {
            assert_eq!(may_stage(waiting, under_way), expected, "{waiting}, {under_way}");
        }
    }
}
