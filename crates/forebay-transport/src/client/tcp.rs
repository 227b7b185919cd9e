//! Fetches over TCP: one connection of this rank to each peer.
//!
//! Threads connect in the background while requests can already be queued. Each peer fails on its
//! own; [`Fetcher::reconnect`] replaces its connection.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_host::{ThreadError, fork};
use forebay_types::Rank;

use crate::client::connect::Target;
use crate::client::fetcher::{Fetcher, Peer, Piece, Ticket};
use crate::client::link::{Limits, Link};
use crate::error::TransportError;
use crate::message::auth::{Authenticator, DatasetDigest, Hello, Secret, StoreId};

/// Threads that connect at once: an address that does not answer holds one of them for 2 s.
const CONNECT_THREADS: usize = 4;

/// A node that exports a share.
#[derive(Clone, Debug)]
pub struct PeerAddress {
    /// Its name, for messages.
    pub name: String,
    /// Its index in the job.
    pub node: u32,
    /// Where its exporter may be reached; tried in this order.
    pub addresses: Vec<SocketAddr>,
}

/// How a rank fetches.
#[derive(Clone, Debug)]
pub struct FetcherOptions {
    /// Rank of this process.
    pub rank: Rank,
    /// Proves that this process belongs to the job.
    pub secret: Secret,
    /// The store.
    pub store: StoreId,
    /// Digest of its dataset; must be the same on all nodes.
    pub dataset: DatasetDigest,
    /// The nodes to fetch from; [`Peer`] is an index of this list.
    pub peers: Vec<PeerAddress>,
    /// Most requests in flight per peer.
    pub max_in_flight: usize,
    /// Whether answers carry a checksum.
    pub checksum: bool,
    /// How long connecting may take.
    pub connect_time: Duration,
    /// How long the host of a peer may acknowledge nothing while an answer is waited for, before
    /// the peer is lost. A process that is stopped or slow is not: its kernel acknowledges.
    pub silence: Duration,
}

impl FetcherOptions {
    /// Options for these peers; the other values are their defaults.
    pub fn new(
        rank: Rank,
        secret: Secret,
        (store, dataset): (StoreId, DatasetDigest),
        peers: Vec<PeerAddress>,
    ) -> Self {
        Self {
            rank,
            secret,
            store,
            dataset,
            peers,
            max_in_flight: 16,
            checksum: true,
            connect_time: Duration::from_secs(60),
            silence: Duration::from_secs(8),
        }
    }
}

/// What the connecting threads share.
#[derive(Debug)]
struct Shared {
    authenticator: Authenticator,
    options: FetcherOptions,
    links: Vec<Link>,
    dropped: AtomicBool,
}

/// Fetches from other nodes over TCP.
#[derive(Debug)]
pub struct TcpFetcher {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    born: u64,
}

impl TcpFetcher {
    /// Begins to connect to all peers.
    pub fn new(options: FetcherOptions) -> Result<Self, TransportError> {
        if options.max_in_flight == 0 || options.silence.is_zero() {
            return Err(TransportError::usage("max_in_flight and silence must not be 0"));
        }
        let limits =
            Limits { in_flight: options.max_in_flight, silence: options.silence, checksum: options.checksum };
        let link = |(at, peer): (usize, &PeerAddress)| Link::new(Peer(at), peer.name.clone(), limits);
        let shared = Shared {
            authenticator: Authenticator::new(&options.secret),
            links: options.peers.iter().enumerate().map(link).collect(),
            options,
            dropped: AtomicBool::new(false),
        };
        let fetcher = Self { shared: Arc::new(shared), threads: Mutex::default(), born: fork::generation() };
        fetcher.connect((0..fetcher.shared.links.len()).map(|at| (at, 0)).collect())?;
        Ok(fetcher)
    }

    /// Starts threads that connect these peers, each with its generation.
    fn connect(&self, peers: VecDeque<(usize, u64)>) -> Result<(), TransportError> {
        let deadline = Instant::now() + self.shared.options.connect_time;
        let count = peers.len().min(CONNECT_THREADS);
        let peers = Arc::new(Mutex::new(peers));
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        for at in 0..count {
            let (shared, peers) = (Arc::clone(&self.shared), Arc::clone(&peers));
            let next = move || peers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let work = move || {
                while let Some((at, generation)) = next() {
                    shared.connect(at, generation, deadline);
                }
            };
            match std::thread::Builder::new().name("forebay-connect".into()).spawn(work) {
                Ok(thread) => threads.push(thread),
                // One thread is enough.
                Err(error) if at == 0 => {
                    return Err(
                        ThreadError::new("start a thread that connects to other nodes", &error).into()
                    );
                }
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn link(&self, peer: Peer) -> Result<&Link, TransportError> {
        if fork::in_forked_child(self.born) {
            return Err(TransportError::usage("this process was forked; only its parent can fetch"));
        }
        let links = &self.shared.links;
        links
            .get(peer.0)
            .ok_or_else(|| TransportError::usage(format!("peer {} of {} peers", peer.0, links.len())))
    }

    /// Waits until all peers are connected; fails as soon as one cannot be.
    pub fn ready(&self, deadline: Instant) -> Result<(), TransportError> {
        (0..self.shared.links.len()).try_for_each(|at| self.share_bytes(Peer(at), deadline).map(drop))
    }

    /// Length of a peer's share \[bytes\]; waits until it is connected.
    pub fn share_bytes(&self, peer: Peer, deadline: Instant) -> Result<u64, TransportError> {
        self.link(peer)?.connection(deadline)
    }
}

impl Shared {
    fn connect(&self, at: usize, generation: u64, deadline: Instant) {
        let (options, peer) = (&self.options, &self.options.peers[at]);
        let target = Target {
            name: &peer.name,
            addresses: &peer.addresses,
            hello: Hello {
                rank: options.rank.0,
                node: peer.node,
                store: options.store,
                dataset: options.dataset,
                checksum: options.checksum,
                nonce: [0; 32],
            },
            authenticator: &self.authenticator,
            given_up: &self.dropped,
        };
        self.links[at].connected(generation, target.connect(deadline));
    }
}

impl Fetcher for TcpFetcher {
    fn fetch(&self, peer: Peer, step: u64, pieces: &[Piece]) -> Result<Ticket, TransportError> {
        self.link(peer)?.fetch(step, pieces)
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<(), TransportError> {
        self.link(ticket.peer)?.wait(ticket, deadline)
    }

    fn reconnect(&self, peer: Peer) -> Result<(), TransportError> {
        let generation = self.link(peer)?.reset();
        self.connect([(peer.0, generation)].into())
    }
}

impl Drop for TcpFetcher {
    fn drop(&mut self) {
        if fork::in_forked_child(self.born) {
            // The sockets are closed here, and their numbers may be in use again.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.shared.dropped.store(true, Ordering::Relaxed);
        for thread in self.threads.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if thread.join().is_err() {
                tracing::error!("a connecting thread has panicked");
            }
        }
    }
}
