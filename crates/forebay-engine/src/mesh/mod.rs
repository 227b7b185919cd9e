//! Links between the leaders of the nodes of a job: messages, goodbyes, deaths. No MPI and no
//! Python is in their way.
//!
//! - [`Listener`] is where a leader is reached, [`LinksSpec`] who the others are; both sides of
//!   every connection prove that they belong to the job (`auth.rs`), while `connect.rs` links every
//!   leader to every other one.
//! - [`Links`] is what a leader has then. One thread (`io_thread.rs`) moves frames (`frames.rs`)
//!   over all links; those who send and receive meet it in `state.rs`.
//! - A [`PeerFailure`] is a process of the job that is gone; [`FailureSink`] is how the thread
//!   hears of those of its own node and tells those of others.
//!
//! Promises: sending never waits for a peer; a process that ends without a goodbye is a loss at
//! once, a node that is cut off within 9 s; one that is only stopped or slow never is. The first
//! loss is told to all nodes before anybody can act on it, so that all name the same one. Not
//! promised: secrecy, and delivery to a node that is lost.

mod auth;
mod connect;
mod endpoint;
mod error;
mod frames;
mod hex;
mod io_thread;
mod spec;
mod state;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_host::{ThreadError, fork};
use frames::Frame;
use state::{Mesh, Presence, State};

pub use crate::base::failure::{Cause, PeerFailure};
pub use crate::base::iteration_starts::Conflict;
pub use endpoint::{ENDPOINT_BYTES, Endpoint, Listener};
pub use error::LinkError;
pub use frames::{Channel, MESSAGE_BYTES};
pub use spec::{LinksSpec, MAX_NODES, NodeFacts, Nodes, SECRET_BYTES, Secret};

/// How long those who wait sleep at most before they ask whether to stop.
const SLICE: Duration = Duration::from_millis(20);
/// How long [`Links::tell`] waits for the kernel to take what it says.
const TELL_WITHIN: Duration = Duration::from_millis(500);

/// The processes of this node, as the thread of the links sees them.
pub trait FailureSink: Send + Sync {
    /// A process of this node that is lost, or what was noted before.
    fn lost(&self) -> Option<PeerFailure>;
    /// Tells the ranks of this node of a loss.
    fn note(&self, loss: PeerFailure);
    /// Tells the ranks of this node that another node began an iteration elsewhere.
    fn conflict(&self, conflict: Conflict);
    /// Hears now and then how many messages were sent and received.
    fn count(&self, sent: u64, received: u64);
}

/// The links of a leader. Closed when dropped.
pub struct Links {
    mesh: Arc<Mesh>,
    thread: Mutex<Option<JoinHandle<()>>>,
    generation: u64,
}

impl Links {
    /// Links this leader to all others; each of them calls it (collective over the leaders of the
    /// job).
    ///
    /// `check` is called at least every 100 ms; when it says `false`, the call ends with
    /// [`LinkError::Interrupted`].
    ///
    /// # Errors
    /// A leader that is gone, one that does not come within `deadline`, or what another one met.
    pub fn connect(
        listener: &Listener,
        spec: &LinksSpec,
        job: &str,
        loader: &str,
        deadline: Duration,
        check: &mut dyn FnMut() -> bool,
    ) -> Result<Self, LinkError> {
        spec.check()?;
        let mesh = Arc::new(Mesh::new(spec.me, spec.nodes.clone())?);
        let run = Arc::clone(&mesh);
        let thread = std::thread::Builder::new()
            .name("forebay-links".into())
            .spawn(move || io_thread::run(&run))
            .map_err(|error| ThreadError::new("the thread of the links", &error))?;
        let links = Self { mesh, thread: Mutex::new(Some(thread)), generation: fork::generation() };
        connect::meet(&links.mesh, listener, spec, (job, loader), deadline, check).inspect_err(|error| {
            links.abandon(&error.to_string(), matches!(error, LinkError::Lost { .. }));
        })?;
        Ok(links)
    }

    /// Place of this node among the nodes.
    pub fn me(&self) -> usize {
        self.mesh.me
    }

