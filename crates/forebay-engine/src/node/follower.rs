//! A follower's side of the rendezvous.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::directory::Place;
use super::error::{Class, NodeError};
use super::patience::Patience;
use super::peers::{Membership, Peer, Watched, first_dead, is_dead, own_pidfd};
use super::spec::NodeSpec;
use super::wire::{
    Connection, FDS_PER_MESSAGE, Failure, Hello, Kind, Message, Outcome, Parts, Received, broken, written,
};

/// Pause between two attempts to connect: at first, and at most (it doubles).
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// How long a connection may stay without a welcome: it could be one to a dead leader whose socket a forked child of it
/// still holds open. A living leader that was merely busy finds the next attempt.
const WELCOME_WITHIN: Duration = Duration::from_secs(3);

pub(super) fn join(
    spec: &NodeSpec,
    place: &Place,
    greeting: &[u8],
    patience: &mut Patience<'_>,
) -> Result<Membership, NodeError> {
    let (connection, leader) = match find_leader(spec, place, patience) {
        Ok(found) => found,
        Err(error) => {
            // A leader that died alone may have left its socket.
            place.clean();
            return Err(error);
        }
    };
    let mut follower = Follower { spec, connection, leader, watched: Vec::new() };
    let result = follower.follow(greeting, patience);
    if matches!(result, Err(NodeError::PeerLost { peer: Peer { local_rank: 0, .. }, .. })) {
        place.clean();
    }
    let (reply, fds) = result?;
    Ok(Membership::new(reply, fds, spec.local_rank, follower.watched))
}

