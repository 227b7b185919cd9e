//! Messages between the leader of a node and its followers.
//!
//! A message is one packet of a `SOCK_SEQPACKET` socket: `"FB"`, the protocol's version, its kind
//! (one byte each), a body, and descriptors. Small bodies are JSON; long byte strings are split
//! into [`MessageKind::Part`]s, because a packet must fit into the socket's send buffer. Sockets
//! never block: `poll_loop.rs` waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_host::{Packet, PacketSocket, Sent};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{Class, RendezvousError};
use super::membership::Peer;

/// Grows when messages change their meaning.
pub(super) const VERSION: u8 = 2;
const MAGIC: [u8; 2] = *b"FB";
const HEADER_BYTES: usize = 4;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MessageKind {
    /// Leader, on each new connection: its pidfd.
    Welcome = 1,
    /// Follower: [`HelloHeader`] and its pidfd; the caller's bytes follow in parts.
    Hello = 2,
    /// A part of a hello or of a reply.
    Part = 3,
    /// Leader, after all followers connected: some of the [`Peer`]s and their pidfds.
    Members = 4,
    /// Leader, after its work: [`LeaderReply`]; bytes and descriptors follow.
    Reply = 5,
    /// Leader: descriptors of the reply.
    Descriptors = 6,
    /// Follower: the reply is complete.
    Received = 7,
    /// Leader: all followers have the reply.
    Go = 8,
    /// Leader: the rendezvous failed, [`Failure`].
    Failed = 9,
}

impl MessageKind {
    fn from_byte(byte: u8) -> Option<Self> {
        use MessageKind::{Descriptors, Failed, Go, Hello, Members, Part, Received, Reply, Welcome};
        [Welcome, Hello, Part, Members, Reply, Descriptors, Received, Go, Failed]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Body of [`MessageKind::Hello`]: what a follower states about itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HelloHeader {
    pub(super) rank: u32,
    pub(super) local_rank: u32,
    /// Global ranks on the node, by local rank.
    pub(super) local_ranks: Vec<u32>,
    /// Process id in the follower's own pid namespace.
    pub(super) pid: i32,
    pub(super) hello_bytes: u64,
}

/// Body of [`MessageKind::Reply`]: the result of the leader's work.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LeaderReply {
    /// The bytes are the message of a rejection.
    pub(super) rejected: bool,
    pub(super) bytes: u64,
    pub(super) fds: u32,
}

/// Body of [`MessageKind::Failed`]: the leader's error.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Failure {
    Lost(Peer),
    Left(Peer),
    Other { class: Class, message: String, hint: String },
}

/// A message that was received.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: MessageKind,
    pub(super) body: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Message {
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, RendezvousError> {
        serde_json::from_slice(&self.body).map_err(|error| broken(format!("{:?}: {error}", self.kind)))
    }

    /// The one descriptor that comes with this message.
    pub(super) fn one_fd(&mut self) -> Result<OwnedFd, RendezvousError> {
        let found = self.fds.len();
        self.fds
            .pop()
            .filter(|_| found == 1)
            .ok_or_else(|| broken(format!("{:?} with {found} descriptors", self.kind)))
    }

    pub(super) fn unexpected(&self) -> RendezvousError {
        broken(format!("{:?} out of order", self.kind))
    }
}

/// The other side does not follow the protocol.
pub(super) fn broken(what: impl std::fmt::Display) -> RendezvousError {
    RendezvousError::Mismatch {
        message: format!("malformed message from a process of this node: {what}"),
        hint: String::new(),
    }
}

/// Result of an attempt to receive.
#[derive(Debug)]
pub(super) enum Received {
    Message(Message),
    /// No message has arrived.
    Nothing,
    /// The other side closed its end, or died.
    Closed,
}

/// One connected socket.
#[derive(Debug)]
pub(super) struct MessageSocket(PacketSocket);

impl AsFd for MessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl MessageSocket {
    /// Takes over a connected socket.
    pub(super) fn new(socket: PacketSocket) -> Self {
        Self(socket)
    }

    /// [`PacketSocket::peer_pid`].
    pub(super) fn peer_pid(&self) -> i32 {
        self.0.peer_pid()
    }

