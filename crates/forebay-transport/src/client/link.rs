//! The connection of one rank to one peer.
//!
//! Requests are numbered; their answers arrive in the same order. [`Link::fetch`] writes a request
//! to the socket as far as that takes it. The first thread that waits drives the connection
//! ([`turns.rs`](crate::client::turns)): it sends what is left, receives answers, and wakes the
//! others when theirs is complete. When it has its own, the next one takes over. So no thread is
//! needed in between, and bytes arrive in the memory of their request.
//!
//! A failure ends all requests in flight. It is detected while somebody waits: the stream ends, the
//! kernel reports an error, or the other host has not acknowledged what was sent for the time that
//! the caller has set. Time in which nobody waits, or in which the process did not run, does not
//! count. A peer that is stopped or slow is not lost: its kernel acknowledges.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;

use crate::client::fetcher::{Peer, Piece, Ticket};
use crate::client::receiver::{Failure, PendingRequest, Received, Receiver};
use crate::client::turns::{Look, Turns};
use crate::error::TransportError;
use crate::message::request::{Checker, MAX_COUNT, RequestEntry, put};
use crate::socket::{Socket, send_bytes, set_low_water, unacknowledged};

/// Longest sleep between two looks at deadline and silence.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A thread sleeps until this much is there, or the rest of its answer \[bytes\]. Every wake-up
/// takes time from the core that sends: without this, one client reaches 0.6 of the rate over
/// loopback.
const LOW_WATER_BYTES: usize = 1 << 20;

/// Limits of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most requests without an answer.
    pub(crate) in_flight: usize,
    /// How long a host may acknowledge nothing while an answer of its peer is waited for.
    pub(crate) silence: Duration,
    /// Whether answers carry a checksum.
    pub(crate) checksum: bool,
}

#[derive(Clone, Debug)]
enum Phase {
    Connecting,
    Open { socket: Arc<Socket>, share_bytes: u64 },
    Failed(TransportError),
}

#[derive(Debug)]
struct State {
    /// How often the connection was made.
    generation: u64,
    phase: Phase,
    /// Bytes of requests that the socket has not taken yet.
    unsent: VecDeque<u8>,
    in_flight: VecDeque<Arc<PendingRequest>>,
    issued: u64,
    completed: u64,
}

/// What the driving thread needs alone.
#[derive(Debug)]
struct Driver {
    receiver: Receiver,
    /// How long nothing has arrived while a thread waited.
    silent: Duration,
    /// How many bytes must be there to end a sleep.
    low_water: usize,
}

/// The connection to one peer.
#[derive(Debug)]
pub(crate) struct Link {
    peer: Peer,
    /// Name of the peer's node, for messages.
    node: String,
    limits: Limits,
    turns: Turns<State, Driver>,
}

impl Link {
    /// A link that is being connected.
    pub(crate) fn new(peer: Peer, node: String, limits: Limits) -> Self {
        let state = State {
            generation: 0,
            phase: Phase::Connecting,
            unsent: VecDeque::new(),
            in_flight: VecDeque::new(),
            issued: 0,
            completed: 0,
        };
        Self { peer, node, limits, turns: Turns::new(state, Driver::new(limits)) }
    }

    /// Ends the attempt to connect of this generation.
    pub(crate) fn connected(&self, generation: u64, outcome: Result<(Socket, u64), TransportError>) {
        self.turns.change(|state| {
            if state.generation != generation || !matches!(state.phase, Phase::Connecting) {
                return;
            }
            match outcome {
                Ok((socket, share_bytes)) => {
                    state.phase = Phase::Open { socket: Arc::new(socket), share_bytes };
                    // What the socket does not take now, or refuses, is the business of who waits.
                    let _ = state.flush();
                }
                Err(error) => state.fail(error),
            }
        });
    }

    /// Length of the peer's share \[bytes\], once it is connected.
    pub(crate) fn connection(&self, deadline: Instant) -> Result<u64, TransportError> {
        let look = |state: &State, _| match &state.phase {
            Phase::Open { share_bytes, .. } => Look::Done(Ok(*share_bytes)),
            Phase::Failed(error) => Look::Done(Err(error.clone())),
            Phase::Connecting => Look::<_, ()>::Sleep,
        };
        let found = self.turns.wait(deadline, look, |_, ()| ControlFlow::Continue(()));
        found.unwrap_or_else(|| Err(TransportError::NotConnected { node: self.node.clone() }))
    }

