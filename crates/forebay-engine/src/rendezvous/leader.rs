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
use super::messages::{
    Failure, HelloHeader, LeaderReply, Message, MessageKind, MessageSocket, Parts, Received, broken, written,
};
use super::poll_loop::PollLoop;
use super::spec::{MAX_HELLO_BYTES, NodeSpec};

/// How long another process may hold the lock to clean up; a leader holds it for longer.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// A follower whose hello has arrived.
struct Follower {
    connection: MessageSocket,
    peer: Peer,
    pidfd: OwnedFd,
    hello: Parts,
    received: bool,
}

/// The socket that followers connect to, and the lock that marks it as in use; dropping it removes
/// both.
struct ListenSocket {
    listener: PacketListener,
    _lock: SocketLock,
}

pub(super) fn join(
    spec: &NodeSpec,
    directory: &Path,
    path: &SocketPath,
    hello: &[u8],
    lead: impl FnOnce(&[Vec<u8>], Dead<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), String>,
    polling: &mut PollLoop<'_>,
) -> Result<Membership, RendezvousError> {
    remove_stale_sockets(directory);
    let mut leader = Leader { spec, pidfd: own_pidfd()?, pending: Vec::new(), followers: Vec::new() };
    let result = leader.lead(path, hello, lead, polling);
    match result {
        Ok((reply, fds)) => Ok(Membership::new(reply, fds, 0, leader.into_watched())),
        Err(error) => {
            leader.report_failure(&error);
            Err(error)
        }
    }
}

struct Leader<'a> {
    spec: &'a NodeSpec,
    pidfd: OwnedFd,
    /// Connections without a hello so far.
    pending: Vec<MessageSocket>,
    followers: Vec<Follower>,
}