    /// Number of nodes, this one included.
    pub fn nodes(&self) -> usize {
        self.mesh.nodes.0.len()
    }

    /// All nodes by their place.
    pub fn facts(&self) -> &Nodes {
        &self.mesh.nodes
    }

    /// Sends a message to a node. Returns at once; messages of one channel arrive in order.
    ///
    /// # Errors
    /// If the node is gone or lost, the message is larger than [`MESSAGE_BYTES`], or the
    /// links are closed.
    pub fn send(&self, to: usize, channel: Channel, payload: impl Into<Arc<[u8]>>) -> Result<(), LinkError> {
        self.send_each([to], channel, &payload.into())
    }

    /// Sends a message to all other nodes; the bytes are kept once.
    ///
    /// # Errors
    /// As for [`Links::send`]; then it went to none.
    pub fn send_all(&self, channel: Channel, payload: impl Into<Arc<[u8]>>) -> Result<(), LinkError> {
        let others: Vec<usize> = self.mesh.others().collect();
        self.send_each(others, channel, &payload.into())
    }

    fn send_each(
        &self,
        nodes: impl IntoIterator<Item = usize, IntoIter: Clone>,
        channel: Channel,
        payload: &Arc<[u8]>,
    ) -> Result<(), LinkError> {
        let nodes = nodes.into_iter();
        if payload.len() > MESSAGE_BYTES {
            return Err(LinkError::TooLarge { bytes: payload.len(), most: MESSAGE_BYTES });
        }
        let mut state = self.mesh.lock();
        if state.closing {
            return Err(LinkError::Closed);
        }
        for to in nodes.clone() {
            self.check_presence(&state, to)?;
        }
        for to in nodes {
            state.nodes[to].outbox.message(channel, Arc::clone(payload));
            self.mesh.count_sent(1, payload.len() as u64);
        }
        drop(state);
        self.mesh.ring();
        Ok(())
    }

    fn check_presence(&self, state: &State, node: usize) -> Result<(), LinkError> {
        match state.nodes.get(node).map(|state| state.presence) {
            Some(Presence::Here | Presence::Awaited) if node != self.me() => Ok(()),
            // Whoever closed because of a loss is not taken for its cause.
            Some(Presence::Gone) => Err(self
                .mesh
                .failure(state)
                .unwrap_or_else(|| LinkError::Gone { who: self.mesh.nodes.leader(node) })),
            Some(Presence::Lost) => {
                let loss = state.loss.unwrap_or_else(|| self.mesh.nodes.loss(node, Cause::Died));
                Err(LinkError::Lost { loss })
            }
            _ => Err(LinkError::Usage {
                message: format!("node {node} has no link from node {} of {}", self.me(), self.nodes()),
            }),
        }
    }

