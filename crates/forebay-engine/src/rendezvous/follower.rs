//! A follower's side of the rendezvous.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use forebay_host::{MAX_FDS, PacketSocket, SocketPath, has_exited, own_pidfd};
use rustix::event::{PollFd, PollFlags};

use super::error::{Class, RendezvousError};
use super::membership::{Membership, Peer, Watched, first_dead};
use super::messages::{
    Failure, HelloHeader, LeaderReply, Message, MessageKind, MessageSocket, Parts, Received, broken, written,
};
use super::poll_loop::PollLoop;
use super::spec::NodeSpec;

/// Pause between two attempts to connect: the first, and the longest (it doubles).
const MIN_CONNECT_PAUSE: Duration = Duration::from_millis(1);
const MAX_CONNECT_PAUSE: Duration = Duration::from_millis(32);
/// How long a follower waits for a welcome before it connects again. A forked child of a dead
/// leader may hold its socket open; a live leader that was busy accepts the next attempt.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) fn join(
    spec: &NodeSpec,
    path: &SocketPath,
    hello: &[u8],
    polling: &mut PollLoop<'_>,
) -> Result<Membership, RendezvousError> {
    let (connection, leader) = match find_leader(spec, path, polling) {
        Ok(found) => found,
        Err(error) => {
            // A leader that died alone may have left its socket.
            path.remove_if_stale();
            return Err(error);
        }
    };
    let mut follower = Follower { spec, connection, leader, watched: Vec::new() };
    let result = follower.follow(hello, polling);
    if matches!(result, Err(RendezvousError::PeerLost { peer: Peer { local_rank: 0, .. }, .. })) {
        path.remove_if_stale();
    }
    let (reply, fds) = result?;
    Ok(Membership::new(reply, fds, spec.local_rank, follower.watched))
}

/// Connects to the leader, as often as it takes, and waits for its welcome.
fn find_leader(
    spec: &NodeSpec,
    path: &SocketPath,
    polling: &mut PollLoop<'_>,
) -> Result<(MessageSocket, Leader), RendezvousError> {
    let begun = Instant::now();
    let mut pause = MIN_CONNECT_PAUSE;
    loop {
        if let Some(connection) = PacketSocket::connect(path.socket())?.map(MessageSocket::new)
            && let Some(pidfd) = await_welcome(&connection, polling)?
        {
            let pid = connection.peer_pid();
            let peer = Peer { rank: spec.local_ranks[0], local_rank: 0, pid };
            return Ok((connection, Leader { peer, pidfd }));
        }
        if begun.elapsed() >= spec.deadline {
            return Err(RendezvousError::NoLeader {
                local_rank: spec.local_rank,
                seconds: spec.deadline.as_secs(),
                rendezvous: spec.to_string(),
            });
        }
        // The warning names the leader, but the death of any other rank also ends the wait.
        let others: Vec<u32> =
            (0..spec.local_ranks.len() as u32).filter(|one| *one != spec.local_rank).collect();
        polling.probe_missing(begun, spec, &others, &[0], || {
            format!("local rank 0 (rank {})", spec.local_ranks[0])
        })?;
        polling.sleep(pause.min(spec.deadline.saturating_sub(begun.elapsed())))?;
        pause = (pause * 2).min(MAX_CONNECT_PAUSE);
    }
}

/// The leader's pidfd, or `None` if no leader answers on this connection.
fn await_welcome(
    connection: &MessageSocket,
    polling: &mut PollLoop<'_>,
) -> Result<Option<OwnedFd>, RendezvousError> {
    let begun = Instant::now();
    loop {
        match connection.try_receive()? {
            Received::Message(mut message) if message.kind == MessageKind::Welcome => {
                return message.one_fd().map(Some);
            }
            Received::Message(message) => return Err(message.unexpected()),
            Received::Closed => return Ok(None),
            Received::Nothing if begun.elapsed() >= WELCOME_TIMEOUT => return Ok(None),
            Received::Nothing => {}
        }
        polling.poll(&mut [PollFd::new(connection, PollFlags::IN)], WELCOME_TIMEOUT)?;
    }
}

struct Leader {
    peer: Peer,
    pidfd: OwnedFd,
}

struct Follower<'a> {
    spec: &'a NodeSpec,
    connection: MessageSocket,
    leader: Leader,
    /// All processes, once the member list has arrived.
    watched: Vec<Watched>,
}

