//! A server thread: sockets that are ready get turns, one after the other.
//!
//! Each round asks epoll which sockets have become ready, puts their connections at the end of the
//! queue, and gives each connection that was queued one turn. A turn sends at most 1 MiB, so every
//! client gets the same share of the thread, whatever the others ask for.
//!
//! The first thread accepts connections and deals them out. Strangers have [`LIMITED_TIME`] to
//! authenticate, and there are at most [`MAX_PENDING`] of them per thread; the oldest goes first.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use crate::server::connection::{ClientConnection, Turn};
use crate::server::registry::ServingNode;
use crate::socket::{Part, prepare};

/// How long a peer may take to authenticate, or to close after a refusal.
const LIMITED_TIME: Duration = Duration::from_secs(5);
/// Such peers at once, per thread. All ranks of a job may connect in the same moment; each takes
/// about 5 KiB, and one that is dropped tries again.
const MAX_PENDING: usize = 1024;
/// How often the time of such peers is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after `accept` has failed, for lack of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const EVENTS: usize = 256;
/// Identifies the wake-up and the listener; connections have larger numbers.
const WAKE: u64 = 0;
const LISTENER: u64 = 1;

/// How other threads reach a worker.
#[derive(Debug)]
pub(crate) struct Inbox {
    sockets: Mutex<Vec<OwnedFd>>,
    wake: OwnedFd,
    /// Connections of the worker, those on their way included.
    load: AtomicUsize,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { sockets: Mutex::default(), wake, load: AtomicUsize::new(0) })
    }

    /// Makes the worker look at what has changed.
    pub(crate) fn wake(&self) {
        // Fails only if the counter is full, and then the worker is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn put(&self, socket: OwnedFd) {
        self.load.fetch_add(1, Ordering::Relaxed);
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        self.wake();
    }
}

/// The state of a server thread.
pub(crate) struct Worker {
    node: Arc<ServingNode>,
    epoll: OwnedFd,
    inbox: Arc<Inbox>,
    /// Of the first worker: where connections come from, and all workers.
    listener: Option<(Arc<TcpListener>, Vec<Arc<Inbox>>)>,
    accept_at: Option<Instant>,
    connections: HashMap<u64, ClientConnection>,
    /// Connections whose turn is due, in order.
    queue: VecDeque<u64>,
    /// Connections that were accepted or refused, in order.
    pending: VecDeque<u64>,
    next: u64,
}

