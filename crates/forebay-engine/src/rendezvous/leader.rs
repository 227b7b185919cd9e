//! The leader's side of the rendezvous.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_host::{
    MAX_FDS, PacketListener, SocketLock, SocketPath, has_exited, own_pidfd, remove_stale_sockets,
};
use rustix::event::{PollFd, PollFlags};

use super::error::RendezvousError;
use super::membership::{Dead, Membership, Peer, Watched};
use super::messages::{Connection, Failure, Hello, Kind, Message, Outcome, Parts, Received, broken, written};
use super::poll_loop::PollLoop;
use super::spec::{GREETING_BYTES, NodeSpec};

/// How long a place may stay locked by somebody who only cleans it; a leader keeps it for longer.
const TAKEN_AFTER: Duration = Duration::from_secs(1);
const RETRY_EVERY: Duration = Duration::from_millis(10);

/// A follower that has introduced itself.
struct Follower {
    connection: Connection,
    peer: Peer,
    pidfd: OwnedFd,
    greeting: Parts,
    received: bool,
}

/// The socket that followers connect to, and the lock that says it is not stale; both go when it is
/// dropped.
struct Door {
    listener: PacketListener,
    _lock: SocketLock,
}

pub(super) fn join(
    spec: &NodeSpec,
    directory: &Path,
    path: &SocketPath,
    greeting: &[u8],
    lead: impl FnOnce(&[Vec<u8>], Dead<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), String>,
    polling: &mut PollLoop<'_>,
) -> Result<Membership, RendezvousError> {
    remove_stale_sockets(directory);
    let mut leader = Leader { spec, pidfd: own_pidfd()?, strangers: Vec::new(), followers: Vec::new() };
    let result = leader.lead(path, greeting, lead, polling);
    match result {
        Ok((reply, fds)) => Ok(Membership::new(reply, fds, 0, leader.into_watched())),
        Err(error) => {
            leader.tell(&error);
            Err(error)
        }
    }
}

struct Leader<'a> {
    spec: &'a NodeSpec,
    pidfd: OwnedFd,
    /// Connections that have not said who they are.
    strangers: Vec<Connection>,
    followers: Vec<Follower>,
}

