//! Messages between the leader of a node and its followers, and waiting for them.
//!
//! A message is one packet of a `SOCK_SEQPACKET` socket: `"FB"`, the protocol's version, its kind (one byte each), a body,
//! and descriptors. Small bodies are JSON; long byte strings go as many [`Kind::Part`]s, for a packet must fit into the
//! socket's send buffer. Sockets never block: who waits does so with `patience.rs`.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{Class, NodeError};
use super::peers::Peer;

/// Grows when messages change their meaning.
pub(super) const VERSION: u8 = 2;
const MAGIC: [u8; 2] = *b"FB";
const HEADER_BYTES: usize = 4;
/// Largest packet \[bytes\]. The kernel takes memory for a packet in one piece; larger ones gain nothing.
const PACKET_BYTES: usize = 64 << 10;
/// Descriptors per message; the kernel refuses more than 253.
pub(super) const FDS_PER_MESSAGE: usize = 64;
/// Pause when too many descriptors are on their way to be received \[ns\].
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Leader, at once: its pidfd.
    Welcome = 1,
    /// Follower: [`Hello`] and its pidfd; its greeting follows in parts.
    Hello = 2,
    /// A piece of a greeting or an outcome.
    Part = 3,
    /// Leader, when all are there: some of the [`Peer`]s and their pidfds.
    Roster = 4,
    /// Leader, after its work: [`Outcome`]; bytes and descriptors follow.
    Outcome = 5,
    /// Leader: descriptors of the outcome.
    Descriptors = 6,
    /// Follower: has everything.
    Received = 7,
    /// Leader: everybody has everything.
    Go = 8,
    /// Leader: the rendezvous failed, [`Failure`].
    Failed = 9,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        use Kind::{Descriptors, Failed, Go, Hello, Outcome, Part, Received, Roster, Welcome};
        [Welcome, Hello, Part, Roster, Outcome, Descriptors, Received, Go, Failed]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// A follower introduces itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) rank: u32,
    pub(super) local_rank: u32,
    /// Global ranks on the node, by local rank.
    pub(super) local_ranks: Vec<u32>,
    /// As it sees itself.
    pub(super) pid: i32,
    pub(super) greeting_bytes: u64,
}

/// What the leader's work came to.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// The bytes are the words of a refusal.
    pub(super) refused: bool,
    pub(super) bytes: u64,
    pub(super) fds: u32,
}

/// An error of the leader, told to the followers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Failure {
    Lost(Peer),
    Left(Peer),
    Other { class: Class, message: String, hint: String },
}

/// A message that was received.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) body: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Message {
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, NodeError> {
        serde_json::from_slice(&self.body).map_err(|error| broken(format!("{:?}: {error}", self.kind)))
    }

    /// The one descriptor that comes with this message.
    pub(super) fn one_fd(&mut self) -> Result<OwnedFd, NodeError> {
        let found = self.fds.len();
        self.fds
            .pop()
            .filter(|_| found == 1)
            .ok_or_else(|| broken(format!("{:?} with {found} descriptors", self.kind)))
    }

    pub(super) fn unexpected(&self) -> NodeError {
        broken(format!("{:?} out of turn", self.kind))
    }
}

/// The other side does not follow the protocol.
pub(super) fn broken(what: impl std::fmt::Display) -> NodeError {
    NodeError::Mismatch {
        message: format!("a process of this node sent a message that makes no sense: {what}"),
        hint: String::new(),
    }
}

/// What came of an attempt to receive.
#[derive(Debug)]
pub(super) enum Received {
    Message(Message),
    /// Nothing is there yet.
    Nothing,
    /// The other side closed its end, or died.
    Closed,
}

/// What came of an attempt to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Yes,
    /// The other side has to receive something first.
    Full,
    /// The other side closed its end, or died.
    Closed,
}

