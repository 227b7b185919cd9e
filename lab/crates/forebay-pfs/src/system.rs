//! System calls without a safe wrapper: real-time scheduling and waiting for signals.
#![allow(unsafe_code)]
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd};

/// Real-time priority of the threads that serve requests: above ordinary threads, below the
/// kernel's.
const PRIORITY: libc::c_int = 20;

/// Gives the calling thread, and those that it starts, real-time priority, if that is allowed.
///
/// Without it replies are later on a busy machine (four times at the 99th percentile).
pub(crate) fn use_real_time_priority() {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the pointer is to a live value of the type that the call reads; 0 is the calling
    // thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
}

/// Returns to ordinary priority, for work that may take long.
pub(crate) fn use_ordinary_priority() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: as above. Leaving real-time scheduling is always allowed.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
}

/// SIGTERM and SIGINT, blocked in the calling thread and all that it starts, as a descriptor to
/// poll.
///
/// Dropping it restores the mask of the calling thread.
pub(crate) struct TerminationSignals {
    file: File,
    before: libc::sigset_t,
}

impl TerminationSignals {
    pub(crate) fn block() -> io::Result<TerminationSignals> {
        let mut wanted = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initialises `wanted` before it is read. `pthread_sigmask`
        // initialises `before` on success, and it is not read otherwise. No one else owns the
        // descriptor that `signalfd` returns.
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
            Ok(TerminationSignals { file: File::from_raw_fd(descriptor), before })
        }
    }
}

impl AsFd for TerminationSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for TerminationSignals {
    fn drop(&mut self) {
        // Consume pending signals first: unblocking would deliver them a second time.
        let mut taken = [0; 128];
        while matches!(io::Read::read(&mut self.file, &mut taken), Ok(count) if count > 0) {}
        // SAFETY: the call that blocked the signals initialised `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
