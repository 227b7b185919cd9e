//! Waiting for the other ranks of a node, until the caller cancels it.
//!
//! Every wait is a `poll` of at most [`POLL_INTERVAL`]; between two of them the loop checks whether
//! the caller cancelled.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use forebay_host::{HostError, Sent, Siblings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::error::RendezvousError;
use super::membership::Peer;
use super::messages::{MessageKind, MessageSocket};
use super::spec::NodeSpec;

/// Longest time between two checks for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Checks that would follow faster than this are left out: each may take Python's lock.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// How long a rank waits for others before it warns the user.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// How long ranks may be missing before their processes are probed: most connect at once.
const PROBE_AFTER: Duration = Duration::from_millis(200);

/// The caller, while ranks of a node wait for each other.
pub trait Waiting {
    /// Whether to go on waiting.
    fn go_on(&mut self) -> bool;
    /// Shows the user a warning.
    fn warn(&mut self, text: &str);
}

/// A caller that ignores warnings.
impl<F: FnMut() -> bool> Waiting for F {
    fn go_on(&mut self) -> bool {
        self()
    }

    fn warn(&mut self, _: &str) {}
}

/// Waits that the caller can cancel.
pub(super) struct PollLoop<'a> {
    caller: &'a mut dyn Waiting,
    checked: Instant,
    warned: bool,
    /// Processes of the node's ranks, once they are probed.
    siblings: Option<Siblings>,
    probed: bool,
}

impl<'a> PollLoop<'a> {
    pub(super) fn new(caller: &'a mut dyn Waiting) -> Self {
        Self { caller, checked: Instant::now(), warned: false, siblings: None, probed: false }
    }

    /// Probes the processes of the local ranks that are `needed`, after a wait that began at
    /// `begun`. Warns the user once, after a long wait, which of them are `missing`.
    ///
    /// # Errors
    /// One of them has ended.
    pub(super) fn probe_missing(
        &mut self,
        begun: Instant,
        spec: &NodeSpec,
        needed: &[u32],
        missing: &[u32],
        who: impl FnOnce() -> String,
    ) -> Result<(), RendezvousError> {
        let waited = begun.elapsed();
        if waited < PROBE_AFTER {
            return Ok(());
        }
        if !self.probed {
            self.probed = true;
            self.siblings = spec.launcher.as_deref().and_then(|variable| {
                Siblings::find(Some(variable).filter(|name| !name.is_empty()), spec.rank)
            });
        }
        let rank_of = |local: &u32| spec.local_ranks[*local as usize];
        let mut about = String::new();
        if let Some(siblings) = &mut self.siblings {
            siblings.probe();
            for local_rank in needed {
                let rank = rank_of(local_rank);
                if let Some(ended) = siblings.ended(rank) {
                    let peer = Peer { rank, local_rank: *local_rank, pid: ended.pid };
                    return Err(RendezvousError::Ended {
                        peer,
                        how: ended.how,
                        rendezvous: spec.to_string(),
                    });
                }
            }
            about = siblings.about(&missing.iter().map(rank_of).collect::<Vec<_>>());
        }
        self.warn_once(waited, spec, who, &about);
        Ok(())
    }

    fn warn_once(&mut self, waited: Duration, spec: &NodeSpec, who: impl FnOnce() -> String, about: &str) {
        if self.warned || waited < WARN_AFTER.min(spec.deadline / 2) {
            return;
        }
        self.warned = true;
        let about = if about.is_empty() { String::new() } else { format!("; {about}") };
        self.caller.warn(&format!(
            "{}: this is local rank {}, and has waited for {:.0} s for {}; after {:.0} s that is an error{about}",
            spec,
            spec.local_rank,
            waited.as_secs_f64(),
            who(),
            spec.deadline.as_secs_f64(),
        ));
    }

