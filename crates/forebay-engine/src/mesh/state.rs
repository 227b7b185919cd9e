//! What the thread of the links (`thread.rs`) and those who send and receive share: boxes of
//! messages, and who is there.
//!
//! One lock guards it all; it is held for moments only, never over a system call but the one that
//! wakes the thread.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::FailureSink;
use super::error::LinkError;
use super::frames::{CHANNELS, Channel, Frame, PIECE_BYTES, WINDOW_BYTES, put_piece};
use super::spec::Nodes;
use crate::base::failure::{Cause, PeerFailure};
use crate::base::iteration_starts::{Conflict, Starts};

/// How much of a message is written at once \[bytes\].
const FILL_BYTES: usize = 64 << 10;

/// Whether the leader of a node is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// Not linked yet.
    Awaited,
    Here,
    /// Said goodbye.
    Gone,
    Lost,
}

/// What is on its way to one node.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Frames that go before all pieces.
    control: Vec<u8>,
    channels: [VecDeque<Outgoing>; CHANNELS],
    /// The channel whose piece goes next.
    turn: usize,
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
        self.is_told() && self.channels.iter().all(VecDeque::is_empty)
    }

    pub(super) fn is_told(&self) -> bool {
        self.control.is_empty()
    }

    /// Whether a message of a channel waits.
    pub(super) fn holds(&self, channel: Channel) -> bool {
        !self.channels[channel as usize].is_empty()
    }

    /// The other side has taken so many bytes; false if it cannot have.
    pub(super) fn acknowledge(&mut self, bytes: usize) -> bool {
        let left = self.unacknowledged.checked_sub(bytes);
        self.unacknowledged = left.unwrap_or_default();
        left.is_some()
    }

    /// Moves what may go now to the end of `out`: a piece of each channel in turn.
    pub(super) fn fill(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.control);
        let mut idle = 0;
        while idle < CHANNELS && out.len() < FILL_BYTES && self.unacknowledged < WINDOW_BYTES {
            let number = self.turn;
            self.turn = (self.turn + 1) % CHANNELS;
            let Some(outgoing) = self.channels[number].front_mut() else {
                idle += 1;
                continue;
            };
            idle = 0;
            let end = outgoing.payload.len().min(outgoing.at + PIECE_BYTES);
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
    pub(super) presence: Presence,
    /// It has told that it made the loader.
    pub(super) made: bool,
    pub(super) outbox: Outbox,
}

pub(super) struct State {
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
    /// All control frames are with the kernel.
    pub(super) told: bool,
    pub(super) closing: bool,
    pub(super) watch: Option<Arc<dyn FailureSink>>,
}

pub(super) struct Mesh {
    pub(super) me: usize,
    pub(super) nodes: Nodes,
    pub(super) wake: OwnedFd,
    pub(super) changed: Condvar,
    pub(super) sent: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    state: Mutex<State>,
}

impl Mesh {
    pub(super) fn new(me: usize, nodes: Nodes) -> Result<Self, LinkError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(LinkError::system("make an event descriptor"))?;
        let state = |_| NodeState { presence: Presence::Awaited, made: false, outbox: Outbox::default() };
        let state = State {
            nodes: nodes.0.iter().map(state).collect(),
            inbox: Default::default(),
            adopted: Vec::new(),
            loss: None,
            abandoned: None,
            warnings: Vec::new(),
            starts: Starts::new(nodes.0.len()),
            told: true,
            closing: false,
            watch: None,
        };
        Ok(Self {
            me,
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

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the state, for a while.
    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes the thread.
    pub(super) fn ring(&self) {
        // A full counter is a ring, too.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Places of the other nodes.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.0.len()).filter(|node| *node != self.me)
    }

    /// Says something to all that are there.
    pub(super) fn to_all(&self, state: &mut State, frame: &Frame) {
        for node in self.others() {
            let node = &mut state.nodes[node];
            if node.presence == Presence::Here {
                node.outbox.control(frame);
                state.told = false;
            }
        }
        self.ring();
    }

    /// Notes a loss, if it is the first one, and tells all others of it: whoever ends because of it
    /// must not be taken for the cause.
    pub(super) fn lose(&self, loss: PeerFailure) {
        self.note_loss(self.lock(), loss);
    }

    /// The link to a node is lost.
    pub(super) fn lose_node(&self, node: usize, cause: Cause) {
        let mut state = self.lock();
        state.nodes[node].presence = Presence::Lost;
        state.nodes[node].outbox = Outbox::default();
        // Under the same lock: a rank that finds the node lost finds why, and a rank that knows of
        // the loss sends nothing to the node.
        self.note_loss(state, self.nodes.loss(node, cause));
    }

    fn note_loss(&self, mut state: MutexGuard<'_, State>, loss: PeerFailure) {
        let mut watch = None;
        if state.loss.is_none() {
            state.loss = Some(loss);
            // A node that gave up tells the others why, which must not be overtaken by the mere
            // fact.
            if loss.cause != Cause::GaveUp {
                self.to_all(&mut state, &Frame::Lost(loss));
            }
            watch.clone_from(&state.watch);
        }
        self.changed.notify_all();
        drop(state);
        if let Some(watch) = watch {
            watch.note(loss);
        }
    }

    /// Tells the ranks of this node that another one began elsewhere.
    pub(super) fn report(&self, conflict: Option<Conflict>) {
        let watch = self.lock().watch.clone();
        if let (Some(conflict), Some(watch)) = (conflict, watch) {
            watch.conflict(conflict);
        }
    }

    /// What keeps the nodes from going on together.
    pub(super) fn failure(&self, state: &State) -> Option<LinkError> {
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
            assert!(taken <= WINDOW_BYTES + PIECE_BYTES);
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
