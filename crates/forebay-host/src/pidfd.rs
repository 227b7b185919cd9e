//! Detects the end of processes by their pidfds.
//!
//! Each process creates its own pidfd and sends it to its peers. A process id may be reused or
//! belong to another pid namespace, and a socket stays open in forked children; a pidfd has neither
//! problem. It becomes readable when the last thread of the process has ended, for any reason.

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

/// Index of the first process that has ended. Never blocks: one `poll`, about a microsecond.
#[must_use]
pub fn first_exited(pidfds: &[BorrowedFd<'_>]) -> Option<usize> {
    if pidfds.is_empty() {
        return None;
    }
    let mut polled: Vec<PollFd<'_>> =
        pidfds.iter().map(|pidfd| PollFd::from_borrowed_fd(*pidfd, PollFlags::IN)).collect();
    // On a signal or a lack of kernel memory the state is unknown; the next call polls again.
    poll(&mut polled, Some(&Timespec::default())).ok()?;
    polled.iter().position(|polled| !polled.revents().is_empty())
}
