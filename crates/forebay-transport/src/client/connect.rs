//! Connects to peers: each address in turn, then the handshake.
//!
//! A node may have several addresses, some of which cannot be reached. They are tried one after the
//! other, and again after a pause, until one answers or the deadline has passed. A server listens
//! before its address is handed out, so the attempt ends early if all addresses refuse, or if a
//! server refuses the handshake.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::error::TransportError;
use crate::message::auth::{
    Authenticator, BadChallenge, CHALLENGE_BYTES, Hello, VERDICT_BYTES, parse_verdict,
};
use crate::message::handshake::nonce;
use crate::socket::{Socket, prepare, receive_bytes, send_bytes};

/// How long one address may take: connect and handshake are three round trips.
const ATTEMPT_TIME: Duration = Duration::from_secs(2);
/// Pause after all addresses have failed.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How often an attempt checks whether it was given up.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Whom to connect to, and as whom.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    /// Name of the node, for messages.
    pub(crate) name: &'a str,
    pub(crate) addresses: &'a [SocketAddr],
    /// Its nonce is replaced in each attempt.
    pub(crate) hello: Hello,
    pub(crate) authenticator: &'a Authenticator,
    pub(crate) given_up: &'a AtomicBool,
}

/// A failed attempt.
enum Problem {
    /// Another attempt may succeed.
    Passing(io::Error),
    Final(TransportError),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Passing(error)
    }
}

impl Target<'_> {
    /// Connects and authenticates; returns the socket and the length of the peer's share.
    pub(crate) fn connect(&self, deadline: Instant) -> Result<(Socket, u64), TransportError> {
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let mut refused = vec![false; self.addresses.len()];
        loop {
            for (address, refused) in self.addresses.iter().zip(&mut refused) {
                match self.attempt(*address, deadline.min(Instant::now() + ATTEMPT_TIME)) {
                    Ok(connected) => return Ok(connected),
                    Err(Problem::Final(error)) => return Err(error),
                    Err(Problem::Passing(error)) => {
                        *refused = is_permanent(&error);
                        last = error;
                    }
                }
            }
            let over = self.given_up.load(Ordering::Relaxed) || Instant::now() + RETRY_PAUSE >= deadline;
            if over || refused.iter().all(|refused| *refused) {
                let address = self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let (node, source) = (self.name.to_owned(), Arc::new(last));
                return Err(TransportError::Unreachable { node, address, source });
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    fn attempt(&self, address: SocketAddr, deadline: Instant) -> Result<(Socket, u64), Problem> {
        let socket = self.open(address, deadline)?;
        prepare(socket.as_fd())?;
        let hello = Hello { nonce: nonce()?, ..self.hello };
        self.send(&socket, &hello.encode(), deadline)?;
        let challenge = self.receive::<CHALLENGE_BYTES>(&socket, deadline)?;
        let node = || (self.name.to_owned(), address.to_string());
        let refuse = |refusal| {
            let (node, address) = node();
            Problem::Final(TransportError::Refused { node, address, refusal })
        };
        let strange = |message| {
            let (node, address) = node();
            Problem::Final(TransportError::Stranger { node, address, message })
        };
        let theirs = self.authenticator.check_challenge(&hello, &challenge).map_err(|bad| match bad {
            BadChallenge::Stranger => strange("what listens there is no server of shares"),
            BadChallenge::Secret => strange("the server does not know the secret of this job"),
            BadChallenge::Refused(refusal) => refuse(refusal),
            BadChallenge::Version(found) => {
                let (node, address) = node();
                Problem::Final(TransportError::Version { node, address, found })
            }
        })?;
        self.send(&socket, &self.authenticator.proof(&hello, &theirs), deadline)?;
        let verdict = parse_verdict(&self.receive::<VERDICT_BYTES>(&socket, deadline)?);
        let share_bytes =
            verdict.map_err(|_| strange("the server answered with an unknown status"))?.map_err(refuse)?;
        Ok((socket, share_bytes))
    }

    fn open(&self, address: SocketAddr, deadline: Instant) -> io::Result<Socket> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = Socket::from(socket_with(family, SocketType::STREAM, flags, None)?);
        match connect(&socket, &address) {
            Ok(()) => return Ok(socket),
            Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            if self.wait(&socket, PollFlags::OUT, deadline)? {
                sockopt::socket_error(&socket)??;
                return Ok(socket);
            }
        }
    }

    fn send(&self, socket: &Socket, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match send_bytes(socket, bytes)? {
                Some(sent) => bytes = &bytes[sent..],
                None => drop(self.wait(socket, PollFlags::OUT, deadline)?),
            }
        }
        Ok(())
    }

    fn receive<const LENGTH: usize>(&self, socket: &Socket, deadline: Instant) -> io::Result<[u8; LENGTH]> {
        let mut bytes = [0; LENGTH];
        let mut have = 0;
        while have < LENGTH {
            match receive_bytes(socket, &mut bytes[have..])? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(received) => have += received,
                None => drop(self.wait(socket, PollFlags::IN, deadline)?),
            }
        }
        Ok(bytes)
    }

    /// Waits for the socket, for a moment at most; whether it is ready.
    fn wait(&self, socket: &Socket, flags: PollFlags, deadline: Instant) -> io::Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || self.given_up.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let time = Timespec { tv_sec: 0, tv_nsec: left.min(POLL_INTERVAL).subsec_nanos().into() };
        match poll(&mut [PollFd::new(socket, flags)], Some(&time)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether an address that failed like this fails again.
fn is_permanent(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    [ConnectionRefused, HostUnreachable, NetworkUnreachable].contains(&error.kind())
}
