//! Reads from the shares of other nodes, one `ucp_get_nbx` per piece.
//!
//! Threads of a rank share one worker, one at a time. The thread that waits drives it, and sleeps a
//! moment if nothing happens. A read that fails ends the connection to its peer, with all of its
//! reads, as with TCP.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use forebay_host::fork;

use crate::client::fetcher::{Fetcher, Peer, Piece, Ticket};
use crate::error::TransportError;
use crate::message::request::{Checker, MAX_COUNT, RequestEntry};
use crate::ucx::Ucx;
use crate::ucx::api::{self, EndpointParams, RequestParam, UcpRequest, status_of};
use crate::ucx::card::Card;
use crate::ucx::worker::Worker;

/// Rounds without progress after which a waiting thread sleeps, and for how long.
const IDLE_ROUNDS: u32 = 200;
const SLEEP: Duration = Duration::from_micros(20);

/// A node that exports its share.
#[derive(Clone, Debug)]
pub struct UcxPeer {
    /// Its name, for messages.
    pub name: String,
    /// What its exporter says of itself.
    pub card: Vec<u8>,
}

/// Fetches from other nodes by one-sided reads.
#[derive(Debug)]
pub struct UcxFetcher {
    /// Not dropped in forked children: the worker belongs to their parent.
    state: ManuallyDrop<Mutex<State>>,
    max_in_flight: usize,
    transports: Vec<String>,
    born: u64,
}

struct State {
    /// Endpoints are closed before the worker is destroyed ([`Drop`]).
    links: Vec<Link>,
    worker: Worker,
    in_flight: HashMap<u64, InFlight>,
    issued: u64,
}

// SAFETY: the worker may be used by any thread, one at a time, and the mutex sees to that.
unsafe impl Send for State {}

struct Link {
    name: String,
    card: Card,
    endpoint: api::UcpEndpoint,
    key: api::UcpRemoteKey,
    generation: u64,
    failure: Option<TransportError>,
    /// Status with which the endpoint has failed; UCX writes it.
    endpoint_status: Box<AtomicI8>,
}

struct InFlight {
    peer: usize,
    /// Those that are not known to be complete.
    requests: Vec<UcpRequest>,
    failure: Option<String>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({} peers, {} requests)", self.links.len(), self.in_flight.len())
    }
}

impl UcxFetcher {
    /// Connects to all peers.
    ///
    /// # Errors
    /// Why UCX is not used: a peer whose card is wrong or that no suitable transport reaches.
    pub fn new(ucx: &Ucx, peers: Vec<UcxPeer>, max_in_flight: usize) -> Result<Self, String> {
        if max_in_flight == 0 {
            return Err("max_in_flight must not be 0".into());
        }
        let worker = Worker::new(Arc::clone(&ucx.api), api::FEATURE_RMA)?;
        let mut state = State { links: Vec::new(), worker, in_flight: HashMap::new(), issued: 0 };
        let mut transports = Vec::new();
        for peer in peers {
            let of_peer = |reason: String| format!("node {}: {reason}", peer.name);
            let card = Card::parse(&peer.card).map_err(of_peer)?;
            state.links.push(Link {
                name: peer.name.clone(),
                card,
                endpoint: null_mut(),
                key: null_mut(),
                generation: 0,
                failure: None,
                endpoint_status: Box::new(AtomicI8::new(api::OK)),
            });
            let at = state.links.len() - 1;
            state.connect(at).map_err(of_peer)?;
            let names = state.worker.api.transports(state.links[at].endpoint).map_err(of_peer)?;
            if let Some(reason) = ucx.refuse(&names) {
                return Err(of_peer(reason));
            }
            transports.extend(names);
        }
        transports.sort();
        transports.dedup();
        Ok(Self {
            state: ManuallyDrop::new(Mutex::new(state)),
            max_in_flight,
            transports,
            born: fork::generation(),
        })
    }

