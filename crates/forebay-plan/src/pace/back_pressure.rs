//! The backpressure of a rank: whether one more step may be filled, and whether a thread is woken
//! for it.

/// The batch buffers of a rank, and what is done with them.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, not a state in disguise")]
pub struct BufferUse {
    /// All buffers.
    pub buffers: usize,
    /// Those that neither a claim nor the user holds.
    pub free: usize,
    /// Steps that are being filled, or are filled and not taken.
    pub in_work: usize,
    /// The user has held all buffers at once: batches without a buffer lie in private memory.
    pub keeps_all: bool,
    /// The script waits for a batch.
    pub starving: bool,
    /// The thread of the script fills what it needs itself.
    pub fills_in_caller: bool,
}

impl BufferUse {
    /// Whether one more step may be filled: there are never more in work than buffers, and one
    /// without a buffer only where the script would block its own loader.
    #[must_use]
    pub fn may_fill(&self) -> bool {
        let is_stuck = self.starving && self.in_work == 0;
        self.in_work < self.buffers && (self.free > 0 || self.keeps_all || is_stuck)
    }

    /// Whether it is worth waking a thread that may fill one more: the script waits, or half the
    /// buffers can be filled at once.
    ///
    /// A wake-up costs the consumer more than all else in taking a batch (10 to 20 us on an idle
    /// core), so not each buffer causes one; meanwhile the consumer uses the other half.
    #[must_use]
    pub fn is_worth_a_wake_up(&self) -> bool {
        (self.starving || self.keeps_all || self.free * 2 >= self.buffers) && !self.fills_in_caller
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: BufferUse = BufferUse {
        buffers: 4,
        free: 4,
        in_work: 0,
        keeps_all: false,
        starving: false,
        fills_in_caller: false,
    };

    #[test]
    fn no_more_steps_are_in_work_than_there_are_buffers() {
        for (facts, expected) in [
            (IDLE, true),
            (BufferUse { free: 1, in_work: 3, ..IDLE }, true),
            (BufferUse { free: 0, in_work: 4, starving: true, keeps_all: true, ..IDLE }, false),
            // The user holds all others.
            (BufferUse { free: 0, in_work: 1, ..IDLE }, false),
            (BufferUse { free: 0, in_work: 1, starving: true, ..IDLE }, false),
            (BufferUse { free: 0, starving: true, ..IDLE }, true),
            (BufferUse { free: 0, in_work: 3, keeps_all: true, ..IDLE }, true),
        ] {
            assert_eq!(facts.may_fill(), expected, "{facts:?}");
        }
    }

    #[test]
    fn threads_are_woken_for_half_of_the_buffers_or_a_script_that_waits() {
        for (facts, expected) in [
            (IDLE, true),
            (BufferUse { free: 2, ..IDLE }, true),
            (BufferUse { free: 1, ..IDLE }, false),
            (BufferUse { free: 1, starving: true, ..IDLE }, true),
            (BufferUse { free: 0, keeps_all: true, ..IDLE }, true),
            (BufferUse { starving: true, fills_in_caller: true, ..IDLE }, false),
        ] {
            assert_eq!(facts.is_worth_a_wake_up(), expected, "{facts:?}");
        }
    }
}