    /// Sends a request, as far as the socket takes it.
    pub(crate) fn fetch(&self, step: u64, pieces: &[Piece]) -> Result<Ticket, TransportError> {
        let usage = |what: String| {
            TransportError::usage(format!("fetch step {step} from node {}: {what}", self.node))
        };
        if pieces.is_empty() || pieces.len() > MAX_COUNT {
            return Err(usage(format!("{} pieces (expected 1 to {MAX_COUNT})", pieces.len())));
        }
        self.turns.with(|state| {
            let share_bytes = match &state.phase {
                Phase::Failed(error) => return Err(error.clone()),
                Phase::Open { share_bytes, .. } => *share_bytes,
                Phase::Connecting => u64::MAX,
            };
            if state.issued - state.completed >= self.limits.in_flight as u64 {
                return Err(usage(format!("{} requests are in flight (at most)", self.limits.in_flight)));
            }
            let bytes = check(pieces, share_bytes).map_err(usage)?;
            Ok(state.issue(self.peer, step, pieces, bytes))
        })
    }

    /// Waits for the answer to a request.
    pub(crate) fn wait(&self, ticket: Ticket, deadline: Instant) -> Result<(), TransportError> {
        let look = |state: &State, is_free: bool| {
            if ticket.generation != state.generation {
                return Look::Done(Err(TransportError::Stale { node: self.node.clone(), step: ticket.step }));
            }
            if state.completed > ticket.number {
                return Look::Done(Ok(()));
            }
            match &state.phase {
                // Once the driving thread has let go of the memory of all requests.
                Phase::Failed(error) if is_free => Look::Done(Err(error.of_step(ticket.step))),
                Phase::Open { socket, .. } => Look::Drive(Arc::clone(socket)),
                Phase::Failed(_) | Phase::Connecting => Look::Sleep,
            }
        };
        let late = || Err(TransportError::Deadline { node: self.node.clone(), step: ticket.step });
        let drive = |driver: &mut Driver, socket: Arc<Socket>| match self.drive(
            driver,
            &socket,
            ticket.number,
            deadline,
        ) {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(late()),
            Err(error) => {
                self.turns.change(|state| state.fail(error));
                ControlFlow::Continue(())
            }
        };
        self.turns.wait(deadline, look, drive).unwrap_or_else(late)
    }

    /// Sends and receives until a request is answered (`true`) or the deadline has passed.
    fn drive(
        &self,
        driver: &mut Driver,
        socket: &Socket,
        number: u64,
        deadline: Instant,
    ) -> Result<bool, TransportError> {
        loop {
            let next = self.turns.with(|state| {
                if let Phase::Failed(error) = &state.phase {
                    return Err(error.clone());
                }
                if state.completed > number {
                    return Ok(None);
                }
                let flushed = state.flush();
                let request = state.in_flight.front().expect("a request that is not completed").clone();
                Ok(Some((request, flushed)))
            });
            let Some((request, flushed)) = next? else { return Ok(true) };
            let received = driver.receiver.step(socket.as_fd(), &request);
            match received.map_err(|failure| self.failure(request.step, failure))? {
                Received::Some { bytes, drained } => {
                    if bytes > 0 {
                        driver.silent = Duration::ZERO;
                    }
                    let sends = flushed.map(|all| !all);
                    if drained {
                        let sends =
                            sends.map_err(|error| self.failure(request.step, Failure::Lost(error)))?;
                        let missing = driver.receiver.missing(&request);
                        driver.sleep_at_least(socket, missing);
                        if !self.sleep_until_ready(driver, socket, sends, deadline, request.step)? {
                            return Ok(false);
                        }
                    } else if Instant::now() > deadline {
                        return Ok(false);
                    }
                }
                Received::All => {
                    driver.silent = Duration::ZERO;
                    self.turns.change(|state| {
                        state.in_flight.pop_front();
                        state.completed += 1;
                    });
                }
            }
        }
    }