    /// Names of UCX's transports to the peers.
    pub fn transports(&self) -> &[String] {
        &self.transports
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>, TransportError> {
        if fork::in_forked_child(self.born) {
            return Err(TransportError::usage("this process was forked; only its parent can fetch"));
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn link(&self, peer: Peer) -> Result<&Link, TransportError> {
        let links = &self.links;
        links
            .get(peer.0)
            .ok_or_else(|| TransportError::usage(format!("peer {} of {} peers", peer.0, links.len())))
    }

    fn connect(&mut self, at: usize) -> Result<(), String> {
        let (api, link) = (&self.worker.api, &mut self.links[at]);
        link.endpoint_status.store(api::OK, Ordering::Relaxed);
        let params = EndpointParams::to(&link.card.worker, &link.endpoint_status);
        // SAFETY: the address is of a worker of the job; the link keeps it, and the status until
        // the endpoint is closed.
        let status =
            unsafe { (api.ucp_ep_create)(self.worker.handle, &raw const params, &raw mut link.endpoint) };
        api.check("ucp_ep_create", status)?;
        // SAFETY: the key is of the same node.
        let status = unsafe {
            (api.ucp_ep_rkey_unpack)(link.endpoint, link.card.key.as_ptr().cast(), &raw mut link.key)
        };
        api.check("ucp_ep_rkey_unpack", status)
    }

    /// Closes the endpoint of a link. Afterwards nothing writes to the memory of its requests.
    fn disconnect(&mut self, at: usize) {
        let (endpoint, key) = {
            let link = &mut self.links[at];
            (std::mem::replace(&mut link.endpoint, null_mut()), std::mem::replace(&mut link.key, null_mut()))
        };
        if !endpoint.is_null() {
            let param = RequestParam::force_close();
            // SAFETY: the endpoint is open, and not used any more.
            let closing = unsafe { (self.worker.api.ucp_ep_close_nbx)(endpoint, &raw const param) };
            // SAFETY: the request is freed once, by the call that finds it complete.
            while unsafe { self.worker.finish(closing) } == api::IN_PROGRESS {
                self.pass_time();
            }
        }
        let numbers: Vec<u64> =
            self.in_flight.iter().filter(|(_, one)| one.peer == at).map(|(number, _)| *number).collect();
        for number in numbers {
            while !self.is_complete(number) {
                self.pass_time();
            }
            self.in_flight.remove(&number);
        }
        if !key.is_null() {
            // SAFETY: no request uses the key any more.
            unsafe { (self.worker.api.ucp_rkey_destroy)(key) };
        }
    }

    fn pass_time(&self) {
        if !self.worker.progress() {
            std::thread::yield_now();
        }
    }

    /// Why the endpoint of a link has failed.
    fn endpoint_failure(&self, at: usize) -> Option<String> {
        let status = self.links[at].endpoint_status.load(Ordering::Relaxed);
        self.worker.api.check("the endpoint", status).err()
    }

    /// Whether all reads of a request are complete, or have failed.
    fn is_complete(&mut self, number: u64) -> bool {
        let Some(one) = self.in_flight.get_mut(&number) else { return true };
        while let Some(&request) = one.requests.last() {
            // SAFETY: a request is taken out of the list once it was freed.
            let status = unsafe { self.worker.finish(request) };
            if status == api::IN_PROGRESS {
                return false;
            }
            one.requests.pop();
            if let Err(error) = self.worker.api.check("ucp_get_nbx", status) {
                one.failure.get_or_insert(error);
            }
        }
        true
    }

    fn start(&mut self, at: usize, pieces: &[Piece]) -> u64 {
        let (link, api, param) = (&self.links[at], &self.worker.api, RequestParam::plain());
        let mut one = InFlight { peer: at, requests: Vec::new(), failure: None };
        for piece in pieces.iter().filter(|piece| piece.into.len() > 0) {
            let from = link.card.start + piece.offset;
            // SAFETY: the destination is claimed until the request is complete or its endpoint is
            // closed ([`Destination`](crate::Destination)); the entry was checked to be inside the
            // share.
            let request = unsafe {
                (api.ucp_get_nbx)(
                    link.endpoint,
                    piece.into.as_ptr().cast(),
                    piece.into.len(),
                    from,
                    link.key,
                    &raw const param,
                )
            };
            match status_of(request) {
                api::IN_PROGRESS => one.requests.push(request),
                status => {
                    if let Err(error) = api.check("ucp_get_nbx", status) {
                        one.failure.get_or_insert(error);
                    }
                }
            }
        }
        let number = self.issued;
        self.issued += 1;
        self.in_flight.insert(number, one);
        number
    }
}

impl Fetcher for UcxFetcher {
    fn fetch(&self, peer: Peer, step: u64, pieces: &[Piece]) -> Result<Ticket, TransportError> {
        let mut state = self.lock()?;
        let link = state.link(peer)?;
        if let Some(failure) = &link.failure {
            return Err(failure.of_step(step));
        }
        let usage = |what: String| {
            TransportError::usage(format!("fetch step {step} from node {}: {what}", link.name))
        };
        if pieces.is_empty() || pieces.len() > MAX_COUNT {
            return Err(usage(format!("{} pieces (expected 1 to {MAX_COUNT})", pieces.len())));
        }
        if state.in_flight.values().filter(|one| one.peer == peer.0).count() >= self.max_in_flight {
            return Err(usage(format!("{} requests are in flight (at most)", self.max_in_flight)));
        }
        let mut checker = Checker::new(link.card.length);
        for (at, piece) in pieces.iter().enumerate() {
            let entry = RequestEntry { offset: piece.offset, length: piece.into.len() as u64 };
            checker.check(entry).map_err(|refusal| {
                usage(format!(
                    "entry {at} of {} bytes at offset {} of a share of {}: {refusal}",
                    entry.length, entry.offset, link.card.length
                ))
            })?;
        }
        let generation = link.generation;
        let number = state.start(peer.0, pieces);
        Ok(Ticket { peer, step, generation, number })
    }

    fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<(), TransportError> {
        let mut idle = 0;
        loop {
            let progressed = {
                let mut state = self.lock()?;
                let link = state.link(ticket.peer)?;
                let node = link.name.clone();
                if link.generation != ticket.generation {
                    return Err(TransportError::Stale { node, step: ticket.step });
                }
                if let Some(failure) = &link.failure {
                    return Err(failure.of_step(ticket.step));
                }
                let progressed = state.worker.progress();
                let failed = state.endpoint_failure(ticket.peer.0);
                let is_complete = state.is_complete(ticket.number);
                if is_complete || failed.is_some() {
                    let own = state.in_flight.get_mut(&ticket.number).and_then(|one| one.failure.take());
                    let Some(failure) = own.or(failed.filter(|_| !is_complete)) else {
                        state.in_flight.remove(&ticket.number);
                        return Ok(());
                    };
                    let source = Arc::new(io::Error::other(failure));
                    let error = TransportError::Lost { node, step: ticket.step, source };
                    state.disconnect(ticket.peer.0);
                    state.links[ticket.peer.0].failure = Some(error.clone());
                    return Err(error);
                }
                if Instant::now() >= deadline {
                    return Err(TransportError::Deadline { node, step: ticket.step });
                }
                progressed
            };
            idle = if progressed { 0 } else { idle + 1 };
            if idle > IDLE_ROUNDS {
                std::thread::sleep(SLEEP);
            } else {
                std::hint::spin_loop();
            }
        }
    }

    fn reconnect(&self, peer: Peer) -> Result<(), TransportError> {
        let mut state = self.lock()?;
        state.link(peer)?;
        state.disconnect(peer.0);
        let connected = state.connect(peer.0);
        let link = &mut state.links[peer.0];
        link.generation += 1;
        link.failure = connected.err().map(|error| {
            let (node, source) = (link.name.clone(), Arc::new(io::Error::other(error)));
            TransportError::Unreachable { node, address: "its UCX address".into(), source }
        });
        Ok(())
    }
}

impl Drop for UcxFetcher {
    fn drop(&mut self) {
        if !fork::in_forked_child(self.born) {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.state) };
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for at in 0..self.links.len() {
            self.disconnect(at);
        }
    }
}
