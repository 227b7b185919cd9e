//! Threads that share numbered parts of work; the calling thread is one of them.
//!
//! It also polls the caller between its parts, and ends the work when it is interrupted. Of several
//! failures that of the smallest number is returned.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forebay_image::ImageDecoder;

use crate::error::Error;
use crate::host::Host;

/// How often the caller is polled: often enough for Ctrl-C, and rarely enough to cost nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Parts after which the clock is read: they take about a microsecond where storage is fast.
const PARTS_PER_POLL: usize = 8;

/// Memory of a thread.
#[derive(Default)]
pub(super) struct ThreadMemory {
    /// What was read.
    pub(super) read: Vec<u8>,
    /// What was decoded.
    pub(super) decoded: Vec<u8>,
    /// What decodes images.
    pub(super) images: ImageDecoder,
}

/// The first `length` bytes of memory that is kept from use to use; what they hold is not said.
pub(super) fn first_bytes(memory: &mut Vec<u8>, length: usize) -> &mut [u8] {
    if memory.len() < length {
        memory.resize(length, 0);
    }
    &mut memory[..length]
}

/// Calls `work` with each number below `parts`, in ascending order, in up to `threads` threads.
pub(super) fn in_threads(
    parts: usize,
    threads: usize,
    caller: &dyn Host,
    work: impl Fn(usize, &mut ThreadMemory) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let next = AtomicUsize::new(0);
    let stopped = AtomicBool::new(false);
    let failure: Mutex<Option<(usize, Error)>> = Mutex::default();
    let fail = |part: usize, error: Error| {
        let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.as_ref().is_none_or(|(earlier, _)| part < *earlier) {
            *failure = Some((part, error));
        }
        stopped.store(true, Ordering::Relaxed);
    };
    // Does one part; false when there is no more to do.
    let step = |memory: &mut ThreadMemory| {
        if stopped.load(Ordering::Relaxed) {
            return false;
        }
        let part = next.fetch_add(1, Ordering::Relaxed);
        if part >= parts {
            return false;
        }
        let done = catch_unwind(AssertUnwindSafe(|| work(part, memory)));
        match done.unwrap_or(Err(Error::Panicked)) {
            Ok(()) => true,
            Err(error) => {
                fail(part, error);
                false
            }
        }
    };
    let running = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let here = std::thread::current();
        for number in 1..threads.min(parts) {
            let (here, running, step) = (here.clone(), &running, &step);
            let run = move || {
                let mut memory = ThreadMemory::default();
                while step(&mut memory) {}
                running.fetch_sub(1, Ordering::Release);
                here.unpark();
            };
            running.fetch_add(1, Ordering::Relaxed);
            let thread = std::thread::Builder::new().name(format!("forebay-read-{number}"));
            // At a limit of threads, fewer do it.
            if thread.spawn_scoped(scope, run).is_err() {
                running.fetch_sub(1, Ordering::Relaxed);
                break;
            }
        }
        let mut memory = ThreadMemory::default();
        let mut polled = Instant::now();
        let mut poll = || {
            if polled.elapsed() >= POLL_INTERVAL {
                polled = Instant::now();
                if caller.interrupted() {
                    fail(0, Error::Interrupted);
                }
            }
        };
        let mut parts = 0_usize;
        while step(&mut memory) {
            parts += 1;
            if parts.is_multiple_of(PARTS_PER_POLL) {
                poll();
            }
        }
        while running.load(Ordering::Acquire) > 0 {
            std::thread::park_timeout(POLL_INTERVAL);
            poll();
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::NoHost;
    use std::path::Path;

    #[test]
    fn every_part_is_done_once_by_any_number_of_threads() {
        for threads in [0, 1, 2, 7] {
            for parts in [0, 1, 5, 100] {
                let done: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                let work = |part: usize, _: &mut ThreadMemory| {
                    done[part].fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                in_threads(parts, threads, &NoHost, work).unwrap();
                assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn of_several_failures_the_first_is_returned_and_a_panic_is_one() {
        let fail = |seconds| Err(Error::Stalled { seconds, what: String::new() });
        let found = in_threads(50, 3, &NoHost, |part, _| fail(part as u64));
        assert!(matches!(found, Err(Error::Stalled { seconds: 0, .. })), "{found:?}");
        assert!(matches!(in_threads(5, 2, &NoHost, |_, _| panic!("on purpose")), Err(Error::Panicked)));
    }

    struct InterruptingHost;

    impl Host for InterruptingHost {
        fn interrupted(&self) -> bool {
            true
        }

        fn find_structure(&self, _: &Path, _: &forebay_format::OpenOptions) -> Option<Vec<u8>> {
            None
        }
    }

    #[test]
    fn an_interrupted_caller_ends_the_work_between_two_parts() {
        for threads in [1, 3] {
            let done = AtomicUsize::new(0);
            let found = in_threads(usize::MAX, threads, &InterruptingHost, |_, _| {
                done.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            });
            assert!(matches!(found, Err(Error::Interrupted)));
            assert!(done.into_inner() > 0);
        }
    }
}
