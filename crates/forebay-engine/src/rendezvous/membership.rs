//! The processes of one loader on this node, and which of them died.
//!
//! A pidfd, which each process opens and sends itself, identifies it. [`Membership::forget`] takes
//! a rank that shut down off the list: its process may end or live on.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_host::first_exited;
use serde::{Deserialize, Serialize};

/// A process of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Peer {
    /// Its rank in the job.
    pub rank: u32,
    /// Its rank on the node.
    pub local_rank: u32,
    /// Its process id as the leader sees it (its own where pid namespaces differ); for messages
    /// only.
    pub pid: i32,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (local rank {}, process {})", self.rank, self.local_rank, self.pid)
    }
}

/// Result of the rendezvous, for each rank.
#[derive(Debug)]
pub struct Membership {
    /// Bytes that the leader sent to all ranks.
    pub reply: Vec<u8>,
    /// Descriptors that the leader sent to all ranks: the same files and memory in every process.
    pub fds: Vec<OwnedFd>,
    local_rank: u32,
    watched: Vec<Watched>,
}

/// A process and the descriptor that becomes readable when it ends.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) peer: Peer,
    /// `None` for this process itself.
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) forgotten: AtomicBool,
}

impl Watched {
    pub(super) fn new(peer: Peer, pidfd: Option<OwnedFd>) -> Self {
        Self { peer, pidfd, forgotten: AtomicBool::new(false) }
    }
}

impl Membership {
    /// `watched` are all processes by local rank.
    pub(super) fn new(reply: Vec<u8>, fds: Vec<OwnedFd>, local_rank: u32, watched: Vec<Watched>) -> Self {
        Self { reply, fds, local_rank, watched }
    }

    /// This process's rank on the node.
    pub fn local_rank(&self) -> u32 {
        self.local_rank
    }

    /// All processes of the node, this one included, by local rank.
    pub fn peers(&self) -> impl ExactSizeIterator<Item = Peer> + '_ {
        self.watched.iter().map(|watched| watched.peer)
    }

    /// The process of the lowest local rank that ended without having been forgotten.
    ///
    /// Never blocks: one `poll` over the other processes, about a microsecond.
    pub fn dead(&self) -> Option<Peer> {
        first_dead(&self.watched)
    }

    /// Takes a process off the list after its shutdown: from now on its end is no death.
    pub fn forget(&self, local_rank: u32) {
        if let Some(watched) = self.watched.get(local_rank as usize) {
            watched.forgotten.store(true, Ordering::Relaxed);
        }
    }
}

/// The first process of the list that ended and was not forgotten.
pub(super) fn first_dead(watched: &[Watched]) -> Option<Peer> {
    let (peers, pidfds): (Vec<Peer>, Vec<BorrowedFd<'_>>) = watched
        .iter()
        .filter(|watched| !watched.forgotten.load(Ordering::Relaxed))
        .filter_map(|watched| Some((watched.peer, watched.pidfd.as_ref()?.as_fd())))
        .unzip();
    first_exited(&pidfds).map(|index| peers[index])
}

/// Returns a follower that has died, if there is one.
pub type Dead<'a> = &'a (dyn Fn() -> Option<Peer> + Sync);

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::process::{Child, Command, Stdio};

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap()
    }

    fn watched(local_rank: u32, child: &Child) -> Watched {
        let pid = child.id().cast_signed();
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        Watched::new(Peer { rank: 10 + local_rank, local_rank, pid }, Some(pidfd))
    }

    #[test]
    fn a_death_is_reported_until_the_process_is_forgotten() {
        let mut children = [sleeper(), sleeper()];
        let own = Watched::new(Peer { rank: 10, local_rank: 0, pid: 1 }, None);
        let all = vec![own, watched(1, &children[0]), watched(2, &children[1])];
        let membership = Membership::new(vec![], vec![], 0, all);
        assert_eq!((membership.dead(), membership.peers().len(), membership.local_rank()), (None, 3, 0));
        children[1].kill().unwrap();
        while membership.dead().is_none() {
            std::thread::yield_now();
        }
        let peer = membership.dead().unwrap();
        assert_eq!((peer.rank, peer.local_rank, peer.pid), (12, 2, children[1].id().cast_signed()));
        membership.forget(2);
        assert_eq!(membership.dead(), None);
        children[0].kill().unwrap();
        for child in &mut children {
            child.wait().unwrap();
        }
        assert_eq!(membership.dead().unwrap().local_rank, 1, "also after its parent reaped it");
    }

    #[test]
    fn a_process_alone_reports_no_death() {
        let own = Watched::new(Peer { rank: 0, local_rank: 0, pid: 1 }, None);
        assert_eq!(Membership::new(vec![], vec![], 0, vec![own]).dead(), None);
    }
}
