//! How long reads wait for copies to tiers, and at which pace copies are written.
//!
//! - A read that is to be copied needs memory for the copy. It waits long for that only if no rank
//!   waits for its bytes.
//! - Pieces that another process copies are waited for, rather than read again.
//! - The threads that write give way to reads of the level that they write to: they rest after each
//!   request for as long as it took.
//! - After each part that is written, its write-back begins, and the part before must reach the
//!   device. So a process has about two parts of dirty pages on a level.

use std::time::Duration;

/// Threads of a process that write: one, as each more would take a core from the ranks.
pub const COPY_THREADS: usize = 1;

/// Length of a part of dirty pages \[bytes\]: several requests of the largest size that devices
/// take, and little memory.
pub const DIRTY_PART_BYTES: u64 = 8 << 20;

/// Longest wait for pieces that another process is copying.
pub const WAIT_FOR_OTHERS: Duration = Duration::from_millis(200);

/// Interval between two looks at them.
pub const LOOK_AT_OTHERS_EVERY: Duration = Duration::from_micros(500);

/// Interval between two looks for free memory for a copy.
pub const LOOK_FOR_BUFFER_EVERY: Duration = Duration::from_millis(1);

/// Longest wait for memory, and while a rank waits for the bytes: then the writer only gets the
/// time to end a burst.
const WAIT_FOR_BUFFER: Duration = Duration::from_secs(1);
const SHORT_WAIT_FOR_BUFFER: Duration = Duration::from_millis(5);

/// Longest rest after a request: one that took seconds must not stop the copies for as long.
const MAX_REST: Duration = Duration::from_millis(20);

/// How long a read waits for memory for its copy. `has_time`: no rank waits for its bytes yet.
#[must_use]
pub fn buffer_wait(has_time: bool) -> Duration {
    if has_time { WAIT_FOR_BUFFER } else { SHORT_WAIT_FOR_BUFFER }
}

/// How long a thread rests after a request that `took` so long, while the program reads the level.
#[must_use]
pub fn rest_after(took: Duration) -> Duration {
    took.min(MAX_REST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_wait_longer_where_no_rank_waits_for_them() {
        assert_eq!(buffer_wait(true), Duration::from_secs(1));
        assert_eq!(buffer_wait(false), Duration::from_millis(5));
    }

    #[test]
    fn a_rest_is_as_long_as_the_request_up_to_a_bound() {
        for (took, expected) in [(0, 0), (7, 7), (20, 20), (3000, 20)] {
            assert_eq!(rest_after(Duration::from_millis(took)), Duration::from_millis(expected));
        }
    }
}
