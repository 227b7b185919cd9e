//! Links between the leaders of the nodes of a job: messages, shutdowns, failures. They need
//! neither MPI nor Python.
//!
//! - [`Listener`] accepts connections of a leader; [`LinksSpec`] describes the other leaders.
//!   `connect.rs` links each leader to each other one. Both sides of a connection prove that they
//!   belong to the job (`auth.rs`).
//! - [`Links`] is the result for a leader. One thread (`io_thread.rs`) moves frames (`frames.rs`)
//!   over all links; it shares `state.rs` with the threads that send and receive.
//! - A [`PeerFailure`] is a process of the job that failed. Through [`FailureSink`] the thread
//!   learns of failures on its own node, and reports those of other nodes.
//!
//! Promises: sending never waits for a peer. A process that ends without a shutdown is lost at
//! once, a node that is cut off within 9 s; a process that is only stopped or slow never is. The
//! first loss reaches all nodes before any rank acts on it, so all ranks name the same process. Not
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
use state::{Mesh, MeshState, NodePresence};

pub use crate::base::failure::{Cause, PeerFailure};
pub use crate::base::iteration_starts::Conflict;
pub use endpoint::{ENDPOINT_BYTES, Endpoint, Listener};
pub use error::LinkError;
pub use frames::{Channel, MAX_MESSAGE_BYTES};
pub use spec::{LinksSpec, MAX_NODES, NodeFacts, Nodes, SECRET_BYTES, Secret};

/// Longest sleep between two checks whether to stop waiting.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long [`Links::report_loss`] waits for the kernel to take its frames.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Failures of this node's processes, and where failures of other nodes are recorded.
pub trait FailureSink: Send + Sync {
    /// The first recorded loss, or else a process of this node that is lost.
    fn lost(&self) -> Option<PeerFailure>;
    /// Records a loss for the ranks of this node.
    fn record(&self, loss: PeerFailure);
    /// Records that another node began an iteration at a different step.
    fn conflict(&self, conflict: Conflict);
    /// Records how many messages were sent and received so far; called every 200 ms.
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
    /// This function calls `check` at least every 100 ms; when that returns `false`, the call ends
    /// with [`LinkError::Interrupted`].
    ///
    /// # Errors
    /// A leader has ended, does not connect within `deadline`, or cannot make the loader.
    pub fn connect(
        listener: &Listener,
        spec: &LinksSpec,
        job: &str,
        loader: &str,
        deadline: Duration,
        check: &mut dyn FnMut() -> bool,
    ) -> Result<Self, LinkError> {
        spec.check()?;
        let mesh = Arc::new(Mesh::new(spec.own_node, spec.nodes.clone())?);
        let run = Arc::clone(&mesh);
        let thread = std::thread::Builder::new()
            .name("forebay-links".into())
            .spawn(move || io_thread::run(&run))
            .map_err(|error| ThreadError::new("the thread of the links", &error))?;
        let links = Self { mesh, thread: Mutex::new(Some(thread)), generation: fork::generation() };
        connect::connect_all(&links.mesh, listener, spec, (job, loader), deadline, check).inspect_err(
            |error| {
                links.abandon(&error.to_string(), matches!(error, LinkError::Lost { .. }));
            },
        )?;
        Ok(links)
    }

    /// Index of this node among the nodes.
    pub fn own_node(&self) -> usize {
        self.mesh.own_node
    }

    /// Number of nodes, this one included.
    pub fn nodes(&self) -> usize {
        self.mesh.nodes.0.len()
    }

    /// All nodes by index.
    pub fn facts(&self) -> &Nodes {
        &self.mesh.nodes
    }

    /// Sends a message to a node. Returns at once; messages of one channel arrive in order.
    ///
    /// # Errors
    /// If the node is gone or lost, the message is larger than [`MAX_MESSAGE_BYTES`], or
    /// the links are closed.
    pub fn send(&self, to: usize, channel: Channel, payload: impl Into<Arc<[u8]>>) -> Result<(), LinkError> {
        self.send_each([to], channel, &payload.into())
    }

    /// Sends a message to all other nodes, which share one copy of the bytes.
    ///
    /// # Errors
    /// As for [`Links::send`]; then no node gets the message.
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
        if payload.len() > MAX_MESSAGE_BYTES {
            return Err(LinkError::TooLarge { bytes: payload.len(), max_bytes: MAX_MESSAGE_BYTES });
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
        self.mesh.wake_thread();
        Ok(())
    }

