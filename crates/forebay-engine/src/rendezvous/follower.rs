//! A follower's side of the rendezvous.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use forebay_host::{HostError, MAX_FDS, PacketSocket, SocketPath, has_exited, own_pidfd};
use rustix::event::{PollFd, PollFlags};

use super::error::{Class, RendezvousError};
use super::membership::{Membership, Peer, Watched, first_dead};
use super::messages::{Connection, Failure, Hello, Kind, Message, Outcome, Parts, Received, broken, written};
use super::poll_loop::PollLoop;
use super::spec::NodeSpec;

/// Pause between two attempts to connect: at first, and at most (it doubles).
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// How long a connection may stay without a welcome: it could be one to a dead leader whose socket
/// a forked child of it still holds open. A living leader that was merely busy finds the next
/// attempt.
const WELCOME_WITHIN: Duration = Duration::from_secs(3);

pub(super) fn join(
    spec: &NodeSpec,
    path: &SocketPath,
    greeting: &[u8],
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
    let result = follower.follow(greeting, polling);
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
) -> Result<(Connection, Leader), RendezvousError> {
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(connection) = PacketSocket::connect(path.socket())?.map(Connection::new) {
            let (uid, pid) = connection.other_side()?;
            let ours = rustix::process::geteuid().as_raw();
            if uid != ours {
                return Err(RendezvousError::Host(HostError::Directory {
                    path: path.socket().to_owned(),
                    problem: format!("expected a socket of user {ours}, found one of user {uid}"),
                    hint: "remove it, or set FOREBAY_RUNTIME_DIR to another directory".into(),
                }));
            }
            if let Some(pidfd) = await_welcome(&connection, polling)? {
                let peer = Peer { rank: spec.local_ranks[0], local_rank: 0, pid };
                return Ok((connection, Leader { peer, pidfd }));
            }
        }
        if begun.elapsed() >= spec.deadline {
            return Err(RendezvousError::NoLeader {
                local_rank: spec.local_rank,
                seconds: spec.deadline.as_secs(),
                meeting: spec.meeting(),
            });
        }
        // The leader waits for all; it is the one that is waited for here.
        let others: Vec<u32> =
            (0..spec.local_ranks.len() as u32).filter(|one| *one != spec.local_rank).collect();
        polling
            .look(begun, spec, &others, &[0], || format!("local rank 0 (rank {})", spec.local_ranks[0]))?;
        polling.sleep(pause.min(spec.deadline.saturating_sub(begun.elapsed())))?;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The leader's pidfd, or `None` when nobody answers here.
fn await_welcome(
    connection: &Connection,
    polling: &mut PollLoop<'_>,
) -> Result<Option<OwnedFd>, RendezvousError> {
    let begun = Instant::now();
    loop {
        match connection.try_receive()? {
            Received::Message(mut message) if message.kind == Kind::Welcome => {
                return message.one_fd().map(Some);
            }
            Received::Message(message) => return Err(message.unexpected()),
            Received::Closed => return Ok(None),
            Received::Nothing if begun.elapsed() >= WELCOME_WITHIN => return Ok(None),
            Received::Nothing => {}
        }
        polling.poll(&mut [PollFd::new(connection, PollFlags::IN)], WELCOME_WITHIN)?;
    }
}

struct Leader {
    peer: Peer,
    pidfd: OwnedFd,
}

struct Follower<'a> {
    spec: &'a NodeSpec,
    connection: Connection,
    leader: Leader,
    /// Everybody, once the roster is there.
    watched: Vec<Watched>,
}

