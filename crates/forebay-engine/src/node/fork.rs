//! Noticing that this process is a forked child.
//!
//! A child made by `fork` without `exec` has the parent's memory, descriptors and objects, but none of its threads, and
//! it is not the process that the other ranks know. So everything that belongs to a loader remembers the
//! [`generation`] in which it was made; the number grows by one in every child (a handler of `pthread_atfork`), and
//! [`in_forked_child`] compares. Children made by a bare `clone` system call do not run such handlers; no library that
//! Python programs use does that without `exec`.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// 0 until the handler is installed.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// How often the line of processes that leads here has forked since it first asked; never 0.
#[inline]
pub fn generation() -> u64 {
    match GENERATION.load(Ordering::Relaxed) {
        0 => install(),
        generation => generation,
    }
}

/// Whether this process was forked after `remembered` was taken from [`generation`].
#[inline]
pub fn in_forked_child(remembered: u64) -> bool {
    generation() != remembered
}

#[cold]
fn install() -> u64 {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: `grow` has the signature that pthread_atfork wants and lives as long as the program; it only touches
        // an atomic, which is allowed in the child of a process with several threads.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(grow)) };
        assert_eq!(refused, 0, "pthread_atfork needs a few bytes of memory");
        GENERATION.store(1, Ordering::Relaxed);
    });
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn grow() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `body` in a forked child and returns its exit code.
    fn exit_code_of_child(body: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child only runs `body`, which touches atomics and forks at most, and leaves by `_exit`.
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
