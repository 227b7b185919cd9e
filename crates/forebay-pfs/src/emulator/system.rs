//! The few system calls that have no safe wrapper: real-time scheduling and waiting for signals.
#![allow(unsafe_code)]
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

/// Real-time priority of the threads that serve requests: above everything ordinary, below the kernel's own threads.
const PRIORITY: libc::c_int = 20;

/// Gives the calling thread, and those that it starts, precedence over ordinary threads.
///
/// Answers whether that was allowed; without it replies are later on a busy machine (four times at the 99th percentile).
pub(crate) fn take_precedence() -> bool {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the pointer is to a live value of the type that the call reads; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}

/// Gives that precedence back: for threads that may work for long.
pub(crate) fn yield_precedence() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: as above. Going back to ordinary scheduling is always allowed, so the result says nothing.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
}

/// SIGTERM and SIGINT, held back from the calling thread and all that it starts, to be waited for like a file.
///
/// Dropping it restores the calling thread's mask.
pub(crate) struct EndSignals {
    file: File,
    before: libc::sigset_t,
}

impl EndSignals {
    pub(crate) fn hold() -> io::Result<EndSignals> {
        let mut wanted = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initialises `wanted` before it is read; `pthread_sigmask` initialises `before` when it succeeds, and it
        // is not read otherwise; a descriptor that `signalfd` returns is ours alone.
        unsafe {
            libc::sigemptyset(wanted.as_mut_ptr());
            libc::sigaddset(wanted.as_mut_ptr(), libc::SIGTERM);
            libc::sigaddset(wanted.as_mut_ptr(), libc::SIGINT);
            let failed = libc::pthread_sigmask(libc::SIG_BLOCK, wanted.as_ptr(), before.as_mut_ptr());
            if failed != 0 {
                return Err(io::Error::from_raw_os_error(failed));
            }
            let before = before.assume_init();
            let descriptor = libc::signalfd(-1, wanted.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                let error = io::Error::last_os_error();
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
                return Err(error);
            }
            Ok(EndSignals { file: File::from_raw_fd(descriptor), before })
        }
    }
}

impl AsFd for EndSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for EndSignals {
    fn drop(&mut self) {
        // Whatever came is taken first, else it would be delivered now, after it has done its work.
        let mut taken = [0; 128];
        while matches!(io::Read::read(&mut self.file, &mut taken), Ok(count) if count > 0) {}
        // SAFETY: `before` was filled in by the call that held the signals back.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
