//! How the leaders come together: everybody connects to the leaders of lower places and accepts
//! those of higher ones.
//!
//! All listeners are there before anybody knows their addresses. So a port that refuses means that
//! its process is gone (or has closed it after a failure): whoever connects sees that at once, and
//! whoever waits to be connected knocks at the other's door now and then to see it too. A leader
//! that has all its links closes its door only when those at the other ends have them.
//!
//! A node has several addresses, of which some lead nowhere: they are tried one after the other,
//! each [`NEXT_AFTER`] behind the one before or when that failed, and the first that ends in a
//! welcome is the link. Strangers are dropped without a word, when they say something wrong, when
//! they are slow, or when there are too many.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::auth::{
    ANSWER_BYTES, HELLO_BYTES, NONCE_BYTES, Nonce, PROOF_BYTES, Pair, Purpose, WELCOME, hello, read_hello,
};
use super::endpoint::Listener;
use super::error::LinkError;
use super::io_thread::prepare;
use super::spec::LinksSpec;
use super::state::{Mesh, Presence};

/// Head start of an address over the next one of the same node: a round trip in a cluster takes
/// less than a millisecond.
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// How long an address may be silent before it is tried again.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(5);
/// How long one who gives up waits for links of which the other side knows already, and how often
/// it looks.
const SETTLE_WITHIN: Duration = Duration::from_millis(500);
const SETTLE_EVERY: Duration = Duration::from_millis(2);
/// How often we look whether a leader that has not come is still there.
const KNOCK_EVERY: Duration = Duration::from_secs(1);
/// How long a stranger may take to prove who it is.
const STRANGER_WITHIN: Duration = Duration::from_secs(5);
/// Strangers at once, beside one for each node.
const STRANGERS: usize = 64;
const SLICE: Duration = Duration::from_millis(50);

/// Bytes of a fixed number that come bit by bit.
struct Expected {
    bytes: Vec<u8>,
    have: usize,
}

/// What came of an attempt to receive.
enum Came {
    All(Vec<u8>),
    NotYet,
    /// The other side is gone.
    End,
}

impl Expected {
    fn new(length: usize) -> Self {
        Self { bytes: vec![0; length], have: 0 }
    }

    fn read(&mut self, mut socket: &TcpStream) -> Came {
        while self.have < self.bytes.len() {
            match socket.read(&mut self.bytes[self.have..]) {
                Ok(0) => return Came::End,
                Ok(bytes) => self.have += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Came::NotYet,
                Err(_) => return Came::End,
            }
        }
        Came::All(std::mem::take(&mut self.bytes))
    }
}

/// Sends a few bytes; a fresh socket takes them at once.
fn say(mut socket: &TcpStream, bytes: &[u8]) -> bool {
    socket.write(bytes).is_ok_and(|written| written == bytes.len())
}