impl Leader<'_> {
    fn lead(
        &mut self,
        path: &SocketPath,
        hello: &[u8],
        lead: impl FnOnce(&[Vec<u8>], Dead<'_>) -> Result<(Vec<u8>, Vec<OwnedFd>), String>,
        polling: &mut PollLoop<'_>,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), RendezvousError> {
        let socket = self.open(path, polling)?;
        let begun = Instant::now();
        while !self.is_complete() {
            self.gather(&socket, begun, polling)?;
        }
        drop(socket);
        self.pending.clear();
        self.followers.sort_by_key(|follower| follower.peer.local_rank);
        self.send_members(polling)?;

        let mut hellos = vec![hello.to_vec()];
        hellos.extend(self.followers.iter_mut().map(|follower| follower.hello.take()));
        let followers = &self.followers;
        let dead = || followers.iter().find(|follower| has_exited(&follower.pidfd)).map(|dead| dead.peer);
        let (rejected, bytes, fds) = match lead(&hellos, &dead) {
            Ok((reply, fds)) => (false, reply, fds),
            Err(words) => (true, words.into_bytes(), Vec::new()),
        };
        self.send_reply(rejected, &bytes, &fds, polling)?;
        while !self.followers.iter().all(|follower| follower.received) {
            self.await_received(polling)?;
        }
        self.send_to_all(MessageKind::Go, &[], &[], polling)?;
        if rejected {
            return Err(RendezvousError::Rejected(
                String::from_utf8(bytes).expect("these bytes were a string"),
            ));
        }
        Ok((bytes, fds))
    }

    /// Locks the path, removes the socket of a dead leader, and listens.
    fn open(&self, path: &SocketPath, polling: &mut PollLoop<'_>) -> Result<ListenSocket, RendezvousError> {
        let begun = Instant::now();
        let lock = loop {
            if let Some(lock) = path.try_lock()? {
                break lock;
            }
            if begun.elapsed() > LOCK_TIMEOUT {
                return Err(RendezvousError::Taken { rendezvous: self.spec.to_string() });
            }
            polling.sleep(LOCK_RETRY_INTERVAL)?;
        };
        let listener = lock.listen(self.spec.local_ranks.len() as i32)?;
        Ok(ListenSocket { listener, _lock: lock })
    }

    fn is_complete(&self) -> bool {
        self.followers.len() + 1 == self.spec.local_ranks.len()
            && self.followers.iter().all(|follower| follower.hello.is_complete())
    }

    /// Waits once for connections, messages and deaths, and handles them.
    fn gather(
        &mut self,
        socket: &ListenSocket,
        begun: Instant,
        polling: &mut PollLoop<'_>,
    ) -> Result<(), RendezvousError> {
        let mut polled = vec![PollFd::new(&socket.listener, PollFlags::IN)];
        polled.extend(self.pending.iter().map(|connection| PollFd::new(connection, PollFlags::IN)));
        for follower in &self.followers {
            polled.push(PollFd::new(&follower.connection, PollFlags::IN));
            polled.push(PollFd::new(&follower.pidfd, PollFlags::IN));
        }
        let left = self.spec.deadline.saturating_sub(begun.elapsed());
        if !polling.poll(&mut polled, left)? {
            let (missing, who) = self.absent();
            polling.probe_missing(begun, self.spec, &missing, &missing, || who)?;
            return if left.is_zero() { Err(self.missing()) } else { Ok(()) };
        }
        for number in 0..self.followers.len() {
            while let Some(message) = self.receive(number, polling)? {
                if message.kind != MessageKind::Part {
                    return Err(message.unexpected());
                }
                self.followers[number].hello.add(&message.body)?;
            }
        }
        for connection in std::mem::take(&mut self.pending) {
            self.receive_hello(connection)?;
        }
        self.accept(socket, polling)
    }

    /// The next message of a follower; an error if the follower died or closed its socket.
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

    /// The error for a follower whose socket is closed or whose process ended.
    fn gone(&self, number: usize, polling: &mut PollLoop<'_>) -> Result<RendezvousError, RendezvousError> {
        let rendezvous = self.spec.to_string();
        // The follower may have left because another process died.
        if let Some(dead) = self.followers.iter().find(|follower| has_exited(&follower.pidfd)) {
            return Ok(RendezvousError::PeerLost { peer: dead.peer, rendezvous });
        }
        let Follower { peer, pidfd, .. } = &self.followers[number];
        Ok(if polling.is_dead_soon(pidfd)? {
            RendezvousError::PeerLost { peer: *peer, rendezvous }
        } else {
            RendezvousError::PeerLeft { peer: *peer, rendezvous }
        })
    }

    fn accept(&mut self, socket: &ListenSocket, polling: &mut PollLoop<'_>) -> Result<(), RendezvousError> {
        while let Some(accepted) = socket.listener.accept()? {
            let connection = MessageSocket::new(accepted);
            if polling.send(&connection, None, MessageKind::Welcome, &[], &[self.pidfd.as_fd()])? {
                self.receive_hello(connection)?;
            }
        }
        Ok(())
    }

    /// Receives the hello of a connection if it has arrived. Drops a connection that closed without
    /// one.
    fn receive_hello(&mut self, connection: MessageSocket) -> Result<(), RendezvousError> {
        let mut message = match connection.try_receive()? {
            Received::Message(message) => message,
            Received::Nothing => {
                self.pending.push(connection);
                return Ok(());
            }
            Received::Closed => return Ok(()),
        };
        if message.kind != MessageKind::Hello {
            return Err(message.unexpected());
        }
        let header: HelloHeader = message.read()?;
        let pidfd = message.one_fd()?;
        let pid = connection.peer_pid();
        let pid = if pid > 0 { pid } else { header.pid };
        let peer = Peer { rank: header.rank, local_rank: header.local_rank, pid };
        // Added before the check, so that the follower also receives the failure.
        let known = self.followers.iter().find(|follower| follower.peer.local_rank == peer.local_rank);
        let known = known.map(|follower| follower.peer);
        let hello = Parts::new(header.hello_bytes);
        self.followers.push(Follower { connection, peer, pidfd, hello, received: false });
        self.check_header(&header, peer, known)
    }

    fn check_header(
        &self,
        header: &HelloHeader,
        peer: Peer,
        known: Option<Peer>,
    ) -> Result<(), RendezvousError> {
        let own = self.spec.peer();
        let (ours, theirs) = (&self.spec.local_ranks, &header.local_ranks);
        let message = if ours.len() != theirs.len() {
            format!("{own} says the node has {} ranks, {peer} says {}", ours.len(), theirs.len())
        } else if ours != theirs {
            format!("{own} says the node has the ranks {ours:?}, {peer} says {theirs:?}")
        } else if let Some(known) = known.or_else(|| (peer.local_rank == 0).then_some(own)) {
            format!(
                "two processes say they are local rank {}: {} and {}",
                peer.local_rank, known.pid, peer.pid
            )
        } else if ours.get(peer.local_rank as usize) != Some(&peer.rank) {
            format!("{peer} is not one of the node's ranks {ours:?}")
        } else if header.hello_bytes > MAX_HELLO_BYTES as u64 {
            return Err(broken(format!("a hello of {} bytes", header.hello_bytes)));
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
        RendezvousError::Missing { local_ranks, who, seconds, rendezvous: self.spec.to_string() }
    }

    /// The local ranks that have not connected, and the same as a string.
    fn absent(&self) -> (Vec<u32>, String) {
        let connected =
            |local_rank: &u32| self.followers.iter().any(|follower| follower.peer.local_rank == *local_rank);
        let all = 1..self.spec.local_ranks.len() as u32;
        let local_ranks: Vec<u32> = all.filter(|local_rank| !connected(local_rank)).collect();
        let list = |ranks: &mut dyn Iterator<Item = u32>| {
            ranks.map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ")
        };
        let ranks =
            list(&mut local_ranks.iter().map(|local_rank| self.spec.local_ranks[*local_rank as usize]));
        let plural = if local_ranks.len() == 1 { "" } else { "s" };
        let local = list(&mut local_ranks.iter().copied());
        (local_ranks, format!("rank{plural} {ranks} (local rank{plural} {local})"))
    }

    fn send_members(&self, polling: &mut PollLoop<'_>) -> Result<(), RendezvousError> {
        let own = (self.spec.peer(), &self.pidfd);
        let all: Vec<(Peer, &OwnedFd)> = std::iter::once(own)
            .chain(self.followers.iter().map(|follower| (follower.peer, &follower.pidfd)))
            .collect();
        for some in all.chunks(MAX_FDS) {
            let peers: Vec<Peer> = some.iter().map(|(peer, _)| *peer).collect();
            let fds: Vec<BorrowedFd<'_>> = some.iter().map(|(_, pidfd)| pidfd.as_fd()).collect();
            self.send_to_all(MessageKind::Members, &written(&peers), &fds, polling)?;
        }
        Ok(())
    }

    fn send_reply(
        &self,
        rejected: bool,
        bytes: &[u8],
        fds: &[OwnedFd],
        polling: &mut PollLoop<'_>,
    ) -> Result<(), RendezvousError> {
        let reply = LeaderReply { rejected, bytes: bytes.len() as u64, fds: fds.len() as u32 };
        self.send_to_all(MessageKind::Reply, &written(&reply), &[], polling)?;
        for some in fds.chunks(MAX_FDS) {
            let fds: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            self.send_to_all(MessageKind::Descriptors, &[], &fds, polling)?;
        }
        for number in 0..self.followers.len() {
            for part in self.followers[number].connection.parts(bytes) {
                self.send_to(number, MessageKind::Part, part, &[], polling)?;
            }
        }
        Ok(())
    }

    fn send_to_all(
        &self,
        kind: MessageKind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        polling: &mut PollLoop<'_>,
    ) -> Result<(), RendezvousError> {
        (0..self.followers.len()).try_for_each(|number| self.send_to(number, kind, body, fds, polling))
    }

    fn send_to(
        &self,
        number: usize,
        kind: MessageKind,
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

    /// Waits once for followers to confirm the reply.
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
                if message.kind != MessageKind::Received {
                    return Err(message.unexpected());
                }
                self.followers[number].received = true;
            }
        }
        Ok(())
    }

    /// Sends the error to the followers; one that cannot receive it sees the socket close.
    fn report_failure(&self, error: &RendezvousError) {
        let failure = match error {
            // The reply carried it.
            RendezvousError::Rejected(_) => return,
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
            let _ = follower.connection.try_send(MessageKind::Failed, &body, &[]);
        }
    }

    fn into_watched(self) -> Vec<Watched> {
        let own = Watched::new(self.spec.peer(), None);
        let others =
            self.followers.into_iter().map(|follower| Watched::new(follower.peer, Some(follower.pidfd)));
        std::iter::once(own).chain(others).collect()
    }
}