/// Connects to the leader, as often as it takes, and waits for its welcome.
fn find_leader(
    spec: &NodeSpec,
    place: &Place,
    patience: &mut Patience<'_>,
) -> Result<(Connection, Leader), NodeError> {
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(connection) = try_connect(place)? {
            let (uid, pid) = connection.other_side()?;
            let ours = rustix::process::geteuid().as_raw();
            if uid != ours {
                return Err(NodeError::Directory {
                    path: place.socket.clone(),
                    problem: format!("expected a socket of user {ours}, found one of user {uid}"),
                    hint: "remove it, or set FOREBAY_RUNTIME_DIR to another directory".into(),
                });
            }
            if let Some(pidfd) = await_welcome(&connection, patience)? {
                let peer = Peer { rank: spec.local_ranks[0], local_rank: 0, pid };
                return Ok((connection, Leader { peer, pidfd }));
            }
        }
        if begun.elapsed() >= spec.deadline {
            return Err(NodeError::NoLeader {
                local_rank: spec.local_rank,
                seconds: spec.deadline.as_secs(),
                meeting: spec.meeting(),
            });
        }
        // The leader waits for all; it is the one that is waited for here.
        let others: Vec<u32> =
            (0..spec.local_ranks.len() as u32).filter(|one| *one != spec.local_rank).collect();
        patience
            .look(begun, spec, &others, &[0], || format!("local rank 0 (rank {})", spec.local_ranks[0]))?;
        patience.sleep(pause.min(spec.deadline.saturating_sub(begun.elapsed())))?;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn try_connect(place: &Place) -> Result<Option<Connection>, NodeError> {
    let fail = || NodeError::system(format!("connect to {}", place.socket.display()));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(fail())?;
    let address = SocketAddrUnix::new(&place.socket).map_err(fail())?;
    match connect(&socket, &address) {
        Ok(()) => Ok(Some(Connection::new(socket))),
        // Not there yet; bound but not listening, or stale; many at the door; interrupted.
        Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(error) => Err(fail()(error)),
    }
}

/// The leader's pidfd, or `None` when nobody answers here.
fn await_welcome(connection: &Connection, patience: &mut Patience<'_>) -> Result<Option<OwnedFd>, NodeError> {
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
        patience.poll(&mut [PollFd::new(connection, PollFlags::IN)], WELCOME_WITHIN)?;
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
        patience: &mut Patience<'_>,
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), NodeError> {
        self.introduce(greeting, patience)?;
        self.receive_roster(patience)?;
        let (refused, bytes, fds) = self.receive_outcome(patience)?;
        self.send(Kind::Received, &[], None, patience)?;
        // From here on others may have what they need and end in peace: only the leader's word or end counts.
        let message = self.receive(false, patience)?;
        if message.kind != Kind::Go {
            return Err(message.unexpected());
        }
        if refused {
            return Err(NodeError::Refused(String::from_utf8_lossy(&bytes).into_owned()));
        }
        Ok((bytes, fds))
    }

    fn introduce(&mut self, greeting: &[u8], patience: &mut Patience<'_>) -> Result<(), NodeError> {
        let me = self.spec.peer();
        let hello = Hello {
            rank: me.rank,
            local_rank: me.local_rank,
            local_ranks: self.spec.local_ranks.clone(),
            pid: me.pid,
            greeting_bytes: greeting.len() as u64,
        };
        self.send(Kind::Hello, &written(&hello), Some(&own_pidfd()?), patience)?;
        let parts: Vec<&[u8]> = self.connection.parts(greeting).collect();
        parts.into_iter().try_for_each(|part| self.send(Kind::Part, part, None, patience))
    }

    fn receive_roster(&mut self, patience: &mut Patience<'_>) -> Result<(), NodeError> {
        let size = self.spec.local_ranks.len();
        while self.watched.len() < size {
            let mut message = self.receive(true, patience)?;
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
        patience: &mut Patience<'_>,
    ) -> Result<(bool, Vec<u8>, Vec<OwnedFd>), NodeError> {
        let message = self.receive(true, patience)?;
        if message.kind != Kind::Outcome {
            return Err(message.unexpected());
        }
        let outcome: Outcome = message.read()?;
        let mut fds = Vec::new();
        while fds.len() < outcome.fds as usize {
            let mut message = self.receive(true, patience)?;
            if message.kind != Kind::Descriptors
                || message.fds.is_empty()
                || message.fds.len() > FDS_PER_MESSAGE
            {
                return Err(message.unexpected());
            }
            fds.append(&mut message.fds);
        }
        let mut bytes = Parts::new(outcome.bytes);
        while !bytes.is_complete() {
            let message = self.receive(true, patience)?;
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
        patience: &mut Patience<'_>,
    ) -> Result<(), NodeError> {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        if patience.send(&self.connection, Some(&self.leader.pidfd), kind, body, &fds)? {
            return Ok(());
        }
        // What the leader said before it went is the better reason.
        match self.connection.try_receive()? {
            Received::Message(message) => {
                self.understand(message).and_then(|message| Err(message.unexpected()))
            }
            Received::Nothing | Received::Closed => Err(self.leader_gone(patience)?),
        }
    }

    /// Waits for the next message, as long as the leader lives, and with `all` as long as everybody lives.
    ///
    /// What was sent counts before who died.
    fn receive(&self, all: bool, patience: &mut Patience<'_>) -> Result<Message, NodeError> {
        loop {
            let lost = if all { first_dead(&self.watched) } else { None };
            let leader_dead = is_dead(&self.leader.pidfd);
            match self.connection.try_receive()? {
                Received::Message(message) => return self.understand(message),
                Received::Closed => return Err(self.leader_gone(patience)?),
                Received::Nothing if leader_dead => return Err(self.leader_gone(patience)?),
                Received::Nothing => {}
            }
            if let Some(peer) = lost {
                return Err(NodeError::PeerLost { peer, meeting: self.spec.meeting() });
            }
            let mut polled = vec![
                PollFd::new(&self.connection, PollFlags::IN),
                PollFd::new(&self.leader.pidfd, PollFlags::IN),
            ];
            if all {
                let others = self.watched.iter().filter_map(|watched| watched.pidfd.as_ref());
                polled.extend(others.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
            }
            patience.poll(&mut polled, Duration::MAX)?;
        }
    }

    /// A message, or the failure that it tells of.
    fn understand(&self, message: Message) -> Result<Message, NodeError> {
        if message.kind != Kind::Failed {
            return Ok(message);
        }
        let meeting = self.spec.meeting();
        Err(match message.read()? {
            Failure::Lost(peer) => NodeError::PeerLost { peer, meeting },
            Failure::Left(peer) => NodeError::PeerLeft { peer, meeting },
            Failure::Other { class: Class::Options, message, hint } => NodeError::Mismatch { message, hint },
            Failure::Other { class, message, hint } => NodeError::Told { class, message, hint },
        })
    }

    /// What to say when the leader's socket is closed, or its process ended.
    fn leader_gone(&self, patience: &mut Patience<'_>) -> Result<NodeError, NodeError> {
        let (peer, meeting) = (self.leader.peer, self.spec.meeting());
        // It may have left because another one died.
        if let Some(peer) = first_dead(&self.watched) {
            return Ok(NodeError::PeerLost { peer, meeting });
        }
        Ok(if patience.is_dead_soon(&self.leader.pidfd)? {
            NodeError::PeerLost { peer, meeting }
        } else {
            NodeError::PeerLeft { peer, meeting }
        })
    }
}