    /// Waits for the socket; `false` after the deadline, an error if the other host is silent.
    fn sleep_until_ready(
        &self,
        driver: &mut Driver,
        socket: &Socket,
        sends: bool,
        deadline: Instant,
        step: u64,
    ) -> Result<bool, TransportError> {
        let silence = self.limits.silence;
        if driver.silent >= silence && unacknowledged(socket) >= Some(silence) {
            return Err(self.failure(step, Failure::Lost(io::ErrorKind::TimedOut.into())));
        }
        let now = Instant::now();
        let Some(left) = deadline.checked_duration_since(now).filter(|left| !left.is_zero()) else {
            return Ok(false);
        };
        let timeout = left.min(POLL_INTERVAL).min(silence);
        let flags = if sends { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let time = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        // A signal or an error of the socket: the next attempt to receive finds out.
        let _ = poll(&mut [PollFd::new(socket, flags)], Some(&time));
        driver.silent += now.elapsed().min(timeout);
        Ok(true)
    }

    fn failure(&self, step: u64, failure: Failure) -> TransportError {
        let node = self.node.clone();
        match failure {
            Failure::Lost(source) => TransportError::Lost { node, step, source: Arc::new(source) },
            Failure::Refused(refused) => {
                TransportError::BadRequest { node, step, entry: refused.entry, refusal: refused.refusal }
            }
            Failure::Corrupt { expected, found } => TransportError::Corrupt { node, step, expected, found },
            Failure::Protocol(message) => TransportError::Protocol { node, step, message },
        }
    }

    /// Ends the connection and all its requests; returns the number of the next generation, which
    /// is being connected from now on. Waits for the driving thread to let go of their memory.
    pub(crate) fn reset(&self) -> u64 {
        let stale = TransportError::Stale { node: self.node.clone(), step: 0 };
        self.turns.restart(
            |state| state.fail(stale),
            Driver::new(self.limits),
            |state| {
                state.generation += 1;
                state.phase = Phase::Connecting;
                (state.issued, state.completed) = (0, 0);
                state.generation
            },
        )
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.turns.with(|state| {
            if let Phase::Open { socket, .. } = &state.phase {
                // Also for forked children, which have copies of the descriptor.
                let _ = rustix::net::shutdown(&**socket, Shutdown::Both);
            }
        });
    }
}

impl Driver {
    fn new(limits: Limits) -> Self {
        Self { receiver: Receiver::new(limits.checksum), silent: Duration::ZERO, low_water: 1 }
    }

    /// Lets the next sleep last until a good part of the `missing` bytes is there.
    fn sleep_at_least(&mut self, socket: &Socket, missing: u64) {
        let low_water = missing.min(LOW_WATER_BYTES as u64) as usize;
        // Without it, a sleep ends earlier.
        if low_water != self.low_water && set_low_water(socket, low_water).is_ok() {
            self.low_water = low_water;
        }
    }
}

fn entry(piece: &Piece) -> RequestEntry {
    RequestEntry { offset: piece.offset, length: piece.into.len() as u64 }
}

/// Checks the pieces of a request to a share of this length; returns the bytes of the answer.
fn check(pieces: &[Piece], share_bytes: u64) -> Result<u64, String> {
    let mut checker = Checker::new(share_bytes);
    for (at, piece) in pieces.iter().enumerate() {
        checker.check(entry(piece)).map_err(|refusal| {
            let RequestEntry { offset, length } = entry(piece);
            format!("entry {at} of {length} bytes at offset {offset} of a share of {share_bytes}: {refusal}")
        })?;
    }
    Ok(checker.bytes)
}

impl State {
    /// Queues a request whose answer has `bytes` bytes, and sends what the socket takes.
    fn issue(&mut self, peer: Peer, step: u64, pieces: &[Piece], bytes: u64) -> Ticket {
        let mut encoded = Vec::with_capacity(16 + 8 * pieces.len());
        put(&mut encoded, step, pieces.iter().map(entry));
        self.unsent.extend(encoded);
        let destinations = pieces.iter().map(|piece| piece.into).filter(|into| into.len() > 0).collect();
        self.in_flight.push_back(Arc::new(PendingRequest { step, destinations, bytes }));
        let number = self.issued;
        self.issued += 1;
        // An error of the socket is found again, with its cause, by who waits.
        let _ = self.flush();
        Ticket { peer, step, generation: self.generation, number }
    }

    /// Ends the connection, once.
    fn fail(&mut self, error: TransportError) {
        if let Phase::Failed(_) = self.phase {
            return;
        }
        if let Phase::Open { socket, .. } = &self.phase {
            // Wakes the driving thread.
            let _ = rustix::net::shutdown(&**socket, Shutdown::Both);
        }
        self.phase = Phase::Failed(error);
        self.in_flight.clear();
        self.unsent.clear();
    }

    /// Sends what the socket takes; `true` if nothing is left.
    fn flush(&mut self) -> io::Result<bool> {
        let Phase::Open { socket, .. } = &self.phase else { return Ok(true) };
        while !self.unsent.is_empty() {
            match send_bytes(&**socket, self.unsent.as_slices().0)? {
                None => return Ok(false),
                Some(bytes) => drop(self.unsent.drain(..bytes)),
            }
        }
        Ok(true)
    }
}
