//! State shared by the I/O thread (`io_thread.rs`) and the threads that send and receive: queues of
//! messages, and the presence of each node.
//!
//! One lock guards all of it. No thread holds it across a system call, except the one that wakes
//! the I/O thread.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::FailureSink;
use super::error::LinkError;
use super::frames::{CHANNELS, Channel, Frame, MAX_PIECE_BYTES, WINDOW_BYTES, put_piece};
use super::spec::Nodes;
use crate::base::failure::{Cause, PeerFailure};
use crate::base::iteration_starts::{Conflict, Starts};

/// How much of a message is written at once \[bytes\].
const FILL_BYTES: usize = 64 << 10;

/// Whether the leader of a node is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodePresence {
    /// Not linked yet.
    Awaited,
    Here,
    /// Has shut down.
    Gone,
    Lost,
}

/// Frames and messages to send to one node.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Frames that go before all pieces.
    control: Vec<u8>,
    channels: [VecDeque<Outgoing>; CHANNELS],
    /// The channel whose piece goes next.
    next_channel: usize,
    unacknowledged: usize,
}

#[derive(Debug)]
struct Outgoing {
    payload: Arc<[u8]>,
    at: usize,
}

impl Outbox {
    pub(super) fn control(&mut self, frame: &Frame) {
        frame.put(&mut self.control);
    }

    pub(super) fn message(&mut self, channel: Channel, payload: Arc<[u8]>) {
        self.channels[channel as usize].push_back(Outgoing { payload, at: 0 });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.control_is_empty() && self.channels.iter().all(VecDeque::is_empty)
    }

    pub(super) fn control_is_empty(&self) -> bool {
        self.control.is_empty()
    }

    /// Whether a message of a channel waits.
    pub(super) fn holds(&self, channel: Channel) -> bool {
        !self.channels[channel as usize].is_empty()
    }

    /// The other side acknowledged this many bytes; false if more than were sent.
    pub(super) fn acknowledge(&mut self, bytes: usize) -> bool {
        let left = self.unacknowledged.checked_sub(bytes);
        self.unacknowledged = left.unwrap_or_default();
        left.is_some()
    }