/// One connected socket.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    part_bytes: usize,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    /// Takes over a connected socket that does not block.
    pub(super) fn new(socket: OwnedFd) -> Self {
        // A packet and the kernel's own overhead must fit into the send buffer.
        let buffer = sockopt::socket_send_buffer_size(&socket).unwrap_or(PACKET_BYTES);
        let part_bytes = (buffer / 2).min(PACKET_BYTES).saturating_sub(HEADER_BYTES).max(512);
        Self { socket, part_bytes }
    }

    /// The user at the other end (for the side that connected: the one that called `listen`), and the process id, 0
    /// where it has none in this process's namespace.
    pub(super) fn other_side(&self) -> Result<(u32, i32), NodeError> {
        // Not by rustix: a process of another pid namespace has number 0 here, which rustix's `Pid` cannot hold.
        let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the descriptor is open as long as `self`, and the kernel writes at most `length` bytes, all plain
        // numbers, into `who`.
        let refused = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut who).cast(),
                &raw mut length,
            )
        };
        if refused != 0 {
            return Err(NodeError::system("see who is at a socket")(std::io::Error::last_os_error()));
        }
        Ok((who.uid, who.pid))
    }

    /// The parts of a long byte string.
    pub(super) fn parts<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        bytes.chunks(self.part_bytes)
    }

    pub(super) fn try_send(
        &self,
        kind: Kind,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Sent, NodeError> {
        let header = [MAGIC[0], MAGIC[1], VERSION, kind as u8];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(
            fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)),
            "{} descriptors",
            fds.len()
        );
        loop {
            let packet = [IoSlice::new(&header), IoSlice::new(body)];
            return match sendmsg(&self.socket, &packet, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => Ok(Sent::Yes),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(Sent::Full),
                // More descriptors under way than one user may have; they become fewer as others receive.
                Err(Errno::TOOMANYREFS) => {
                    std::thread::sleep(FULL_PAUSE);
                    Ok(Sent::Full)
                }
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Ok(Sent::Closed),
                Err(error) => Err(NodeError::system("send to a process of this node")(error)),
            };
        }
    }

    pub(super) fn try_receive(&self) -> Result<Received, NodeError> {
        let fail = || NodeError::system("receive from a process of this node");
        let mut packet = vec![0; PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            match recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut packet)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => break received,
                // Reset: the other side closed without having read everything. That is told once, before the last
                // messages that it sent.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(error) => return Err(fail()(error)),
            }
        };
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                fds.extend(some);
            }
        }
        if received.bytes == 0 {
            return Ok(Received::Closed);
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            // The kernel drops descriptors for which this process has no room.
            return Err(NodeError::system("receive all descriptors from a process of this node")(
                Errno::MFILE,
            ));
        }
        if received.flags.contains(ReturnFlags::TRUNC)
            || received.bytes < HEADER_BYTES
            || packet[..2] != MAGIC
        {
            return Err(broken(format!("a packet of {} bytes", received.bytes)));
        }
        if packet[2] != VERSION {
            return Err(NodeError::Mismatch {
                message: format!(
                    "the ranks of this node speak versions {VERSION} and {} of the rendezvous",
                    packet[2]
                ),
                hint: "install the same version of forebay for all ranks".into(),
            });
        }
        let kind = Kind::from_byte(packet[3]).ok_or_else(|| broken(format!("kind {}", packet[3])))?;
        packet.truncate(received.bytes);
        packet.drain(..HEADER_BYTES);
        Ok(Received::Message(Message { kind, body: packet, fds }))
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

    pub(super) fn add(&mut self, part: &[u8]) -> Result<(), NodeError> {
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
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Connection, Connection) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, two) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (Connection::new(one), Connection::new(two))
    }

    fn message(connection: &Connection) -> Message {
        match connection.try_receive().unwrap() {
            Received::Message(message) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_keep_their_borders_and_descriptors() {
        let (one, two) = pair();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(one.try_send(Kind::Hello, b"{}", &[file.as_fd(), file.as_fd()]).unwrap(), Sent::Yes);
        assert_eq!(one.try_send(Kind::Go, b"", &[]).unwrap(), Sent::Yes);
        let first = message(&two);
        assert_eq!((first.kind, first.body.as_slice(), first.fds.len()), (Kind::Hello, &b"{}"[..], 2));
        for fd in &first.fds {
            assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        assert_eq!(message(&two).kind, Kind::Go);
        assert!(matches!(two.try_receive().unwrap(), Received::Nothing));
        drop(one);
        assert!(matches!(two.try_receive().unwrap(), Received::Closed));
        assert_eq!(two.try_send(Kind::Go, b"", &[]).unwrap(), Sent::Closed);
    }

    #[test]
    fn the_last_words_of_one_who_left_without_listening_are_heard() {
        let (one, two) = pair();
        one.try_send(Kind::Part, b"unread", &[]).unwrap();
        two.try_send(Kind::Failed, b"words", &[]).unwrap();
        drop(two);
        assert_eq!(message(&one).body, b"words");
        assert!(matches!(one.try_receive().unwrap(), Received::Closed));
    }

    #[test]
    fn the_largest_part_fits_and_a_full_socket_says_so() {
        let (one, two) = pair();
        let bytes = vec![5; 100 << 20];
        let sent =
            one.parts(&bytes).take_while(|part| one.try_send(Kind::Part, part, &[]).unwrap() == Sent::Yes);
        let sent = sent.count();
        assert!(sent > 0 && sent < one.parts(&bytes).count());
        for _ in 0..sent {
            assert_eq!(message(&two).body.len(), one.part_bytes);
        }
        assert!(matches!(two.try_receive().unwrap(), Received::Nothing));
    }

    #[test]
    fn foreign_packets_and_other_versions_are_refused() {
        let (one, two) = pair();
        rustix::net::send(&one.socket, b"hello", SendFlags::empty()).unwrap();
        assert!(two.try_receive().unwrap_err().to_string().contains("a packet of 5 bytes"));
        rustix::net::send(&one.socket, b"FB\x63\x01", SendFlags::empty()).unwrap();
        let error = two.try_receive().unwrap_err();
        assert!(error.to_string().contains("versions 2 and 99"), "{error}");
        assert!(error.hint().is_some());
        rustix::net::send(&one.socket, b"FB\x02\x63", SendFlags::empty()).unwrap();
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
