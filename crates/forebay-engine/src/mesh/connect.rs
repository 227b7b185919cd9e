//! Connects the leaders: each of them connects to the leaders of lower index, and accepts
//! connections of those of higher index.
//!
//! Leaders exchange their addresses after all of them listen. So a port that refuses a connection
//! means that its process has ended, or has closed it after a failure. A leader that connects sees
//! this at once; one that waits to be connected probes the other's port every second. A leader with
//! all its links closes its listening socket only when the other ends have completed them.
//!
//! A node has several addresses, some of which may be unreachable. They are tried one by one,
//! each [`NEXT_ADDRESS_DELAY`] after the previous one or when that failed. The first that ends in a
//! welcome becomes the link. Pending peers are dropped without a reply when they send anything
//! unexpected, when they are slow, or when there are too many.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_transport::handshake::{HandshakeKey, Nonce, PROOF_BYTES, Side, nonce};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::auth::{ANSWER_BYTES, HELLO_BYTES, Hello, WELCOME, answer, check_answer, key};
use super::endpoint::Listener;
use super::error::LinkError;
use super::io_thread::prepare;
use super::spec::LinksSpec;
use super::state::{Mesh, NodePresence};

/// Head start of an address over the next one of the same node: a round trip in a cluster takes
/// less than a millisecond.
const NEXT_ADDRESS_DELAY: Duration = Duration::from_millis(250);
/// How long an address may be silent before it is tried again.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a leader that gives up waits for links that the other side has already completed, and
/// how often it polls.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(500);
const SETTLE_INTERVAL: Duration = Duration::from_millis(2);
/// How often a leader that has not connected is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How long a pending peer may take to authenticate.
const PENDING_TIMEOUT: Duration = Duration::from_secs(5);
/// Pending peers at once, in addition to one for each node.
const MAX_PENDING: usize = 64;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Receives a fixed number of bytes, across partial reads.
struct Expected {
    bytes: Vec<u8>,
    have: usize,
}

/// Result of an attempt to receive.
enum Partial {
    Complete(Vec<u8>),
    Pending,
    /// The other side closed the connection.
    Closed,
}

impl Expected {
    fn new(length: usize) -> Self {
        Self { bytes: vec![0; length], have: 0 }
    }

    fn read(&mut self, mut socket: &TcpStream) -> Partial {
        while self.have < self.bytes.len() {
            match socket.read(&mut self.bytes[self.have..]) {
                Ok(0) => return Partial::Closed,
                Ok(bytes) => self.have += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Partial::Pending,
                Err(_) => return Partial::Closed,
            }
        }
        Partial::Complete(std::mem::take(&mut self.bytes))
    }
}

/// Sends a few bytes; a fresh socket takes them at once.
fn send(mut socket: &TcpStream, bytes: &[u8]) -> bool {
    socket.write(bytes).is_ok_and(|written| written == bytes.len())
}

fn fresh_nonce() -> Result<Nonce, LinkError> {
    nonce().map_err(LinkError::system("get random bytes"))
}

/// A connection that has not authenticated.
struct PendingPeer {
    socket: TcpStream,
    since: Instant,
    expected: Expected,
    /// What it has sent, and the nonce that it got.
    greeted: Option<(Hello, Nonce)>,
}

/// One outgoing connection.
struct Attempt {
    address: usize,
    socket: TcpStream,
    since: Instant,
    stage: Stage,
}

enum Stage {
    Connecting,
    Answer(Hello, Expected),
    Welcome(Expected),
}

/// State of an attempt after it was advanced.
enum Progress {
    Waits(Attempt),
    /// With the error, if it is permanent.
    Failed(Option<Arc<std::io::Error>>),
    Linked(TcpStream),
}

/// Connects to one leader, or probes its port.
struct Dialer {
    node: usize,
    probes: bool,
    addresses: Vec<SocketAddr>,
    /// By address: the permanent error of the last attempt.
    refused: Vec<Option<Arc<std::io::Error>>>,
    next: usize,
    next_at: Instant,
    attempts: Vec<Attempt>,
}

