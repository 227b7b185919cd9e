//! Packets with descriptors between processes of one node: a `SOCK_SEQPACKET` socket that never
//! blocks.
//!
//! A packet arrives whole or not at all. Descriptors travel as `SCM_RIGHTS`; the receiver's copies
//! are closed on exec. The caller defines the content, and waits with poll(2) on the socket.
//!
//! Promise: both ends of each socket are processes of the same user ([`PacketSocket::new`]).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with, sockopt,
};

use crate::error::{HostError, LISTEN};

/// Largest packet \[bytes\]. The kernel allocates a packet in one piece; larger ones gain nothing.
const PACKET_BYTES: usize = 64 << 10;
/// Lower bound of the largest packet, whatever the send buffer \[bytes\].
const MIN_PACKET_BYTES: usize = 516;
/// Descriptors per packet; the kernel refuses more than 253.
pub const MAX_FDS: usize = 64;
/// Pause while too many descriptors are in flight.
const FULL_PAUSE: Duration = Duration::from_millis(1);

fn flags() -> SocketFlags {
    SocketFlags::CLOEXEC | SocketFlags::NONBLOCK
}

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
    /// Whether it was longer than any packet of [`PacketSocket::try_send`]; the rest is lost.
    pub is_truncated: bool,
}

/// The result of an attempt to receive.
#[derive(Debug)]
pub enum Received {
    /// A packet.
    Packet(Packet),
    /// No packet is available.
    Nothing,
    /// The peer closed the connection or died.
    Closed,
}

/// The result of an attempt to send.
#[derive(Debug, PartialEq, Eq)]
pub enum Sent {
    /// The packet was sent.
    Yes,
    /// The peer has to receive earlier packets first.
    Full,
    /// The peer closed the connection or died.
    Closed,
}

/// One connected socket.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    max_packet_bytes: usize,
    peer_pid: i32,
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl PacketSocket {
    /// Takes ownership of a connected, non-blocking socket whose peer is a process of this user:
    /// the kernel says who connected or called `listen` (`SO_PEERCRED`).
    ///
    /// # Errors
    /// It is a process of another user.
    pub fn new(socket: OwnedFd) -> Result<Self, HostError> {
        let (uid, peer_pid) = peer_credentials(socket.as_fd())?;
        let expected = rustix::process::geteuid().as_raw();
        if uid != expected {
            return Err(HostError::OtherUser { expected, found: uid });
        }
        // A packet and the kernel's own overhead must fit into the send buffer.
        let buffer = sockopt::socket_send_buffer_size(&socket).unwrap_or(PACKET_BYTES);
        let max_packet_bytes = (buffer / 2).clamp(MIN_PACKET_BYTES, PACKET_BYTES);
        Ok(Self { socket, max_packet_bytes, peer_pid })
    }

    /// Connects to a listener of this user; `None` if none accepts at the moment.
    pub fn connect(path: &Path) -> Result<Option<Self>, HostError> {
        let fail = || HostError::system(format!("connect to {}", path.display()));
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags(), None).map_err(fail())?;
        let address = SocketAddrUnix::new(path).map_err(fail())?;
        match connect(&socket, &address) {
            Ok(()) => Self::new(socket).map(Some),
            // Missing; not listening, or stale; backlog full; interrupted.
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(fail()(error)),
        }
    }

    /// Largest packet \[bytes\].
    #[must_use]
    pub fn max_packet_bytes(&self) -> usize {
        self.max_packet_bytes
    }

    /// Process that connected, or called `listen`; 0 if it is not in this process's namespace.
    #[must_use]
    pub fn peer_pid(&self) -> i32 {
        self.peer_pid
    }

    /// Sends one packet: `header`, then `body`.
    ///
    /// # Panics
    /// For more than [`MAX_FDS`] descriptors.
    pub fn try_send(&self, header: &[u8], body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Sent, HostError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(
            fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)),
            "{} descriptors",
            fds.len()
        );
        loop {
            let packet = [IoSlice::new(header), IoSlice::new(body)];
            return match sendmsg(&self.socket, &packet, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => Ok(Sent::Yes),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Ok(Sent::Full),
                // The user has too many descriptors in flight; receivers reduce them.
                Err(Errno::TOOMANYREFS) => {
                    std::thread::sleep(FULL_PAUSE);
                    Ok(Sent::Full)
                }
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Ok(Sent::Closed),
                Err(error) => Err(HostError::system("send to a process of this node")(error)),
            };
        }
    }

    /// Receives one packet.
    pub fn try_receive(&self) -> Result<Received, HostError> {
        let mut bytes = vec![0; PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            match recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => break received,
                // Reset: the peer closed with unread packets. The kernel reports that once, before
                // the last packets of the peer.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(error) => return Err(HostError::system("receive from a process of this node")(error)),
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
            // The kernel drops descriptors beyond this process's limit.
            return Err(HostError::system("receive all descriptors from a process of this node")(
                Errno::MFILE,
            ));
        }
        bytes.truncate(received.bytes);
        let is_truncated = received.flags.contains(ReturnFlags::TRUNC);
        Ok(Received::Packet(Packet { bytes, fds, is_truncated }))
    }
}

