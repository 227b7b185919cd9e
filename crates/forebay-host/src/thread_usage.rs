//! What a thread has used of its core so far.

use std::mem::MaybeUninit;
use std::time::Duration;

/// Processor time of a thread, and how often it has waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUsage {
    /// Processor time.
    pub busy: Duration,
    /// Waits: changes to another thread that this thread asked for.
    pub waits: u64,
}

impl ThreadUsage {
    /// Of the calling thread; costs half a microsecond.
    ///
    /// Source: getrusage(2), `RUSAGE_THREAD`, whose times grow with the clock tick only, and
    /// `clock_gettime(2)`.
    #[must_use]
    pub fn now() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the call writes the structure, for which zeros are valid as well.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        let busy = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Self { busy: Duration::new(busy.tv_sec as u64, busy.tv_nsec as u32), waits: usage.ru_nvcsw as u64 }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn a_thread_that_sleeps_has_waited_and_one_that_computes_was_busy() {
        let begun = ThreadUsage::now();
        std::thread::sleep(Duration::from_millis(5));
        let slept = ThreadUsage::now();
        assert!(slept.waits > begun.waits);
        let mut sum = 0_u64;
        while ThreadUsage::now().busy < slept.busy + Duration::from_millis(5) {
            sum = (0..1000).fold(sum, |sum, number| black_box(sum + number));
        }
        assert!(black_box(sum) > 0);
    }
}