impl Follower<'_> {
    fn follow(
        &mut self,
        greeting: &[u8],
        polling: &mut PollLoop<'_>,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), RendezvousError> {
        self.introduce(greeting, polling)?;
        self.receive_roster(polling)?;
        let (refused, bytes, fds) = self.receive_outcome(polling)?;
        self.send(Kind::Received, &[], None, polling)?;
        // From here on others may have what they need and end in peace: only the leader's word or
        // end counts.
        let message = self.receive(false, polling)?;
        if message.kind != Kind::Go {
            return Err(message.unexpected());
        }
        if refused {
            return Err(RendezvousError::Refused(String::from_utf8_lossy(&bytes).into_owned()));
        }
        Ok((bytes, fds))
    }

    fn introduce(&mut self, greeting: &[u8], polling: &mut PollLoop<'_>) -> Result<(), RendezvousError> {
        let me = self.spec.peer();
        let hello = Hello {
            rank: me.rank,
            local_rank: me.local_rank,
            local_ranks: self.spec.local_ranks.clone(),
            pid: me.pid,
            greeting_bytes: greeting.len() as u64,
        };
        self.send(Kind::Hello, &written(&hello), Some(&own_pidfd()?), polling)?;
        let parts: Vec<&[u8]> = self.connection.parts(greeting).collect();
        parts.into_iter().try_for_each(|part| self.send(Kind::Part, part, None, polling))
    }

    fn receive_roster(&mut self, polling: &mut PollLoop<'_>) -> Result<(), RendezvousError> {
        let size = self.spec.local_ranks.len();
        while self.watched.len() < size {
            let mut message = self.receive(true, polling)?;
            if message.kind != Kind::Roster {
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
                        "local rank {} in place {}",
                        peer.local_rank,
                        self.watched.len()
                    )));
                }
                let is_me = peer.local_rank == self.spec.local_rank;
                self.watched.push(Watched::new(peer, (!is_me).then_some(pidfd)));
            }
        }
        // The leader may see itself under another number than we do.
        self.leader.peer = self.watched[0].peer;
        Ok(())
    }

    fn receive_outcome(
        &mut self,
        polling: &mut PollLoop<'_>,
    ) -> Result<(bool, Vec<u8>, Vec<OwnedFd>), RendezvousError> {
        let message = self.receive(true, polling)?;
        if message.kind != Kind::Outcome {
            return Err(message.unexpected());
        }
        let outcome: Outcome = message.read()?;
        let mut fds = Vec::new();
        while fds.len() < outcome.fds as usize {
            let mut message = self.receive(true, polling)?;
            if message.kind != Kind::Descriptors || message.fds.is_empty() || message.fds.len() > MAX_FDS {
                return Err(message.unexpected());
            }
            fds.append(&mut message.fds);
        }
        let mut bytes = Parts::new(outcome.bytes);
        while !bytes.is_complete() {
            let message = self.receive(true, polling)?;
            if message.kind != Kind::Part {
                return Err(message.unexpected());
            }
            bytes.add(&message.body)?;
        }
        Ok((outcome.refused, bytes.take(), fds))
    }

    fn send(
        &self,
        kind: Kind,
        body: &[u8],
        fd: Option<&OwnedFd>,
        polling: &mut PollLoop<'_>,
    ) -> Result<(), RendezvousError> {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        if polling.send(&self.connection, Some(&self.leader.pidfd), kind, body, &fds)? {
            return Ok(());
        }
        // What the leader said before it went is the better reason.
        match self.connection.try_receive()? {
            Received::Message(message) => {
                self.understand(message).and_then(|message| Err(message.unexpected()))
            }
            Received::Nothing | Received::Closed => Err(self.leader_gone(polling)?),
        }
    }

    /// Waits for the next message, as long as the leader lives, and with `all` as long as everybody
    /// lives.
    ///
    /// What was sent counts before who died.
    fn receive(&self, all: bool, polling: &mut PollLoop<'_>) -> Result<Message, RendezvousError> {
        loop {
            let lost = if all { first_dead(&self.watched) } else { None };
            let leader_dead = has_exited(&self.leader.pidfd);
            match self.connection.try_receive()? {
                Received::Message(message) => return self.understand(message),
                Received::Closed => return Err(self.leader_gone(polling)?),
                Received::Nothing if leader_dead => return Err(self.leader_gone(polling)?),
                Received::Nothing => {}
            }
            if let Some(peer) = lost {
                return Err(RendezvousError::PeerLost { peer, meeting: self.spec.meeting() });
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

    /// A message, or the failure that it tells of.
    fn understand(&self, message: Message) -> Result<Message, RendezvousError> {
        if message.kind != Kind::Failed {
            return Ok(message);
        }
        let meeting = self.spec.meeting();
        Err(match message.read()? {
            Failure::Lost(peer) => RendezvousError::PeerLost { peer, meeting },
            Failure::Left(peer) => RendezvousError::PeerLeft { peer, meeting },
            Failure::Other { class: Class::Rendezvous, message, hint } => {
                RendezvousError::Mismatch { message, hint }
            }
            Failure::Other { class, message, hint } => RendezvousError::Told { class, message, hint },
        })
    }

    /// What to say when the leader's socket is closed, or its process ended.
    fn leader_gone(&self, polling: &mut PollLoop<'_>) -> Result<RendezvousError, RendezvousError> {
        let (peer, meeting) = (self.leader.peer, self.spec.meeting());
        // It may have left because another one died.
        if let Some(peer) = first_dead(&self.watched) {
            return Ok(RendezvousError::PeerLost { peer, meeting });
        }
        Ok(if polling.is_dead_soon(&self.leader.pidfd)? {
            RendezvousError::PeerLost { peer, meeting }
        } else {
            RendezvousError::PeerLeft { peer, meeting }
        })
    }
}