impl Worker {
    pub(crate) fn new(
        node: Arc<ServingNode>,
        inbox: Arc<Inbox>,
        listener: Option<(Arc<TcpListener>, Vec<Arc<Inbox>>)>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &inbox.wake, epoll::EventData::new_u64(WAKE), edge)?;
        if let Some((listener, _)) = &listener {
            epoll::add(&epoll, listener, epoll::EventData::new_u64(LISTENER), edge)?;
        }
        Ok(Self {
            node,
            epoll,
            inbox,
            listener,
            accept_at: None,
            connections: HashMap::new(),
            queue: VecDeque::new(),
            pending: VecDeque::new(),
            next: LISTENER + 1,
        })
    }

    /// Serves until the node stops.
    pub(crate) fn run(mut self) {
        let mut parts = Vec::new();
        while !self.node.stopping.load(Ordering::Acquire) {
            let timeout = self.timeout();
            self.round(timeout, &mut parts);
        }
        for (_, connection) in self.connections.drain() {
            connection.close();
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.queue.is_empty() {
            Some(Duration::ZERO)
        } else if self.accept_at.is_some() {
            Some(ACCEPT_PAUSE)
        } else {
            (!self.pending.is_empty()).then_some(CHECK_INTERVAL)
        }
    }

    /// Waits for events, then gives each connection that is due one turn.
    pub(crate) fn round(&mut self, timeout: Option<Duration>, parts: &mut Vec<Part>) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let timeout = timeout
            .map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
        let ready = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            // The only error that a valid call has; the next round repeats it.
            Err(_) => &mut [],
        };
        for event in ready {
            match event.data.u64() {
                WAKE => self.take_news(),
                LISTENER => self.accept_at = Some(Instant::now()),
                token => self.enqueue(token),
            }
        }
        if self.accept_at.is_some_and(|time| time <= Instant::now()) {
            self.accept();
        }
        for _ in 0..self.queue.len() {
            let Some(token) = self.queue.pop_front() else { break };
            self.take_turn(token, parts);
        }
        self.drop_overdue();
    }

    fn enqueue(&mut self, token: u64) {
        if let Some(connection) = self.connections.get_mut(&token)
            && !std::mem::replace(&mut connection.queued, true)
        {
            self.queue.push_back(token);
        }
    }

    fn take_turn(&mut self, token: u64, parts: &mut Vec<Part>) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        connection.queued = false;
        let before = connection.limited_since();
        match connection.turn(&self.node, parts) {
            Turn::More => self.enqueue(token),
            Turn::Ended => return self.remove(token),
            Turn::Waits => {}
        }
        let after = self.connections.get(&token).and_then(ClientConnection::limited_since);
        if after.is_some() && after != before {
            self.pending.push_back(token);
        }
    }

    fn remove(&mut self, token: u64) {
        if let Some(connection) = self.connections.remove(&token) {
            self.inbox.load.fetch_sub(1, Ordering::Relaxed);
            connection.close();
        }
    }

    /// Adopts new sockets, and closes connections whose share is gone.
    fn take_news(&mut self) {
        let _ = rustix::io::read(&self.inbox.wake, &mut [0_u8; 8]);
        let sockets = std::mem::take(&mut *self.inbox.sockets.lock().unwrap_or_else(PoisonError::into_inner));
        for socket in sockets {
            if self.adopt(socket).is_err() {
                self.inbox.load.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let withdrawn = self.connections.iter().filter(|(_, connection)| connection.is_withdrawn());
        for token in withdrawn.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.remove(token);
        }
    }

    pub(crate) fn adopt(&mut self, socket: OwnedFd) -> io::Result<()> {
        let token = self.next;
        self.next += 1;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(token), flags)?;
        self.connections.insert(token, ClientConnection::new(socket));
        self.pending.push_back(token);
        self.enqueue(token);
        Ok(())
    }

    fn accept(&mut self) {
        self.accept_at = None;
        let Some((listener, workers)) = &self.listener else { return };
        let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
        loop {
            match rustix::net::accept_with(listener.as_fd(), flags) {
                Ok(socket) => {
                    let least = workers.iter().min_by_key(|inbox| inbox.load.load(Ordering::Relaxed));
                    if let (Some(inbox), Ok(())) = (least, prepare(socket.as_fd())) {
                        inbox.put(socket);
                    }
                }
                Err(Errno::AGAIN) => return,
                // The error is of one connection, not of the listener (accept(2)).
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; trying again");
                    self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Drops peers that had their time, and the oldest if there are too many.
    fn drop_overdue(&mut self) {
        while let Some(token) = self.pending.front().copied() {
            let since = self.connections.get(&token).and_then(ClientConnection::limited_since);
            match since {
                None => {}
                Some(since) if since.elapsed() > LIMITED_TIME || self.pending.len() > MAX_PENDING => {
                    tracing::debug!("dropped a peer that did not authenticate");
                    self.remove(token);
                }
                Some(_) => return,
            }
            self.pending.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::message::auth::{Authenticator, DatasetDigest, Hello, Secret, StoreId};
    use crate::message::request::{RequestEntry, put};
    use crate::socket::{receive_bytes, send_bytes};

    const TURN_BYTES: usize = 6 << 10;
    const LIGHT_BYTES: u64 = 2 << 10;
    const HEAVY_BYTES: u64 = 100 * LIGHT_BYTES;

    /// A client that keeps two requests of `bytes` each on their way.
    struct Client {
        socket: UnixStream,
        bytes: u64,
        received: u64,
        requested: u64,
    }

    impl Client {
        fn request(&mut self) {
            let answer = self.bytes + crate::message::answer::HEADER_BYTES as u64;
            while self.requested < self.received + 2 * answer {
                let mut request = Vec::new();
                put(&mut request, 0, std::iter::once(RequestEntry { offset: 0, length: self.bytes }));
                assert_eq!(send_bytes(&self.socket, &request).unwrap(), Some(request.len()));
                self.requested += answer;
            }
        }

        /// Receives all that is there.
        fn receive(&mut self) {
            let mut buffer = vec![0; 1 << 20];
            while let Some(bytes) = receive_bytes(&self.socket, &mut buffer).unwrap() {
                self.received += bytes as u64;
            }
        }
    }

    /// Bytes that one heavy client and 15 light ones have received after some rounds.
    fn rounds(turn_bytes: usize, count: usize) -> Vec<u64> {
        let authenticator = Authenticator::new(&Secret::new([1; 32]));
        let node = Arc::new(ServingNode::new(0, authenticator.clone(), 16, turn_bytes));
        let dataset = DatasetDigest([2; 32]);
        assert!(node.add(StoreId(0), Arc::new(vec![0; HEAVY_BYTES as usize]), dataset));
        let inbox = Arc::new(Inbox::new().unwrap());
        let mut worker = Worker::new(node, inbox, None).unwrap();
        let mut parts = Vec::new();
        let mut clients = Vec::new();
        for rank in 0..16 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            for socket in [&ours, &theirs] {
                socket.set_nonblocking(true).unwrap();
            }
            worker.adopt(theirs.into()).unwrap();
            let hello = Hello { rank, node: 0, store: StoreId(0), dataset, checksum: false, nonce: [3; 32] };
            send_bytes(&ours, &hello.encode()).unwrap();
            worker.round(Some(Duration::ZERO), &mut parts);
            let mut challenge = [0; crate::message::auth::CHALLENGE_BYTES];
            receive_bytes(&ours, &mut challenge).unwrap();
            let theirs = authenticator.check_challenge(&hello, &challenge).unwrap();
            send_bytes(&ours, &authenticator.proof(&hello, &theirs)).unwrap();
            worker.round(Some(Duration::ZERO), &mut parts);
            let bytes = if rank == 0 { HEAVY_BYTES } else { LIGHT_BYTES };
            clients.push(Client { socket: ours, bytes, received: 0, requested: 0 });
        }
        clients.iter_mut().for_each(Client::receive);
        for client in &mut clients {
            client.received = 0;
        }
        for _ in 0..count {
            clients.iter_mut().for_each(Client::request);
            worker.round(Some(Duration::ZERO), &mut parts);
            clients.iter_mut().for_each(Client::receive);
        }
        clients.iter().map(|client| client.received).collect()
    }

    fn smallest_share(received: &[u64]) -> f64 {
        let fair = received.iter().sum::<u64>() as f64 / received.len() as f64;
        received.iter().map(|bytes| *bytes as f64 / fair).fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn a_client_that_asks_for_100_times_more_leaves_every_other_half_of_its_fair_share() {
        assert!(smallest_share(&rounds(TURN_BYTES, 400)) >= 0.5);
        // Without turns the same clients get less: the test would notice.
        assert!(smallest_share(&rounds(usize::MAX, 400)) < 0.5);
    }

    #[test]
    fn strangers_beyond_the_limit_go_and_the_oldest_goes_first() {
        let node = Arc::new(ServingNode::new(0, Authenticator::new(&Secret::new([1; 32])), 16, TURN_BYTES));
        let mut worker = Worker::new(node, Arc::new(Inbox::new().unwrap()), None).unwrap();
        let mut first = None;
        let mut others = Vec::new();
        for at in 0..64 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            theirs.set_nonblocking(true).unwrap();
            worker.adopt(theirs.into()).unwrap();
            if at == 0 { first = Some(ours) } else { others.push(ours) }
        }
        // The rest of the queue: numbers of connections that do not exist any more would be dropped
        // first, so the limit is reached with copies of the newest.
        let newest = *worker.pending.back().unwrap();
        worker.pending.extend(std::iter::repeat_n(newest, MAX_PENDING - 63));
        worker.round(Some(Duration::ZERO), &mut Vec::new());
        assert_eq!(receive_bytes(first.unwrap(), &mut [0]).unwrap(), Some(0), "the oldest is closed");
        assert_eq!(receive_bytes(&others[0], &mut [0]).unwrap(), None, "the next one is not");
    }
}