    fn check_presence(&self, state: &MeshState, node: usize) -> Result<(), LinkError> {
        match state.nodes.get(node).map(|state| state.presence) {
            Some(NodePresence::Here | NodePresence::Awaited) if node != self.own_node() => Ok(()),
            // A node that closed because of a loss is not its cause: report the loss.
            Some(NodePresence::Gone) => Err(self
                .mesh
                .failure(state)
                .unwrap_or_else(|| LinkError::Gone { who: self.mesh.nodes.leader(node) })),
            Some(NodePresence::Lost) => {
                let loss = state.loss.unwrap_or_else(|| self.mesh.nodes.loss(node, Cause::Died));
                Err(LinkError::Lost { loss })
            }
            _ => Err(LinkError::Usage {
                message: format!("node {node} has no link from node {} of {}", self.own_node(), self.nodes()),
            }),
        }
    }

    /// Waits for the next message of a channel, from one node or from any; returns `None` when
    /// `stop` returns true.
    ///
    /// Messages that have arrived come first, even if their sender is lost. This function calls
    /// `stop` at least every 100 ms.
    ///
    /// # Errors
    /// A loss anywhere in the job, a node that cannot make the loader, a shutdown of all possible
    /// senders, or closed links.
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
                let index = inbox.iter().position(|(node, _)| from.is_none_or(|from| from == *node));
                if let Some(found) = index.and_then(|index| inbox.remove(index)) {
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
                    state = self.mesh.wait(state, POLL_INTERVAL);
                }
            }
            drop(state);
            if stop() {
                return Ok(None);
            }
        }
    }

    /// Whether the leader of a node has shut down.
    pub fn is_gone(&self, node: usize) -> bool {
        self.mesh.lock().nodes.get(node).is_some_and(|state| state.presence == NodePresence::Gone)
    }

    /// Messages sent so far, without heartbeats and other control frames.
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

    /// Waits until all nodes have made the loader. Meanwhile it passes the leader that is missing
    /// to `slow`, which returns whether to go on.
    ///
    /// # Errors
    /// If a node cannot make the loader, or is lost.
    pub fn agree_made(&self, slow: &mut dyn FnMut(&str) -> bool) -> Result<(), LinkError> {
        let mut state = self.mesh.lock();
        self.mesh.send_to_all(&mut state, &Frame::Made);
        loop {
            if let Some(failure) = self.mesh.failure(&state) {
                return Err(failure);
            }
            let missing = self.mesh.others().find(|node| !state.nodes[*node].made);
            let Some(missing) = missing else { return Ok(()) };
            self.check_presence(&state, missing)?;
            state = self.mesh.wait(state, POLL_INTERVAL);
            drop(state);
            if !slow(&self.mesh.nodes.leader(missing)) {
                return Err(LinkError::Interrupted);
            }
            state = self.mesh.lock();
        }
    }

    /// The failure that ends the work of all nodes, if there is one.
    pub fn failure(&self) -> Option<LinkError> {
        self.mesh.failure(&self.mesh.lock())
    }

    /// Attaches the sink: from now on the thread reports deaths of this node's processes to the
    /// other nodes, and records their losses on this node.
    pub fn attach(&self, sink: &Arc<dyn FailureSink>) {
        let mut state = self.mesh.lock();
        let loss = state.loss;
        state.sink = Some(Arc::clone(sink));
        drop(state);
        if let Some(loss) = loss {
            sink.record(loss);
        }
        self.mesh.wake_thread();
    }

    /// Reports a loss on this node to the other nodes, and waits until the kernel has the frames
    /// (at most 500 ms): the process may then end.
    pub fn report_loss(&self, loss: PeerFailure) {
        self.mesh.lose(loss);
        self.flush();
    }

    /// Reports to the other nodes at which step this one began its next iteration, and records a
    /// node that began at a different one.
    pub fn started(&self, step: u64) {
        let mut state = self.mesh.lock();
        let (number, conflict) = state.starts.begin(step);
        self.mesh.send_to_all(&mut state, &Frame::Started { number, step });
        drop(state);
        self.mesh.report(conflict);
    }

    /// Reports to the other nodes that this one cannot make the loader; `after_loss`: because a
    /// process of the job has ended.
    pub fn abandon(&self, reason: &str, after_loss: bool) {
        let mut state = self.mesh.lock();
        self.mesh.send_to_all(&mut state, &Frame::Abandoned { reason: reason.to_owned(), after_loss });
        drop(state);
        self.flush();
    }

    fn flush(&self) {
        let begun = Instant::now();
        let mut state = self.mesh.lock();
        while !state.control_flushed && begun.elapsed() < FLUSH_TIMEOUT {
            state = self.mesh.wait(state, POLL_INTERVAL);
        }
    }

    /// Takes the pending warnings: peers that have been silent for long.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.mesh.lock().warnings)
    }

    /// Sends a shutdown to all nodes. Takes a second at most; a second call does nothing.
    pub fn close(&self) {
        if fork::in_forked_child(self.generation) {
            return;
        }
        self.mesh.lock().closing = true;
        self.mesh.changed.notify_all();
        self.mesh.wake_thread();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A thread that panicked has printed its message; the sockets are closed either way.
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
