//! Waiting for the other ranks of a node, with an ear for the caller.
//!
//! Every wait is a `poll` of at most [`SLICE`]; between two of them the caller is asked whether to
//! go on.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use forebay_host::{HostError, Sent, Siblings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::error::RendezvousError;
use super::membership::Peer;
use super::messages::{Connection, Kind};
use super::spec::NodeSpec;

/// Longest time between two questions to the caller.
const SLICE: Duration = Duration::from_millis(50);
/// Questions that would come faster than this are left out: they may be dear (Python's lock).
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// How long ranks may keep others waiting before the user is told.
const WARN_AFTER: Duration = Duration::from_secs(10);

/// How long ranks may be missing before their processes are looked for: most come at once.
const LOOK_AFTER: Duration = Duration::from_millis(200);

/// The caller, while ranks of a node wait for each other.
pub trait Waiting {
    /// Whether to go on waiting.
    fn go_on(&mut self) -> bool;
    /// Tells the user something though all goes on.
    fn warn(&mut self, text: &str);
}

/// A caller who hears nothing.
impl<F: FnMut() -> bool> Waiting for F {
    fn go_on(&mut self) -> bool {
        self()
    }

    fn warn(&mut self, _: &str) {}
}

/// Waiting, with an ear for the caller.
pub(super) struct PollLoop<'a> {
    caller: &'a mut dyn Waiting,
    checked: Instant,
    warned: bool,
    /// Processes of ranks that have not come, once they are looked for.
    siblings: Option<Siblings>,
    looked_for: bool,
}

impl<'a> PollLoop<'a> {
    pub(super) fn new(caller: &'a mut dyn Waiting) -> Self {
        Self { caller, checked: Instant::now(), warned: false, siblings: None, looked_for: false }
    }

    /// Looks what has become of the local ranks that are `needed` since a wait `begun`. Tells the
    /// user, once, when it has lasted, which of them are `missing`.
    ///
    /// # Errors
    /// One of them has ended.
    pub(super) fn look(
        &mut self,
        begun: Instant,
        spec: &NodeSpec,
        needed: &[u32],
        missing: &[u32],
        who: impl FnOnce() -> String,
    ) -> Result<(), RendezvousError> {
        let waited = begun.elapsed();
        if waited < LOOK_AFTER {
            return Ok(());
        }
        if !self.looked_for {
            self.looked_for = true;
            self.siblings = spec.launcher.as_deref().and_then(|variable| {
                Siblings::find(Some(variable).filter(|name| !name.is_empty()), spec.rank)
            });
        }
        let rank_of = |local: &u32| spec.local_ranks[*local as usize];
        let mut about = String::new();
        if let Some(siblings) = &mut self.siblings {
            siblings.look();
            for local_rank in needed {
                let rank = rank_of(local_rank);
                if let Some(ended) = siblings.ended(rank) {
                    let peer = Peer { rank, local_rank: *local_rank, pid: ended.pid };
                    return Err(RendezvousError::Ended { peer, how: ended.how, meeting: spec.meeting() });
                }
            }
            about = siblings.about(&missing.iter().map(rank_of).collect::<Vec<_>>());
        }
        self.tell(waited, spec, who, &about);
        Ok(())
    }

    fn tell(&mut self, waited: Duration, spec: &NodeSpec, who: impl FnOnce() -> String, about: &str) {
        if self.warned || waited < WARN_AFTER.min(spec.deadline / 2) {
            return;
        }
        self.warned = true;
        let about = if about.is_empty() { String::new() } else { format!("; {about}") };
        self.caller.warn(&format!(
            "{}: this is local rank {}, and has waited for {:.0} s for {}; after {:.0} s that is an error{about}",
            spec.meeting(),
            spec.local_rank,
            waited.as_secs_f64(),
            who(),
            spec.deadline.as_secs_f64(),
        ));
    }

    fn ask(&mut self, now: bool) -> Result<(), RendezvousError> {
        if now || self.checked.elapsed() >= CHECK_EVERY {
            let go_on = self.caller.go_on();
            self.checked = Instant::now();
            if !go_on {
                return Err(RendezvousError::Interrupted);
            }
        }
        Ok(())
    }

    /// Waits until something is ready or one slice (or `limit`, if shorter) is over; says whether
    /// something is ready.
    pub(super) fn poll(
        &mut self,
        polled: &mut [PollFd<'_>],
        limit: Duration,
    ) -> Result<bool, RendezvousError> {
        self.ask(false)?;
        let limit = limit.min(SLICE);
        let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        match poll(polled, Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => {
                // A signal is what the check is there for.
                self.ask(true)?;
                Ok(false)
            }
            Err(error) => Err(HostError::system("wait for processes of this node")(error).into()),
        }
    }

    /// Sleeps for at most a slice.
    pub(super) fn sleep(&mut self, limit: Duration) -> Result<(), RendezvousError> {
        self.poll(&mut [], limit).map(|_| ())
    }

    /// Sends, waiting for room. False when the other side is gone: its socket closed, or `pidfd`
    /// says so.
    pub(super) fn send(
        &mut self,
        to: &Connection,
        pidfd: Option<&OwnedFd>,
        kind: Kind,
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
            self.poll(&mut polled, SLICE)?;
            if polled.get(1).is_some_and(|polled| !polled.revents().is_empty()) {
                return Ok(false);
            }
        }
    }

    /// Waits a little until `pidfd` says that its process ended: a dying process closes its sockets
    /// first.
    pub(super) fn is_dead_soon(&mut self, pidfd: &OwnedFd) -> Result<bool, RendezvousError> {
        const ENOUGH: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        while begun.elapsed() < ENOUGH {
            if self.poll(&mut [PollFd::new(pidfd, PollFlags::IN)], SLICE)? {
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

    struct Told(Vec<String>);

    impl Waiting for Told {
        fn go_on(&mut self) -> bool {
            true
        }

        fn warn(&mut self, text: &str) {
            self.0.push(text.to_owned());
        }
    }

    #[test]
    fn who_does_not_come_is_told_once() {
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
        let mut told = Told(Vec::new());
        let mut polling = PollLoop::new(&mut told);
        polling.look(Instant::now(), &spec, &[0], &[0], || unreachable!("it has not lasted")).unwrap();
        let begun = Instant::now().checked_sub(WARN_AFTER).expect("the machine runs for longer");
        for _ in 0..3 {
            polling.look(begun, &spec, &[0], &[0], || "local rank 0 (rank 6)".to_owned()).unwrap();
        }
        let [text] = &told.0[..] else { panic!("{:?}", told.0) };
        assert!(text.contains(" s for local rank 0 (rank 6); after 600 s that is an error"), "{text}");
    }
}