    /// The parts of a long byte string.
    pub(super) fn parts<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        bytes.chunks(self.0.max_packet_bytes() - HEADER_BYTES)
    }

    pub(super) fn try_send(
        &self,
        kind: MessageKind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Sent, RendezvousError> {
        let header = [MAGIC[0], MAGIC[1], VERSION, kind as u8];
        Ok(self.0.try_send(&header, body, fds)?)
    }

    pub(super) fn try_receive(&self) -> Result<Received, RendezvousError> {
        let Packet { mut bytes, fds, is_truncated } = match self.0.try_receive()? {
            forebay_host::Received::Packet(packet) => packet,
            forebay_host::Received::Nothing => return Ok(Received::Nothing),
            forebay_host::Received::Closed => return Ok(Received::Closed),
        };
        if is_truncated || bytes.len() < HEADER_BYTES || bytes[..2] != MAGIC {
            return Err(broken(format!("a packet of {} bytes", bytes.len())));
        }
        if bytes[2] != VERSION {
            return Err(RendezvousError::Mismatch {
                message: format!(
                    "the ranks of this node speak versions {VERSION} and {} of the rendezvous",
                    bytes[2]
                ),
                hint: "install the same version of forebay for all ranks".into(),
            });
        }
        let kind = MessageKind::from_byte(bytes[3]).ok_or_else(|| broken(format!("kind {}", bytes[3])))?;
        bytes.drain(..HEADER_BYTES);
        Ok(Received::Message(Message { kind, body: bytes, fds }))
    }
}

/// JSON of a small body.
pub(super) fn written(body: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(body).expect("numbers and strings can be written as JSON")
}

/// A byte string that arrives in parts.
#[derive(Debug, Default)]
pub(super) struct Parts {
    bytes: Vec<u8>,
    expected: u64,
}

impl Parts {
    pub(super) fn new(expected: u64) -> Self {
        Self { bytes: Vec::new(), expected }
    }

    pub(super) fn add(&mut self, part: &[u8]) -> Result<(), RendezvousError> {
        self.bytes.extend_from_slice(part);
        if self.bytes.len() as u64 > self.expected {
            return Err(broken(format!("{} bytes instead of {}", self.bytes.len(), self.expected)));
        }
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.bytes.len() as u64 == self.expected
    }

    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

    fn pair() -> (MessageSocket, MessageSocket) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, two) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (
            MessageSocket::new(PacketSocket::new(one).unwrap()),
            MessageSocket::new(PacketSocket::new(two).unwrap()),
        )
    }

    #[test]
    fn a_message_arrives_with_its_kind_body_and_descriptors() {
        let (one, two) = pair();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(one.try_send(MessageKind::Hello, b"{}", &[file.as_fd()]).unwrap(), Sent::Yes);
        let Received::Message(message) = two.try_receive().unwrap() else { panic!("no message") };
        assert_eq!(
            (message.kind, message.body.as_slice(), message.fds.len()),
            (MessageKind::Hello, &b"{}"[..], 1)
        );
        assert!(matches!(two.try_receive().unwrap(), Received::Nothing));
        drop(one);
        assert!(matches!(two.try_receive().unwrap(), Received::Closed));
    }

    #[test]
    fn foreign_packets_and_other_versions_are_refused() {
        let (one, two) = pair();
        rustix::net::send(&one, b"hello", SendFlags::empty()).unwrap();
        assert!(two.try_receive().unwrap_err().to_string().contains("a packet of 5 bytes"));
        rustix::net::send(&one, b"FB\x63\x01", SendFlags::empty()).unwrap();
        let error = two.try_receive().unwrap_err();
        assert!(error.to_string().contains("versions 2 and 99"), "{error}");
        assert!(error.hint().is_some());
        rustix::net::send(&one, b"FB\x02\x63", SendFlags::empty()).unwrap();
        assert!(two.try_receive().unwrap_err().to_string().contains("kind 99"));
    }

    #[test]
    fn more_bytes_than_announced_are_refused() {
        let mut parts = Parts::new(3);
        parts.add(b"ab").unwrap();
        assert!(!parts.is_complete());
        assert!(parts.add(b"cd").is_err());
    }
}