    /// Appends the frames that may be sent now to `out`: one piece of each channel, round robin.
    pub(super) fn fill(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.control);
        let mut idle = 0;
        while idle < CHANNELS && out.len() < FILL_BYTES && self.unacknowledged < WINDOW_BYTES {
            let number = self.next_channel;
            self.next_channel = (self.next_channel + 1) % CHANNELS;
            let Some(outgoing) = self.channels[number].front_mut() else {
                idle += 1;
                continue;
            };
            idle = 0;
            let end = outgoing.payload.len().min(outgoing.at + MAX_PIECE_BYTES);
            let last = end == outgoing.payload.len();
            put_piece(out, Channel::ALL[number], last, &outgoing.payload[outgoing.at..end]);
            self.unacknowledged += end - outgoing.at;
            outgoing.at = end;
            if last {
                self.channels[number].pop_front();
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct NodeState {
    pub(super) presence: NodePresence,
    /// It has reported that it made the loader.
    pub(super) made: bool,
    pub(super) outbox: Outbox,
}

pub(super) struct MeshState {
    pub(super) nodes: Vec<NodeState>,
    pub(super) inbox: [VecDeque<(usize, Vec<u8>)>; CHANNELS],
    /// New links for the thread.
    pub(super) adopted: Vec<(usize, TcpStream)>,
    /// The first loss that was seen; later ones may follow from it.
    pub(super) loss: Option<PeerFailure>,
    /// A node that could not make the loader, and why.
    pub(super) abandoned: Option<(usize, String, bool)>,
    pub(super) warnings: Vec<String>,
    pub(super) starts: Starts,
    /// The kernel has all control frames.
    pub(super) control_flushed: bool,
    pub(super) closing: bool,
    pub(super) sink: Option<Arc<dyn FailureSink>>,
}

pub(super) struct Mesh {
    pub(super) own_node: usize,
    pub(super) nodes: Nodes,
    pub(super) wake: OwnedFd,
    pub(super) changed: Condvar,
    pub(super) sent: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    state: Mutex<MeshState>,
}

impl Mesh {
    pub(super) fn new(own_node: usize, nodes: Nodes) -> Result<Self, LinkError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(LinkError::system("make an event descriptor"))?;
        let state = |_| NodeState { presence: NodePresence::Awaited, made: false, outbox: Outbox::default() };
        let state = MeshState {
            nodes: nodes.0.iter().map(state).collect(),
            inbox: Default::default(),
            adopted: Vec::new(),
            loss: None,
            abandoned: None,
            warnings: Vec::new(),
            starts: Starts::new(nodes.0.len()),
            control_flushed: true,
            closing: false,
            sink: None,
        };
        Ok(Self {
            own_node,
            nodes,
            wake,
            changed: Condvar::new(),
            sent: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            state: Mutex::new(state),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, MeshState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the state, for a while.
    pub(super) fn wait<'a>(
        &self,
        state: MutexGuard<'a, MeshState>,
        limit: Duration,
    ) -> MutexGuard<'a, MeshState> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes the I/O thread.
    pub(super) fn wake_thread(&self) {
        // A full counter also wakes the thread.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Indices of the other nodes.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.0.len()).filter(|node| *node != self.own_node)
    }

    /// Sends a control frame to all linked nodes.
    pub(super) fn send_to_all(&self, state: &mut MeshState, frame: &Frame) {
        for node in self.others() {
            let node = &mut state.nodes[node];
            if node.presence == NodePresence::Here {
                node.outbox.control(frame);
                state.control_flushed = false;
            }
        }
        self.wake_thread();
    }

    /// Records a loss, if it is the first one, and reports it to all other nodes, so that processes
    /// that end because of it are not blamed.
    pub(super) fn lose(&self, loss: PeerFailure) {
        self.record_loss(self.lock(), loss);
    }

    /// The link to a node is lost.
    pub(super) fn lose_node(&self, node: usize, cause: Cause) {
        let mut state = self.lock();
        state.nodes[node].presence = NodePresence::Lost;
        state.nodes[node].outbox = Outbox::default();
        // Under the same lock: a rank that finds the node lost finds why, and a rank that knows of
        // the loss sends nothing to the node.
        self.record_loss(state, self.nodes.loss(node, cause));
    }

    fn record_loss(&self, mut state: MutexGuard<'_, MeshState>, loss: PeerFailure) {
        let mut sink = None;
        if state.loss.is_none() {
            state.loss = Some(loss);
            // A node that gave up reports its reason itself; a `Lost` frame must not overtake it.
            if loss.cause != Cause::GaveUp {
                self.send_to_all(&mut state, &Frame::Lost(loss));
            }
            sink.clone_from(&state.sink);
        }
        self.changed.notify_all();
        drop(state);
        if let Some(sink) = sink {
            sink.record(loss);
        }
    }

    /// Records for the ranks of this node that another node began at a different step.
    pub(super) fn report(&self, conflict: Option<Conflict>) {
        let sink = self.lock().sink.clone();
        if let (Some(conflict), Some(sink)) = (conflict, sink) {
            sink.conflict(conflict);
        }
    }

    /// The failure that ends the work of all nodes.
    pub(super) fn failure(&self, state: &MeshState) -> Option<LinkError> {
        if let Some((node, message, after_loss)) = &state.abandoned {
            return Some(LinkError::Abandoned {
                who: self.nodes.leader(*node),
                message: message.clone(),
                after_loss: *after_loss,
            });
        }
        if let Some(loss) = state.loss {
            return Some(LinkError::Lost { loss });
        }
        state.closing.then_some(LinkError::Closed)
    }

    pub(super) fn count_sent(&self, messages: u64, bytes: u64) {
        self.sent.fetch_add(messages, Ordering::Relaxed);
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames::Decoder;
    use super::*;

    #[test]
    fn a_small_message_overtakes_a_large_one_and_the_window_holds() {
        let mut outbox = Outbox::default();
        let large: Arc<[u8]> = vec![1; 10 * WINDOW_BYTES].into();
        outbox.message(Channel::Index, Arc::clone(&large));
        outbox.message(Channel::Token, [2_u8; 8].as_slice().into());
        outbox.control(&Frame::Heartbeat);
        let (mut decoder, mut found, mut large_bytes) = (Decoder::default(), Vec::new(), 0);
        for round in 0.. {
            let mut out = Vec::new();
            outbox.fill(&mut out);
            let mut taken = 0;
            decoder.feed(&out);
            while let Some(frame) = decoder.next().unwrap() {
                if let Frame::Piece { channel, body, last } = &frame {
                    taken += body.len();
                    large_bytes += if *channel == Channel::Index { body.len() } else { 0 };
                    if *last {
                        found.push((round, *channel));
                    }
                }
            }
            assert!(taken <= WINDOW_BYTES + MAX_PIECE_BYTES);
            if taken == 0 {
                break;
            }
            let mut blocked = Vec::new();
            outbox.fill(&mut blocked);
            assert!(blocked.is_empty(), "nothing goes before an acknowledgement");
            assert!(outbox.acknowledge(taken));
        }
        assert_eq!(large_bytes, large.len());
        assert_eq!(found.first(), Some(&(0, Channel::Token)));
        assert!(outbox.is_empty());
        assert!(!outbox.acknowledge(1), "more than was sent");
    }
}