struct Connector<'a> {
    mesh: &'a Mesh,
    spec: &'a LinksSpec,
    key: HandshakeKey,
    pending: VecDeque<PendingPeer>,
    dialers: Vec<Dialer>,
    linked: Vec<bool>,
}

/// Links this leader to all others.
pub(super) fn connect_all(
    mesh: &Mesh,
    listener: &Listener,
    spec: &LinksSpec,
    (job, loader): (&str, &str),
    deadline: Duration,
    check: &mut dyn FnMut() -> bool,
) -> Result<(), LinkError> {
    let now = Instant::now();
    let dialer = |node: usize| {
        let addresses = spec.endpoints[node].reached_from(listener.endpoint());
        let probes = node > spec.own_node;
        Dialer {
            node,
            probes,
            refused: vec![None; addresses.len()],
            addresses,
            next: 0,
            next_at: if probes { now + PROBE_INTERVAL } else { now },
            attempts: Vec::new(),
        }
    };
    let mut connector = Connector {
        mesh,
        spec,
        key: key(&spec.secret, job, loader),
        pending: VecDeque::new(),
        dialers: mesh.others().map(dialer).collect(),
        linked: (0..spec.endpoints.len()).map(|node| node == spec.own_node).collect(),
    };
    connector.link_all(listener, deadline, check).inspect_err(|_| connector.settle())
}