    fn check_cancelled(&mut self, now: bool) -> Result<(), RendezvousError> {
        if now || self.checked.elapsed() >= MIN_CHECK_INTERVAL {
            let go_on = self.caller.go_on();
            self.checked = Instant::now();
            if !go_on {
                return Err(RendezvousError::Interrupted);
            }
        }
        Ok(())
    }

    /// Waits until a descriptor is ready, for at most one interval (or `limit`, if shorter).
    /// Returns whether one is ready.
    pub(super) fn poll(
        &mut self,
        polled: &mut [PollFd<'_>],
        limit: Duration,
    ) -> Result<bool, RendezvousError> {
        self.check_cancelled(false)?;
        let limit = limit.min(POLL_INTERVAL);
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        match poll(polled, Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => {
                // The signal may be the user's interrupt.
                self.check_cancelled(true)?;
                Ok(false)
            }
            Err(error) => Err(HostError::system("wait for processes of this node")(error).into()),
        }
    }

    /// Sleeps for at most one interval.
    pub(super) fn sleep(&mut self, limit: Duration) -> Result<(), RendezvousError> {
        self.poll(&mut [], limit).map(|_| ())
    }

    /// Sends, after waiting for buffer space. Returns false if the other side is gone: its socket
    /// closed, or the process of `pidfd` ended.
    pub(super) fn send(
        &mut self,
        to: &MessageSocket,
        pidfd: Option<&OwnedFd>,
        kind: MessageKind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<bool, RendezvousError> {
        loop {
            match to.try_send(kind, body, fds)? {
                Sent::Yes => return Ok(true),
                Sent::Closed => return Ok(false),
                Sent::Full => {}
            }
            let mut polled = vec![PollFd::new(to, PollFlags::OUT)];
            polled.extend(pidfd.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
            self.poll(&mut polled, POLL_INTERVAL)?;
            if polled.get(1).is_some_and(|polled| !polled.revents().is_empty()) {
                return Ok(false);
            }
        }
    }

    /// Waits up to a second for the process of `pidfd` to end: a dying process closes its sockets
    /// before its pidfd reports the end.
    pub(super) fn is_dead_soon(&mut self, pidfd: &OwnedFd) -> Result<bool, RendezvousError> {
        const EXIT_TIMEOUT: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        while begun.elapsed() < EXIT_TIMEOUT {
            if self.poll(&mut [PollFd::new(pidfd, PollFlags::IN)], POLL_INTERVAL)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interruption_ends_every_wait() {
        let mut calls = 0;
        let mut check = || {
            calls += 1;
            calls < 3
        };
        let mut polling = PollLoop::new(&mut check);
        let result = (0..1000).try_for_each(|_| polling.sleep(Duration::from_millis(10)));
        assert!(matches!(result, Err(RendezvousError::Interrupted)));
        assert_eq!(calls, 3);
    }

    struct Recorder(Vec<String>);

    impl Waiting for Recorder {
        fn go_on(&mut self) -> bool {
            true
        }

        fn warn(&mut self, text: &str) {
            self.0.push(text.to_owned());
        }
    }

    #[test]
    fn missing_ranks_are_reported_once() {
        let spec = NodeSpec {
            job: "job".into(),
            node: "node".into(),
            name: "train".into(),
            rank: 7,
            local_rank: 1,
            local_ranks: vec![6, 7],
            launcher: None,
            deadline: Duration::from_secs(600),
        };
        let mut recorder = Recorder(Vec::new());
        let mut polling = PollLoop::new(&mut recorder);
        polling
            .probe_missing(Instant::now(), &spec, &[0], &[0], || unreachable!("it has not lasted"))
            .unwrap();
        let begun = Instant::now().checked_sub(WARN_AFTER).expect("the machine runs for longer");
        for _ in 0..3 {
            polling.probe_missing(begun, &spec, &[0], &[0], || "local rank 0 (rank 6)".to_owned()).unwrap();
        }
        let [text] = &recorder.0[..] else { panic!("{:?}", recorder.0) };
        assert!(text.contains(" s for local rank 0 (rank 6); after 600 s that is an error"), "{text}");
    }
}
