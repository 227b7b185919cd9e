//! Detects that this process is a forked child.
//!
//! A child made by `fork` without `exec` has the parent's memory, descriptors and objects, but none
//! of its threads, and the other ranks do not know it. So every object of a loader stores the
//! [`generation`] in which it was created. A `pthread_atfork` handler increments the generation in
//! each child, and [`in_forked_child`] compares. The same handler closes descriptors that must not
//! stay open in a child ([`ClosedInChild`]).
//!
//! A bare `clone` system call does not run such handlers; no library that Python programs use makes
//! it without `exec`.

use std::os::fd::RawFd;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// 0 until the handler is installed.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Number of forks among the ancestors of this process since the first call, plus one.
#[inline]
pub fn generation() -> u64 {
    match GENERATION.load(Ordering::Relaxed) {
        0 => install(),
        generation => generation,
    }
}

/// Whether this process was forked after [`generation`] returned `remembered`.
#[inline]
pub fn in_forked_child(remembered: u64) -> bool {
    generation() != remembered
}

#[cold]
fn install() -> u64 {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: `grow` has the signature of pthread_atfork and lives as long as the program. It
        // uses only atomics and close(2), which the child of a threaded process may.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(grow)) };
        assert_eq!(refused, 0, "pthread_atfork needs a few bytes of memory");
        GENERATION.store(1, Ordering::Relaxed);
    });
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn grow() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    for place in &CLOSED_IN_CHILDREN {
        let descriptor = place.swap(FREE, Ordering::Relaxed);
        if descriptor != FREE {
            // SAFETY: close(2) is async-signal-safe. The owner of the descriptor is on the stack of
            // a thread of the parent, which the child does not have, so nothing closes it twice.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Maximum number of descriptors; each link to another node has one.
const PLACES: usize = 1024;
const FREE: RawFd = -1;
static CLOSED_IN_CHILDREN: [AtomicI32; PLACES] = [const { AtomicI32::new(FREE) }; PLACES];

/// Closes a descriptor in forked children, as long as this lives.
///
/// A connection that a child keeps open does not end with this process.
///
/// The owner of the descriptor must live on the stack of a thread that never forks, so that the
/// child has no owner.
#[derive(Debug)]
pub struct ClosedInChild(Option<usize>);

impl ClosedInChild {
    /// Registers the descriptor. Beyond the maximum it stays open in children, which only delays
    /// the detection of a death.
    pub fn new(descriptor: RawFd) -> Self {
        generation(); // the handler is installed
        let take = |place: &AtomicI32| {
            place.compare_exchange(FREE, descriptor, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        Self(CLOSED_IN_CHILDREN.iter().position(take))
    }
}

impl Drop for ClosedInChild {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            CLOSED_IN_CHILDREN[place].store(FREE, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `body` in a forked child and returns its exit code.
    fn exit_code_of_child(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child only runs `body`, which uses atomics and forks, and leaves by `_exit`.
        match unsafe { libc::fork() } {
            -1 => panic!("fork: {}", std::io::Error::last_os_error()),
            // SAFETY: ends the child without running destructors of the parent.
            0 => unsafe { libc::_exit(body()) },
            child => {
                let mut status = 0;
                // SAFETY: waits for the child that was just made; `status` is valid.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert!(libc::WIFEXITED(status), "status {status}");
                libc::WEXITSTATUS(status)
            }
        }
    }

    #[test]
    fn a_child_knows_that_it_is_one_and_so_does_its_child() {
        let here = generation();
        let code = exit_code_of_child(|| {
            let there = generation();
            let below = exit_code_of_child(|| i32::from(in_forked_child(there) && in_forked_child(here)));
            i32::from(in_forked_child(here)) + 2 * below
        });
        assert_eq!(code, 3);
        assert!(!in_forked_child(here), "the parent is still itself");
    }
}