impl Connector<'_> {
    fn link_all(
        &mut self,
        listener: &Listener,
        deadline: Duration,
        check: &mut dyn FnMut() -> bool,
    ) -> Result<(), LinkError> {
        let begun = Instant::now();
        loop {
            self.dial()?;
            self.accept(listener)?;
            if self.linked.iter().all(|linked| *linked) {
                return Ok(());
            }
            if let Some(failure) = self.mesh.failure(&self.mesh.lock()) {
                return Err(failure);
            }
            if !check() {
                return Err(LinkError::Interrupted);
            }
            if begun.elapsed() > deadline {
                return Err(self.missing(deadline));
            }
            self.wait(listener);
        }
    }

    /// When this leader gives up: completes the links that the other side has already completed, to
    /// report the reason over them instead of appearing dead.
    fn settle(&mut self) {
        let begun = Instant::now();
        loop {
            let mut open = false;
            for mut dialer in std::mem::take(&mut self.dialers) {
                for attempt in std::mem::take(&mut dialer.attempts) {
                    if self.linked[dialer.node] || !matches!(attempt.stage, Stage::Welcome(_)) {
                        continue;
                    }
                    match self.advance(&dialer, attempt) {
                        Ok(Progress::Waits(attempt)) => dialer.attempts.push(attempt),
                        // A peer that cannot be linked gets no report.
                        Ok(Progress::Linked(socket)) => drop(self.link(dialer.node, socket)),
                        Ok(Progress::Failed(_)) | Err(_) => {}
                    }
                }
                open |= !dialer.attempts.is_empty();
                self.dialers.push(dialer);
            }
            if !open || begun.elapsed() > SETTLE_TIMEOUT {
                return;
            }
            std::thread::sleep(SETTLE_INTERVAL);
        }
    }

    fn wait(&self, listener: &Listener) {
        let mut polled = vec![PollFd::new(&listener.socket, PollFlags::IN)];
        polled.extend(self.pending.iter().map(|peer| PollFd::new(&peer.socket, PollFlags::IN)));
        for attempt in self.dialers.iter().flat_map(|dialer| &dialer.attempts) {
            let flags = match attempt.stage {
                Stage::Connecting => PollFlags::OUT,
                _ => PollFlags::IN,
            };
            polled.push(PollFd::from_borrowed_fd(attempt.socket.as_fd(), flags));
        }
        // After a signal the caller's check comes next anyway.
        let _ =
            poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: POLL_INTERVAL.subsec_nanos().into() }));
    }

    fn missing(&self, deadline: Duration) -> LinkError {
        let missing = (0..self.linked.len()).filter(|node| !self.linked[*node]);
        let who = missing.map(|node| self.mesh.nodes.leader(node)).collect::<Vec<_>>().join(", ");
        LinkError::Missing { who, seconds: deadline.as_secs() }
    }

    fn link(&mut self, node: usize, socket: TcpStream) -> Result<(), LinkError> {
        prepare(&socket)?;
        self.linked[node] = true;
        let mut state = self.mesh.lock();
        state.nodes[node].presence = NodePresence::Here;
        state.adopted.push((node, socket));
        drop(state);
        self.mesh.wake_thread();
        Ok(())
    }

    // --- incoming connections ---

    fn accept(&mut self, listener: &Listener) -> Result<(), LinkError> {
        loop {
            match listener.socket.accept() {
                Ok((socket, _)) => {
                    if socket.set_nonblocking(true).is_ok() && socket.set_nodelay(true).is_ok() {
                        let expected = Expected::new(HELLO_BYTES);
                        self.pending.push_back(PendingPeer {
                            socket,
                            since: Instant::now(),
                            expected,
                            greeted: None,
                        });
                    }
                    if self.pending.len() > MAX_PENDING + self.linked.len() {
                        self.pending.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The error is of one connection, not of the listener (accept(2)); a lack of
                // descriptors may also pass.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        for _ in 0..self.pending.len() {
            if let Some(peer) = self.pending.pop_front()
                && peer.since.elapsed() < PENDING_TIMEOUT
            {
                self.receive_hello(peer)?;
            }
        }
        Ok(())
    }

    /// Advances the handshake of a pending peer; drops it when it sends anything unexpected.
    fn receive_hello(&mut self, mut peer: PendingPeer) -> Result<(), LinkError> {
        loop {
            let bytes = match peer.expected.read(&peer.socket) {
                Partial::Complete(bytes) => bytes,
                Partial::Pending => {
                    self.pending.push_back(peer);
                    return Ok(());
                }
                Partial::Closed => return Ok(()),
            };
            match &peer.greeted {
                None => {
                    let Some(hello) = array(&bytes).and_then(Hello::parse) else { return Ok(()) };
                    let expected = hello.to as usize == self.spec.own_node && hello.from > hello.to;
                    if !expected || self.linked.get(hello.from as usize) != Some(&false) {
                        return Ok(());
                    }
                    let nonce = fresh_nonce()?;
                    if !send(&peer.socket, &answer(&self.key, &hello, &nonce)) {
                        return Ok(());
                    }
                    peer.greeted = Some((hello, nonce));
                    peer.expected = Expected::new(PROOF_BYTES);
                }
                Some((hello, nonce)) => {
                    let first = hello.encode();
                    let is_proved = array(&bytes)
                        .is_some_and(|proof| self.key.is_proved(Side::Connecting, &first, nonce, proof));
                    let node = hello.from as usize;
                    if is_proved && !self.linked[node] && send(&peer.socket, &[WELCOME]) {
                        self.link(node, peer.socket)?;
                    }
                    return Ok(());
                }
            }
        }
    }

    // --- outgoing connections ---

    fn dial(&mut self) -> Result<(), LinkError> {
        let mut dialers = std::mem::take(&mut self.dialers);
        dialers.retain(|dialer| !self.linked[dialer.node]);
        let dialed = dialers.iter_mut().try_for_each(|dialer| self.dial_node(dialer));
        // Also after an error, as `settle` completes their attempts.
        self.dialers = dialers;
        dialed
    }

    fn dial_node(&mut self, dialer: &mut Dialer) -> Result<(), LinkError> {
        for attempt in std::mem::take(&mut dialer.attempts) {
            let address = attempt.address;
            match self.advance(dialer, attempt)? {
                Progress::Waits(attempt) => dialer.attempts.push(attempt),
                Progress::Failed(refused) => {
                    dialer.refused[address] = refused;
                    if !dialer.probes {
                        dialer.next_at = dialer.next_at.min(Instant::now() + POLL_INTERVAL);
                    }
                }
                Progress::Linked(socket) => {
                    if !self.linked[dialer.node] {
                        self.link(dialer.node, socket)?;
                    }
                }
            }
        }
        if self.linked[dialer.node] { Ok(()) } else { self.start(dialer) }
    }

    /// Starts the next attempt when it is due; fails when every address has refused.
    fn start(&self, dialer: &mut Dialer) -> Result<(), LinkError> {
        let who = || self.mesh.nodes.leader(dialer.node);
        if dialer.addresses.is_empty() {
            return Err(LinkError::Unreachable { who: who(), address: "any address".into(), source: None });
        }
        if dialer.attempts.is_empty()
            && let Some(problem) = dialer.refused.iter().flatten().next()
            && dialer.refused.iter().all(Option::is_some)
        {
            let address = dialer.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let source = Some(Arc::clone(problem));
            return Err(LinkError::Unreachable { who: who(), address, source });
        }
        let address = dialer.next;
        if Instant::now() < dialer.next_at || dialer.attempts.iter().any(|one| one.address == address) {
            return Ok(());
        }
        dialer.next = (address + 1) % dialer.addresses.len();
        dialer.next_at = Instant::now() + if dialer.probes { PROBE_INTERVAL } else { NEXT_ADDRESS_DELAY };
        match start_connecting(dialer.addresses[address]) {
            Ok(socket) => {
                let stage = Stage::Connecting;
                dialer.attempts.push(Attempt { address, socket, since: Instant::now(), stage });
            }
            Err(error) => dialer.refused[address] = refusal(error),
        }
        Ok(())
    }

    fn advance(&self, dialer: &Dialer, mut attempt: Attempt) -> Result<Progress, LinkError> {
        let failed = |refused| Ok(Progress::Failed(refused));
        if attempt.since.elapsed() > ATTEMPT_TIMEOUT {
            return failed(None);
        }
        loop {
            match &mut attempt.stage {
                Stage::Connecting => {
                    match attempt.socket.take_error() {
                        Ok(None) => {}
                        Ok(Some(error)) | Err(error) => return failed(refusal(error)),
                    }
                    if attempt.socket.peer_addr().is_err() {
                        return Ok(Progress::Waits(attempt));
                    }
                    if dialer.probes {
                        return failed(None); // the port is open: the leader lives
                    }
                    let (from, to) = (self.spec.own_node as u32, dialer.node as u32);
                    let hello = Hello { from, to, nonce: fresh_nonce()? };
                    if !send(&attempt.socket, &hello.encode()) {
                        return failed(None);
                    }
                    attempt.stage = Stage::Answer(hello, Expected::new(ANSWER_BYTES));
                }
                Stage::Answer(hello, expected) => {
                    let bytes = match expected.read(&attempt.socket) {
                        Partial::Complete(bytes) => bytes,
                        Partial::Pending => return Ok(Progress::Waits(attempt)),
                        Partial::Closed => return failed(None),
                    };
                    let nonce = array(&bytes).and_then(|bytes| check_answer(&self.key, hello, bytes));
                    let Some(nonce) = nonce else { return failed(None) };
                    if !send(&attempt.socket, &self.key.proof(Side::Connecting, &hello.encode(), &nonce)) {
                        return failed(None);
                    }
                    attempt.stage = Stage::Welcome(Expected::new(1));
                }
                Stage::Welcome(expected) => {
                    return match expected.read(&attempt.socket) {
                        Partial::Complete(bytes) if bytes == [WELCOME] => {
                            Ok(Progress::Linked(attempt.socket))
                        }
                        Partial::Pending => Ok(Progress::Waits(attempt)),
                        Partial::Complete(_) | Partial::Closed => failed(None),
                    };
                }
            }
        }
    }
}

/// The error of an address, if it is permanent.
fn refusal(error: std::io::Error) -> Option<Arc<std::io::Error>> {
    let kinds = [ErrorKind::ConnectionRefused, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
    kinds.contains(&error.kind()).then(|| Arc::new(error))
}

/// Starts a non-blocking connect.
fn start_connecting(address: SocketAddr) -> std::io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// The bytes as an array of the expected length.
fn array<const LENGTH: usize>(bytes: &[u8]) -> Option<&[u8; LENGTH]> {
    bytes.try_into().ok()
}