    /// Waits for the next message of a channel, from one node or from any; `None` when `stop` says
    /// so.
    ///
    /// What has arrived is handed out first, whatever became of its sender. `stop` is asked at
    /// least every 100 ms.
    ///
    /// # Errors
    /// A loss anywhere in the job, a node that cannot make the loader, a goodbye of all
    /// that could have sent, or closed links.
    pub fn receive(
        &self,
        channel: Channel,
        from: Option<usize>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<(usize, Vec<u8>)>, LinkError> {
        loop {
            let mut state = self.mesh.lock();
            for attempt in 0..2 {
                let inbox = &mut state.inbox[channel as usize];
                let place = inbox.iter().position(|(node, _)| from.is_none_or(|from| from == *node));
                if let Some(found) = place.and_then(|place| inbox.remove(place)) {
                    return Ok(Some(found));
                }
                if let Some(failure) = self.mesh.failure(&state) {
                    return Err(failure);
                }
                if let Some(node) = from {
                    self.check_presence(&state, node)?;
                } else {
                    let mut absent = self.mesh.others().map(|node| self.check_presence(&state, node));
                    let first = absent.next().unwrap_or(Err(LinkError::Closed));
                    if first.is_err() && absent.all(|one| one.is_err()) {
                        return first.map(|()| None);
                    }
                }
                if attempt == 0 {
                    state = self.mesh.wait(state, SLICE);
                }
            }
            drop(state);
            if stop() {
                return Ok(None);
            }
        }
    }

    /// Whether the leader of a node said goodbye.
    pub fn is_gone(&self, node: usize) -> bool {
        self.mesh.lock().nodes.get(node).is_some_and(|state| state.presence == Presence::Gone)
    }

    /// Messages sent so far; heartbeats and what the links say among themselves are not counted.
    pub fn messages(&self) -> u64 {
        self.mesh.sent.load(Ordering::Relaxed)
    }

    /// Messages received so far.
    pub fn received(&self) -> u64 {
        self.mesh.received.load(Ordering::Relaxed)
    }

    /// Bytes of the messages sent and received so far.
    pub fn message_bytes(&self) -> (u64, u64) {
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.mesh.sent_bytes), read(&self.mesh.received_bytes))
    }

    /// Waits until all nodes have made the loader; `slow` hears, now and then, whom it waits for,
    /// and says whether to go on.
    ///
    /// # Errors
    /// If one of them cannot, or is lost.
    pub fn agree_made(&self, slow: &mut dyn FnMut(&str) -> bool) -> Result<(), LinkError> {
        let mut state = self.mesh.lock();
        self.mesh.to_all(&mut state, &Frame::Made);
        loop {
            if let Some(failure) = self.mesh.failure(&state) {
                return Err(failure);
            }
            let missing = self.mesh.others().find(|node| !state.nodes[*node].made);
            let Some(missing) = missing else { return Ok(()) };
            self.check_presence(&state, missing)?;
            state = self.mesh.wait(state, SLICE);
            drop(state);
            if !slow(&self.mesh.nodes.leader(missing)) {
                return Err(LinkError::Interrupted);
            }
            state = self.mesh.lock();
        }
    }

    /// What keeps the nodes from going on together, if anything does.
    pub fn failure(&self) -> Option<LinkError> {
        self.mesh.failure(&self.mesh.lock())
    }

    /// From now on deaths of this node's processes are told to the other nodes, and losses there to
    /// this node.
    pub fn attach(&self, watch: &Arc<dyn FailureSink>) {
        let mut state = self.mesh.lock();
        let loss = state.loss;
        state.watch = Some(Arc::clone(watch));
        drop(state);
        if let Some(loss) = loss {
            watch.note(loss);
        }
        self.mesh.ring();
    }

    /// Tells the other nodes of a loss on this one, and waits a moment until that is on its way:
    /// the caller may end now.
    pub fn tell(&self, loss: PeerFailure) {
        self.mesh.lose(loss);
        self.flush();
    }

    /// Tells the other nodes where this one began its next iteration, and this one of a node that
    /// began elsewhere.
    pub fn started(&self, step: u64) {
        let mut state = self.mesh.lock();
        let (number, conflict) = state.starts.begin(step);
        self.mesh.to_all(&mut state, &Frame::Started { number, step });
        drop(state);
        self.mesh.report(conflict);
    }

    /// Tells the other nodes that this one cannot make the loader; `after_loss`: because a process
    /// of the job has ended.
    pub fn abandon(&self, reason: &str, after_loss: bool) {
        let mut state = self.mesh.lock();
        self.mesh.to_all(&mut state, &Frame::Abandoned { reason: reason.to_owned(), after_loss });
        drop(state);
        self.flush();
    }

    fn flush(&self) {
        let begun = Instant::now();
        let mut state = self.mesh.lock();
        while !state.told && begun.elapsed() < TELL_WITHIN {
            state = self.mesh.wait(state, SLICE);
        }
    }

    /// Warnings that nobody has taken: peers that have not been heard of for a while.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.mesh.lock().warnings)
    }

    /// Says goodbye to all nodes. Takes a second at most; twice does nothing.
    pub fn close(&self) {
        if fork::in_forked_child(self.generation) {
            return;
        }
        self.mesh.lock().closing = true;
        self.mesh.changed.notify_all();
        self.mesh.ring();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A thread that panicked has printed why; the sockets are closed either way.
            let _ = thread.join();
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.close();
        if fork::in_forked_child(self.generation) {
            // The thread is the parent's.
            std::mem::forget(self.thread.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
