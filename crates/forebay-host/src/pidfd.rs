//! Which processes have ended, by their pidfds.
//!
//! A pidfd is made by the process itself and sent to its peers. A process id could denote another
//! process by now, or belong to another pid namespace, and a socket stays open in forked children;
//! neither happens to a pidfd. It becomes readable when the last thread of the process has ended,
//! however it ended.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::error::{HostError, WATCH};

/// This process's own pidfd, for others to watch.
pub fn own_pidfd() -> Result<OwnedFd, HostError> {
    pidfd_open(getpid(), PidfdFlags::empty()).map_err(HostError::system(WATCH))
}

/// Whether a process has ended.
#[must_use]
pub fn has_exited(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// The place in the list of the first process that has ended. Never blocks: one `poll`, about a
/// microsecond.
#[must_use]
pub fn first_exited(pidfds: &[BorrowedFd<'_>]) -> Option<usize> {
    if pidfds.is_empty() {
        return None;
    }
    let mut polled: Vec<PollFd<'_>> =
        pidfds.iter().map(|pidfd| PollFd::from_borrowed_fd(*pidfd, PollFlags::IN)).collect();
    // A signal or a lack of kernel memory says nothing about a process; the next call asks again.
    poll(&mut polled, Some(&Timespec::default())).ok()?;
    polled.iter().position(|polled| !polled.revents().is_empty())
}