impl Follower<'_> {
    fn follow(
        &mut self,
        hello: &[u8],
        polling: &mut PollLoop<'_>,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), RendezvousError> {
        self.introduce(hello, polling)?;
        self.receive_members(polling)?;
        let (rejected, bytes, fds) = self.receive_reply(polling)?;
        self.send(MessageKind::Received, &[], None, polling)?;
        // From here on other followers may finish and exit: only the leader's message or its exit
        // counts.
        let message = self.receive(false, polling)?;
        if message.kind != MessageKind::Go {
            return Err(message.unexpected());
        }
        if rejected {
            return Err(RendezvousError::Rejected(String::from_utf8_lossy(&bytes).into_owned()));
        }
        Ok((bytes, fds))
    }

    fn introduce(&mut self, hello: &[u8], polling: &mut PollLoop<'_>) -> Result<(), RendezvousError> {
        let own = self.spec.peer();
        let header = HelloHeader {
            rank: own.rank,
            local_rank: own.local_rank,
            local_ranks: self.spec.local_ranks.clone(),
            pid: own.pid,
            hello_bytes: hello.len() as u64,
        };
        self.send(MessageKind::Hello, &written(&header), Some(&own_pidfd()?), polling)?;
        let parts: Vec<&[u8]> = self.connection.parts(hello).collect();
        parts.into_iter().try_for_each(|part| self.send(MessageKind::Part, part, None, polling))
    }

    fn receive_members(&mut self, polling: &mut PollLoop<'_>) -> Result<(), RendezvousError> {
        let size = self.spec.local_ranks.len();
        while self.watched.len() < size {
            let mut message = self.receive(true, polling)?;
            if message.kind != MessageKind::Members {
                return Err(message.unexpected());
            }
            let peers: Vec<Peer> = message.read()?;
            let fds = std::mem::take(&mut message.fds);
            if peers.len() != fds.len() || peers.is_empty() {
                return Err(broken(format!("{} peers with {} descriptors", peers.len(), fds.len())));
            }
            for (peer, pidfd) in peers.into_iter().zip(fds) {
                if peer.local_rank as usize != self.watched.len() {
                    return Err(broken(format!(
                        "local rank {} at index {}",
                        peer.local_rank,
                        self.watched.len()
                    )));
                }
                let is_self = peer.local_rank == self.spec.local_rank;
                self.watched.push(Watched::new(peer, (!is_self).then_some(pidfd)));
            }
        }
        // The leader's own process id may differ from the one seen here (pid namespaces).
        self.leader.peer = self.watched[0].peer;
        Ok(())
    }

    fn receive_reply(
        &mut self,
        polling: &mut PollLoop<'_>,
    ) -> Result<(bool, Vec<u8>, Vec<OwnedFd>), RendezvousError> {
        let message = self.receive(true, polling)?;
        if message.kind != MessageKind::Reply {
            return Err(message.unexpected());
        }
        let reply: LeaderReply = message.read()?;
        let mut fds = Vec::new();
        while fds.len() < reply.fds as usize {
            let mut message = self.receive(true, polling)?;
            if message.kind != MessageKind::Descriptors
                || message.fds.is_empty()
                || message.fds.len() > MAX_FDS
            {
                return Err(message.unexpected());
            }
            fds.append(&mut message.fds);
        }
        let mut bytes = Parts::new(reply.bytes);
        while !bytes.is_complete() {
            let message = self.receive(true, polling)?;
            if message.kind != MessageKind::Part {
                return Err(message.unexpected());
            }
            bytes.add(&message.body)?;
        }
        Ok((reply.rejected, bytes.take(), fds))
    }

    fn send(
        &self,
        kind: MessageKind,
        body: &[u8],
        fd: Option<&OwnedFd>,
        polling: &mut PollLoop<'_>,
    ) -> Result<(), RendezvousError> {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        if polling.send(&self.connection, Some(&self.leader.pidfd), kind, body, &fds)? {
            return Ok(());
        }
        // A failure that the leader sent before it closed is the better reason.
        match self.connection.try_receive()? {
            Received::Message(message) => {
                self.check_failure(message).and_then(|message| Err(message.unexpected()))
            }
            Received::Nothing | Received::Closed => Err(self.leader_gone(polling)?),
        }
    }

    /// Waits for the next message while the leader lives; with `all`, while all processes live.
    ///
    /// A message that has arrived is returned before a death is reported.
    fn receive(&self, all: bool, polling: &mut PollLoop<'_>) -> Result<Message, RendezvousError> {
        loop {
            let lost = if all { first_dead(&self.watched) } else { None };
            let leader_dead = has_exited(&self.leader.pidfd);
            match self.connection.try_receive()? {
                Received::Message(message) => return self.check_failure(message),
                Received::Closed => return Err(self.leader_gone(polling)?),
                Received::Nothing if leader_dead => return Err(self.leader_gone(polling)?),
                Received::Nothing => {}
            }
            if let Some(peer) = lost {
                return Err(RendezvousError::PeerLost { peer, rendezvous: self.spec.to_string() });
            }
            let mut polled = vec![
                PollFd::new(&self.connection, PollFlags::IN),
                PollFd::new(&self.leader.pidfd, PollFlags::IN),
            ];
            if all {
                let others = self.watched.iter().filter_map(|watched| watched.pidfd.as_ref());
                polled.extend(others.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
            }
            polling.poll(&mut polled, Duration::MAX)?;
        }
    }

    /// Returns the message, or the failure that it reports.
    fn check_failure(&self, message: Message) -> Result<Message, RendezvousError> {
        if message.kind != MessageKind::Failed {
            return Ok(message);
        }
        let rendezvous = self.spec.to_string();
        Err(match message.read()? {
            Failure::Lost(peer) => RendezvousError::PeerLost { peer, rendezvous },
            Failure::Left(peer) => RendezvousError::PeerLeft { peer, rendezvous },
            Failure::Other { class: Class::Rendezvous, message, hint } => {
                RendezvousError::Mismatch { message, hint }
            }
            Failure::Other { class, message, hint } => RendezvousError::Reported { class, message, hint },
        })
    }

    /// The error for a leader whose socket is closed or whose process ended.
    fn leader_gone(&self, polling: &mut PollLoop<'_>) -> Result<RendezvousError, RendezvousError> {
        let (peer, rendezvous) = (self.leader.peer, self.spec.to_string());
        // The leader may have left because another process died.
        if let Some(peer) = first_dead(&self.watched) {
            return Ok(RendezvousError::PeerLost { peer, rendezvous });
        }
        Ok(if polling.is_dead_soon(&self.leader.pidfd)? {
            RendezvousError::PeerLost { peer, rendezvous }
        } else {
            RendezvousError::PeerLeft { peer, rendezvous }
        })
    }
}