/// User and process of the other end of a socket.
fn peer_credentials(socket: BorrowedFd<'_>) -> Result<(u32, i32), HostError> {
    // Without rustix, whose `Pid` cannot hold the 0 of another pid namespace.
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `socket`. The kernel writes at most `length` bytes
    // of plain numbers into `who`.
    let refused = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut length,
        )
    };
    if refused != 0 {
        return Err(HostError::system("see who is at a socket")(std::io::Error::last_os_error()));
    }
    Ok((who.uid, who.pid))
}

/// A listening socket.
#[derive(Debug)]
pub struct PacketListener {
    socket: OwnedFd,
}

impl AsFd for PacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl PacketListener {
    /// Listens at `path`, which must not exist; `backlog` limits the pending connections.
    pub fn bind(path: &Path, backlog: i32) -> Result<Self, HostError> {
        let fail = || HostError::system(format!("{LISTEN}{}", path.display()));
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags(), None).map_err(fail())?;
        let address = SocketAddrUnix::new(path).map_err(fail())?;
        bind(&socket, &address).map_err(fail())?;
        listen(&socket, backlog).map_err(fail())?;
        Ok(Self { socket })
    }

    /// Accepts a pending connection, if any. Closes those of other users: in a directory of mode
    /// 0700 only root can connect as another user.
    pub fn accept(&self) -> Result<Option<PacketSocket>, HostError> {
        loop {
            match accept_with(&self.socket, flags()).map(PacketSocket::new) {
                Ok(Ok(socket)) => return Ok(Some(socket)),
                Ok(Err(error)) => tracing::warn!(%error, "a process is refused"),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => return Err(HostError::system("accept a process of this node")(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;

    fn pair() -> (PacketSocket, PacketSocket) {
        let (one, two) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags(), None).unwrap();
        (PacketSocket::new(one).unwrap(), PacketSocket::new(two).unwrap())
    }

    fn packet(socket: &PacketSocket) -> Packet {
        match socket.try_receive().unwrap() {
            Received::Packet(packet) => packet,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn packets_keep_their_borders_and_descriptors() {
        let (one, two) = pair();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(one.try_send(b"a", b"{}", &[file.as_fd(), file.as_fd()]).unwrap(), Sent::Yes);
        assert_eq!(one.try_send(b"b", b"", &[]).unwrap(), Sent::Yes);
        let first = packet(&two);
        assert_eq!((first.bytes.as_slice(), first.fds.len(), first.is_truncated), (&b"a{}"[..], 2, false));
        for fd in &first.fds {
            assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        assert_eq!(packet(&two).bytes, b"b");
        assert!(matches!(two.try_receive().unwrap(), Received::Nothing));
        drop(one);
        assert!(matches!(two.try_receive().unwrap(), Received::Closed));
        assert_eq!(two.try_send(b"c", b"", &[]).unwrap(), Sent::Closed);
    }

    #[test]
    fn the_last_packets_of_a_peer_that_closed_with_unread_bytes_arrive() {
        let (one, two) = pair();
        one.try_send(b"", b"unread", &[]).unwrap();
        two.try_send(b"", b"last", &[]).unwrap();
        drop(two);
        assert_eq!(packet(&one).bytes, b"last");
        assert!(matches!(one.try_receive().unwrap(), Received::Closed));
    }

    #[test]
    fn the_largest_packet_fits_and_a_full_socket_is_reported() {
        let (one, two) = pair();
        let bytes = vec![5; one.max_packet_bytes()];
        let mut sent = 0;
        while one.try_send(&bytes[..4], &bytes[4..], &[]).unwrap() == Sent::Yes {
            sent += 1;
        }
        assert!(sent > 0);
        for _ in 0..sent {
            assert_eq!(packet(&two).bytes.len(), bytes.len());
        }
        assert!(matches!(two.try_receive().unwrap(), Received::Nothing));
    }
}