impl Leader<'_> {
    fn lead(
        &mut self,
        path: &SocketPath,
        greeting: &[u8],
        lead: impl FnOnce(&[Vec<u8>], Dead<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), String>,
        polling: &mut PollLoop<'_>,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), RendezvousError> {
        let door = self.open(path, polling)?;
        let begun = Instant::now();
        while !self.is_complete() {
            self.gather(&door, begun, polling)?;
        }
        drop(door);
        self.strangers.clear();
        self.followers.sort_by_key(|follower| follower.peer.local_rank);
        self.send_roster(polling)?;

        let mut greetings = vec![greeting.to_vec()];
        greetings.extend(self.followers.iter_mut().map(|follower| follower.greeting.take()));
        let followers = &self.followers;
        let dead = || followers.iter().find(|follower| has_exited(&follower.pidfd)).map(|dead| dead.peer);
        let (refused, bytes, fds) = match lead(&greetings, &dead) {
            Ok((reply, fds)) => (false, reply, fds),
            Err(words) => (true, words.into_bytes(), Vec::new()),
        };
        self.send_outcome(refused, &bytes, &fds, polling)?;
        while !self.followers.iter().all(|follower| follower.received) {
            self.await_received(polling)?;
        }
        self.to_all(Kind::Go, &[], &[], polling)?;
        if refused {
            return Err(RendezvousError::Refused(
                String::from_utf8(bytes).expect("these bytes were a string"),
            ));
        }
        Ok((bytes, fds))
    }

    /// Locks the place, removes what a dead leader left there, and listens.
    fn open(&self, path: &SocketPath, polling: &mut PollLoop<'_>) -> Result<Door, RendezvousError> {
        let begun = Instant::now();
        let lock = loop {
            if let Some(lock) = path.try_lock()? {
                break lock;
            }
            if begun.elapsed() > TAKEN_AFTER {
                return Err(RendezvousError::Taken { meeting: self.spec.meeting() });
            }
            polling.sleep(RETRY_EVERY)?;
        };
        let listener = lock.listen(self.spec.local_ranks.len() as i32)?;
        Ok(Door { listener, _lock: lock })
    }

    fn is_complete(&self) -> bool {
        self.followers.len() + 1 == self.spec.local_ranks.len()
            && self.followers.iter().all(|follower| follower.greeting.is_complete())
    }

    /// Waits once for connections, messages and deaths, and deals with them.
    fn gather(
        &mut self,
        door: &Door,
        begun: Instant,
        polling: &mut PollLoop<'_>,
    ) -> Result<(), RendezvousError> {
        let mut polled = vec![PollFd::new(&door.listener, PollFlags::IN)];
        polled.extend(self.strangers.iter().map(|stranger| PollFd::new(stranger, PollFlags::IN)));
        for follower in &self.followers {
            polled.push(PollFd::new(&follower.connection, PollFlags::IN));
            polled.push(PollFd::new(&follower.pidfd, PollFlags::IN));
        }
        let left = self.spec.deadline.saturating_sub(begun.elapsed());
        if !polling.poll(&mut polled, left)? {
            let (missing, who) = self.absent();
            polling.look(begun, self.spec, &missing, &missing, || who)?;
            return if left.is_zero() { Err(self.missing()) } else { Ok(()) };
        }
        for number in 0..self.followers.len() {
            while let Some(message) = self.receive(number, polling)? {
                if message.kind != Kind::Part {
                    return Err(message.unexpected());
                }
                self.followers[number].greeting.add(&message.body)?;
            }
        }
        for stranger in std::mem::take(&mut self.strangers) {
            self.meet(stranger)?;
        }
        self.accept(door, polling)
    }

    /// The next message of a follower; an error if it is dead or gone.
    fn receive(
        &mut self,
        number: usize,
        polling: &mut PollLoop<'_>,
    ) -> Result<Option<Message>, RendezvousError> {
        let follower = &self.followers[number];
        match follower.connection.try_receive()? {
            Received::Message(message) => return Ok(Some(message)),
            Received::Closed => Err(self.gone(number, polling)?),
            Received::Nothing => Ok(()),
        }?;
        if has_exited(&follower.pidfd) { Err(self.gone(number, polling)?) } else { Ok(None) }
    }

    /// What to say about a follower whose socket is closed, or whose process ended.
    fn gone(&self, number: usize, polling: &mut PollLoop<'_>) -> Result<RendezvousError, RendezvousError> {
        let meeting = self.spec.meeting();
        // It may have left because another one died.
        if let Some(dead) = self.followers.iter().find(|follower| has_exited(&follower.pidfd)) {
            return Ok(RendezvousError::PeerLost { peer: dead.peer, meeting });
        }
        let Follower { peer, pidfd, .. } = &self.followers[number];
        Ok(if polling.is_dead_soon(pidfd)? {
            RendezvousError::PeerLost { peer: *peer, meeting }
        } else {
            RendezvousError::PeerLeft { peer: *peer, meeting }
        })
    }

    fn accept(&mut self, door: &Door, polling: &mut PollLoop<'_>) -> Result<(), RendezvousError> {
        while let Some(socket) = door.listener.accept()? {
            let connection = Connection::new(socket);
            // In a directory of mode 0700 only root could be somebody else; it is not meant here.
            if connection.other_side()?.0 != rustix::process::geteuid().as_raw() {
                continue;
            }
            if polling.send(&connection, None, Kind::Welcome, &[], &[self.pidfd.as_fd()])? {
                self.meet(connection)?;
            }
        }
        Ok(())
    }

    /// Takes the hello of a connection, if it is there already. One that goes without a hello is
    /// forgotten.
    fn meet(&mut self, connection: Connection) -> Result<(), RendezvousError> {
        let mut message = match connection.try_receive()? {
            Received::Message(message) => message,
            Received::Nothing => {
                self.strangers.push(connection);
                return Ok(());
            }
            Received::Closed => return Ok(()),
        };
        if message.kind != Kind::Hello {
            return Err(message.unexpected());
        }
        let hello: Hello = message.read()?;
        let pidfd = message.one_fd()?;
        let (_, pid) = connection.other_side()?;
        let pid = if pid > 0 { pid } else { hello.pid };
        let peer = Peer { rank: hello.rank, local_rank: hello.local_rank, pid };
        // Kept before it is judged, so that it hears the verdict.
        let known = self.followers.iter().find(|follower| follower.peer.local_rank == peer.local_rank);
        let known = known.map(|follower| follower.peer);
        let greeting = Parts::new(hello.greeting_bytes);
        self.followers.push(Follower { connection, peer, pidfd, greeting, received: false });
        self.judge(&hello, peer, known)
    }

    fn judge(&self, hello: &Hello, peer: Peer, known: Option<Peer>) -> Result<(), RendezvousError> {
        let me = self.spec.peer();
        let (ours, theirs) = (&self.spec.local_ranks, &hello.local_ranks);
        let message = if ours.len() != theirs.len() {
            format!("{me} says the node has {} ranks, {peer} says {}", ours.len(), theirs.len())
        } else if ours != theirs {
            format!("{me} says the node has the ranks {ours:?}, {peer} says {theirs:?}")
        } else if let Some(known) = known.or_else(|| (peer.local_rank == 0).then_some(me)) {
            format!(
                "two processes say they are local rank {}: {} and {}",
                peer.local_rank, known.pid, peer.pid
            )
        } else if ours.get(peer.local_rank as usize) != Some(&peer.rank) {
            format!("{peer} is not one of the node's ranks {ours:?}")
        } else if hello.greeting_bytes > GREETING_BYTES as u64 {
            return Err(broken(format!("a greeting of {} bytes", hello.greeting_bytes)));
        } else {
            return Ok(());
        };
        let hint = "every rank of the node needs the same list of ranks and its own place in it; two jobs at once need \
                    different names: give World(job=)";
        Err(RendezvousError::Mismatch { message: format!("{message} ({})", self.spec), hint: hint.into() })
    }

    fn missing(&self) -> RendezvousError {
        let (local_ranks, who) = self.absent();
        let seconds = self.spec.deadline.as_secs();
        RendezvousError::Missing { local_ranks, who, seconds, meeting: self.spec.meeting() }
    }

    /// The local ranks that have not come, and the same in words.
    fn absent(&self) -> (Vec<u32>, String) {
        let came =
            |local_rank: &u32| self.followers.iter().any(|follower| follower.peer.local_rank == *local_rank);
        let all = 1..self.spec.local_ranks.len() as u32;
        let local_ranks: Vec<u32> = all.filter(|local_rank| !came(local_rank)).collect();
        let list = |ranks: &mut dyn Iterator<Item = u32>| {
            ranks.map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ")
        };
        let ranks =
            list(&mut local_ranks.iter().map(|local_rank| self.spec.local_ranks[*local_rank as usize]));
        let plural = if local_ranks.len() == 1 { "" } else { "s" };
        let local = list(&mut local_ranks.iter().copied());
        (local_ranks, format!("rank{plural} {ranks} (local rank{plural} {local})"))
    }

    fn send_roster(&self, polling: &mut PollLoop<'_>) -> Result<(), RendezvousError> {
        let me = (self.spec.peer(), &self.pidfd);
        let all: Vec<(Peer, &OwnedFd)> = std::iter::once(me)
            .chain(self.followers.iter().map(|follower| (follower.peer, &follower.pidfd)))
            .collect();
        for some in all.chunks(MAX_FDS) {
            let peers: Vec<Peer> = some.iter().map(|(peer, _)| *peer).collect();
            let fds: Vec<BorrowedFd<'_>> = some.iter().map(|(_, pidfd)| pidfd.as_fd()).collect();
            self.to_all(Kind::Roster, &written(&peers), &fds, polling)?;
        }
        Ok(())
    }

    fn send_outcome(
        &self,
        refused: bool,
        bytes: &[u8],
        fds: &[OwnedFd],
        polling: &mut PollLoop<'_>,
    ) -> Result<(), RendezvousError> {
        let outcome = Outcome { refused, bytes: bytes.len() as u64, fds: fds.len() as u32 };
        self.to_all(Kind::Outcome, &written(&outcome), &[], polling)?;
        for some in fds.chunks(MAX_FDS) {
            let fds: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            self.to_all(Kind::Descriptors, &[], &fds, polling)?;
        }
        for number in 0..self.followers.len() {
            for part in self.followers[number].connection.parts(bytes) {
                self.to_one(number, Kind::Part, part, &[], polling)?;
            }
        }
        Ok(())
    }

    fn to_all(
        &self,
        kind: Kind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        polling: &mut PollLoop<'_>,
    ) -> Result<(), RendezvousError> {
        (0..self.followers.len()).try_for_each(|number| self.to_one(number, kind, body, fds, polling))
    }

    fn to_one(
        &self,
        number: usize,
        kind: Kind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        polling: &mut PollLoop<'_>,
    ) -> Result<(), RendezvousError> {
        let follower = &self.followers[number];
        if polling.send(&follower.connection, Some(&follower.pidfd), kind, body, fds)? {
            return Ok(());
        }
        Err(self.gone(number, polling)?)
    }

    /// Waits once for followers to say that they have everything.
    fn await_received(&mut self, polling: &mut PollLoop<'_>) -> Result<(), RendezvousError> {
        let mut polled = Vec::new();
        for follower in &self.followers {
            if !follower.received {
                polled.push(PollFd::new(&follower.connection, PollFlags::IN));
            }
            polled.push(PollFd::new(&follower.pidfd, PollFlags::IN));
        }
        if !polling.poll(&mut polled, Duration::MAX)? {
            return Ok(());
        }
        for number in 0..self.followers.len() {
            if let Some(message) = self.receive(number, polling)? {
                if message.kind != Kind::Received {
                    return Err(message.unexpected());
                }
                self.followers[number].received = true;
            }
        }
        Ok(())
    }

    /// Tells the followers why there is no loader; whoever cannot hear it sees the socket close.
    fn tell(&self, error: &RendezvousError) {
        let failure = match error {
            // It was the outcome, and all have it.
            RendezvousError::Refused(_) => return,
            RendezvousError::PeerLost { peer, .. } => Failure::Lost(*peer),
            RendezvousError::PeerLeft { peer, .. } => Failure::Left(*peer),
            RendezvousError::Interrupted => Failure::Left(self.spec.peer()),
            other => Failure::Other {
                class: other.class(),
                message: other.to_string(),
                hint: other.hint().unwrap_or_default().to_owned(),
            },
        };
        let body = written(&failure);
        for follower in &self.followers {
            let _ = follower.connection.try_send(Kind::Failed, &body, &[]);
        }
    }

    fn into_watched(self) -> Vec<Watched> {
        let me = Watched::new(self.spec.peer(), None);
        let others =
            self.followers.into_iter().map(|follower| Watched::new(follower.peer, Some(follower.pidfd)));
        std::iter::once(me).chain(others).collect()
    }
}