fn nonce() -> Result<Nonce, LinkError> {
    let mut nonce = [0; NONCE_BYTES];
    let mut filled = 0;
    while filled < NONCE_BYTES {
        filled += rustix::rand::getrandom(&mut nonce[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(LinkError::system("get random bytes"))?;
    }
    Ok(nonce)
}

/// Somebody who connected and has not proved who it is.
struct PendingPeer {
    socket: TcpStream,
    since: Instant,
    expected: Expected,
    /// After a hello.
    pair: Option<Pair>,
}

/// One connection that we make.
struct Attempt {
    address: usize,
    socket: TcpStream,
    since: Instant,
    stage: Stage,
}

enum Stage {
    Connecting,
    Answer(Pair, Expected),
    Welcome(Expected),
}

/// What came of a look at an attempt.
enum Progress {
    Waits(Attempt),
    /// With what refused it, where that is for good.
    Failed(Option<Arc<std::io::Error>>),
    Linked(TcpStream),
}

/// Connecting to one leader, or knocking at its door.
struct Dialer {
    node: usize,
    knocks: bool,
    addresses: Vec<SocketAddr>,
    /// By address: what refused the last attempt.
    refused: Vec<Option<Arc<std::io::Error>>>,
    next: usize,
    next_at: Instant,
    attempts: Vec<Attempt>,
}

struct Connector<'a> {
    mesh: &'a Mesh,
    spec: &'a LinksSpec,
    purpose: Purpose,
    strangers: VecDeque<PendingPeer>,
    callers: Vec<Dialer>,
    linked: Vec<bool>,
}

/// Links this leader to all others.
pub(super) fn meet(
    mesh: &Mesh,
    listener: &Listener,
    spec: &LinksSpec,
    (job, loader): (&str, &str),
    deadline: Duration,
    check: &mut dyn FnMut() -> bool,
) -> Result<(), LinkError> {
    let now = Instant::now();
    let caller = |node: usize| {
        let addresses = spec.cards[node].reached_from(listener.card());
        let knocks = node > spec.me;
        Dialer {
            node,
            knocks,
            refused: vec![None; addresses.len()],
            addresses,
            next: 0,
            next_at: if knocks { now + KNOCK_EVERY } else { now },
            attempts: Vec::new(),
        }
    };
    let mut meeting = Connector {
        mesh,
        spec,
        purpose: Purpose::new(&spec.secret, job, loader),
        strangers: VecDeque::new(),
        callers: mesh.others().map(caller).collect(),
        linked: (0..spec.cards.len()).map(|node| node == spec.me).collect(),
    };
    meeting.link_all(listener, deadline, check).inspect_err(|_| meeting.settle())
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
            self.call()?;
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

    /// Completes the links of which the other side knows already, when this one gives up: over them
    /// it can say why, and is not taken for dead.
    fn settle(&mut self) {
        let begun = Instant::now();
        loop {
            let mut open = false;
            for mut caller in std::mem::take(&mut self.callers) {
                for attempt in std::mem::take(&mut caller.attempts) {
                    if self.linked[caller.node] || !matches!(attempt.stage, Stage::Welcome(_)) {
                        continue;
                    }
                    match self.advance(&caller, attempt) {
                        Ok(Progress::Waits(attempt)) => caller.attempts.push(attempt),
                        // What cannot be linked hears nothing.
                        Ok(Progress::Linked(socket)) => drop(self.link(caller.node, socket)),
                        Ok(Progress::Failed(_)) | Err(_) => {}
                    }
                }
                open |= !caller.attempts.is_empty();
                self.callers.push(caller);
            }
            if !open || begun.elapsed() > SETTLE_WITHIN {
                return;
            }
            std::thread::sleep(SETTLE_EVERY);
        }
    }

    fn wait(&self, listener: &Listener) {
        let mut polled = vec![PollFd::new(&listener.socket, PollFlags::IN)];
        polled.extend(self.strangers.iter().map(|stranger| PollFd::new(&stranger.socket, PollFlags::IN)));
        for attempt in self.callers.iter().flat_map(|caller| &caller.attempts) {
            let flags = match attempt.stage {
                Stage::Connecting => PollFlags::OUT,
                _ => PollFlags::IN,
            };
            polled.push(PollFd::from_borrowed_fd(attempt.socket.as_fd(), flags));
        }
        // A signal: the caller's check comes next anyway.
        let _ = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: SLICE.subsec_nanos().into() }));
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
        state.nodes[node].presence = Presence::Here;
        state.adopted.push((node, socket));
        drop(state);
        self.mesh.ring();
        Ok(())
    }

    // --- those who come ---

    fn accept(&mut self, listener: &Listener) -> Result<(), LinkError> {
        loop {
            match listener.socket.accept() {
                Ok((socket, _)) => {
                    if socket.set_nonblocking(true).is_ok() && socket.set_nodelay(true).is_ok() {
                        let expected = Expected::new(HELLO_BYTES);
                        self.strangers.push_back(PendingPeer {
                            socket,
                            since: Instant::now(),
                            expected,
                            pair: None,
                        });
                    }
                    if self.strangers.len() > STRANGERS + self.linked.len() {
                        self.strangers.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Of one connection, not of the listener (accept(2)); out of descriptors is a
                // matter of time, too.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        for _ in 0..self.strangers.len() {
            if let Some(stranger) = self.strangers.pop_front()
                && stranger.since.elapsed() < STRANGER_WITHIN
            {
                self.hear(stranger)?;
            }
        }
        Ok(())
    }

    /// Takes what a stranger says; who makes no sense is dropped by not being kept.
    fn hear(&mut self, mut stranger: PendingPeer) -> Result<(), LinkError> {
        loop {
            let bytes = match stranger.expected.read(&stranger.socket) {
                Came::All(bytes) => bytes,
                Came::NotYet => {
                    self.strangers.push_back(stranger);
                    return Ok(());
                }
                Came::End => return Ok(()),
            };
            match stranger.pair {
                None => {
                    let Some((from, to, connecting)) = array(&bytes).and_then(read_hello) else {
                        return Ok(());
                    };
                    let expected = to as usize == self.spec.me && from > to;
                    if !expected || self.linked.get(from as usize) != Some(&false) {
                        return Ok(());
                    }
                    let pair = Pair { from, to, connecting, accepting: nonce()? };
                    if !say(&stranger.socket, &self.purpose.answer(&pair)) {
                        return Ok(());
                    }
                    stranger.pair = Some(pair);
                    stranger.expected = Expected::new(PROOF_BYTES);
                }
                Some(pair) => {
                    let proved = array(&bytes).is_some_and(|bytes| self.purpose.check_proof(&pair, bytes));
                    let node = pair.from as usize;
                    if proved && !self.linked[node] && say(&stranger.socket, &[WELCOME]) {
                        self.link(node, stranger.socket)?;
                    }
                    return Ok(());
                }
            }
        }
    }

    // --- those whom we call ---

    fn call(&mut self) -> Result<(), LinkError> {
        let mut callers = std::mem::take(&mut self.callers);
        callers.retain(|caller| !self.linked[caller.node]);
        for caller in &mut callers {
            for attempt in std::mem::take(&mut caller.attempts) {
                let address = attempt.address;
                match self.advance(caller, attempt)? {
                    Progress::Waits(attempt) => caller.attempts.push(attempt),
                    Progress::Failed(refused) => {
                        caller.refused[address] = refused;
                        if !caller.knocks {
                            caller.next_at = caller.next_at.min(Instant::now() + SLICE);
                        }
                    }
                    Progress::Linked(socket) => {
                        if !self.linked[caller.node] {
                            self.link(caller.node, socket)?;
                        }
                    }
                }
            }
            if self.linked[caller.node] {
                continue;
            }
            self.start(caller)?;
        }
        self.callers = callers;
        Ok(())
    }

    /// Begins the next attempt when it is time, and gives up when every address has refused.
    fn start(&self, caller: &mut Dialer) -> Result<(), LinkError> {
        let who = || self.mesh.nodes.leader(caller.node);
        if caller.addresses.is_empty() {
            return Err(LinkError::Unreachable { who: who(), address: "any address".into(), source: None });
        }
        if caller.attempts.is_empty()
            && let Some(problem) = caller.refused.iter().flatten().next()
            && caller.refused.iter().all(Option::is_some)
        {
            let address = caller.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let source = Some(Arc::clone(problem));
            return Err(LinkError::Unreachable { who: who(), address, source });
        }
        let address = caller.next;
        if Instant::now() < caller.next_at || caller.attempts.iter().any(|one| one.address == address) {
            return Ok(());
        }
        caller.next = (address + 1) % caller.addresses.len();
        caller.next_at = Instant::now() + if caller.knocks { KNOCK_EVERY } else { NEXT_AFTER };
        match dial(caller.addresses[address]) {
            Ok(socket) => {
                let stage = Stage::Connecting;
                caller.attempts.push(Attempt { address, socket, since: Instant::now(), stage });
            }
            Err(error) => caller.refused[address] = refusal(error),
        }
        Ok(())
    }

    fn advance(&self, caller: &Dialer, mut attempt: Attempt) -> Result<Progress, LinkError> {
        let failed = |refused| Ok(Progress::Failed(refused));
        if attempt.since.elapsed() > ATTEMPT_WITHIN {
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
                    if caller.knocks {
                        return failed(None); // somebody is at home; that was the question
                    }
                    let (from, to) = (self.spec.me as u32, caller.node as u32);
                    let pair = Pair { from, to, connecting: nonce()?, accepting: [0; NONCE_BYTES] };
                    if !say(&attempt.socket, &hello(from, to, &pair.connecting)) {
                        return failed(None);
                    }
                    attempt.stage = Stage::Answer(pair, Expected::new(ANSWER_BYTES));
                }
                Stage::Answer(pair, expected) => {
                    let bytes = match expected.read(&attempt.socket) {
                        Came::All(bytes) => bytes,
                        Came::NotYet => return Ok(Progress::Waits(attempt)),
                        Came::End => return failed(None),
                    };
                    let answer = array(&bytes).and_then(|bytes| self.purpose.check_answer(*pair, bytes));
                    match answer {
                        Some(pair) if say(&attempt.socket, &self.purpose.proof(&pair)) => {
                            attempt.stage = Stage::Welcome(Expected::new(1));
                        }
                        _ => return failed(None),
                    }
                }
                Stage::Welcome(expected) => {
                    return match expected.read(&attempt.socket) {
                        Came::All(bytes) if bytes == [WELCOME] => Ok(Progress::Linked(attempt.socket)),
                        Came::NotYet => Ok(Progress::Waits(attempt)),
                        Came::All(_) | Came::End => failed(None),
                    };
                }
            }
        }
    }
}

/// Why an address will not do, where that is for good.
fn refusal(error: std::io::Error) -> Option<Arc<std::io::Error>> {
    let kinds = [ErrorKind::ConnectionRefused, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
    kinds.contains(&error.kind()).then(|| Arc::new(error))
}

/// Begins to connect.
fn dial(address: SocketAddr) -> std::io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// The bytes as what they must be as many as.
fn array<const LENGTH: usize>(bytes: &[u8]) -> Option<&[u8; LENGTH]> {
    bytes.try_into().ok()
}
