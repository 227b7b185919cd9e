//! A connection, as the server sees it: handshake, then requests and their answers.
//!
//! [`ClientConnection::turn`] does what can be done without waiting: send what is due, then receive
//! and handle the next message. It ends when the socket has nothing more, or when the connection
//! has used its turn. The next request is received only after the answer before it was sent, so a
//! client that does not read makes the server keep one request, and TCP holds back the others.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::net::Shutdown;

use crate::message::answer::AnswerHeader;
use crate::message::auth::{HELLO_BYTES, Hello, VERDICT_BYTES, refused_challenge, verdict};
use crate::message::handshake::{Nonce, PROOF_BYTES, nonce};
use crate::message::refusal::Refusal;
use crate::message::request::{self, Refused, RequestEntry, RequestHeader};
use crate::server::answering::{Answer, Sent};
use crate::server::registry::{Admission, Exported, ServingNode};
use crate::socket::{Part, receive_bytes, send_bytes};

/// Received at once if less is expected \[bytes\]: a request for some hundred samples.
const RECEIVE_BYTES: usize = 4 << 10;
/// Memory that an idle connection may keep of a large request \[bytes\].
const KEPT_BYTES: usize = 64 << 10;
/// What a request takes of a turn in addition to its bytes, so that a client cannot hold a thread
/// with tiny requests \[bytes\].
const REQUEST_COST_BYTES: usize = 4 << 10;

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The connection waits for its socket.
    Waits,
    /// There is more to do in its next turn.
    More,
    /// The connection has ended.
    Ended,
}

#[derive(Debug)]
enum Stage {
    Hello,
    Proof(Box<(Hello, Nonce)>),
    Requests {
        exported: Arc<Exported>,
        checksum: bool,
        _admission: Admission,
    },
    /// After a refusal: what still arrives is dropped until the peer closes. Closing at once would
    /// reset the connection, and the peer might never read the refusal.
    Closing,
}

#[derive(Debug)]
enum Output {
    Nothing,
    Bytes { bytes: Vec<u8>, sent: usize },
    Answer(Answer),
}

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    socket: OwnedFd,
    stage: Stage,
    /// Since when it has been in a stage that may last a limited time only.
    limited_since: Option<Instant>,
    input: Vec<u8>,
    /// Bytes of `input` that were received.
    have: usize,
    output: Output,
    spare: Vec<RequestEntry>,
    /// Whether a turn is due; used by the worker.
    pub(crate) queued: bool,
}

/// The peer has to go.
struct End;

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl ClientConnection {
    /// A connection that was just accepted; its socket does not block.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            stage: Stage::Hello,
            limited_since: Some(Instant::now()),
            input: Vec::new(),
            have: 0,
            output: Output::Nothing,
            spare: Vec::new(),
            queued: false,
        }
    }

    /// Since when it has been a stranger, or closing.
    pub(crate) fn limited_since(&self) -> Option<Instant> {
        self.limited_since
    }

    /// Whether its share is no longer exported.
    pub(crate) fn is_withdrawn(&self) -> bool {
        matches!(&self.stage, Stage::Requests { exported, .. } if exported.withdrawn.load(Ordering::Acquire))
    }

    /// Closes the connection also for forked children, which have copies of the descriptor.
    pub(crate) fn close(self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Does what can be done now, up to `node.turn_bytes`.
    pub(crate) fn turn(&mut self, node: &Arc<ServingNode>, parts: &mut Vec<Part>) -> Turn {
        self.work(node, parts).unwrap_or(Turn::Ended)
    }

    fn work(&mut self, node: &Arc<ServingNode>, parts: &mut Vec<Part>) -> Result<Turn, End> {
        let mut left = node.turn_bytes;
        while left > 0 {
            if !matches!(self.output, Output::Nothing) {
                match self.send(parts, left)? {
                    Sent::Blocked(_) => return Ok(Turn::Waits),
                    Sent::Some(bytes) => left = left.saturating_sub(bytes),
                    Sent::All(bytes) => {
                        left = left.saturating_sub(bytes + REQUEST_COST_BYTES);
                        self.finish_output(node);
                    }
                }
            } else if matches!(self.stage, Stage::Closing) {
                self.have = 0;
                match self.receive(RECEIVE_BYTES)? {
                    None => return Ok(Turn::Waits),
                    Some(bytes) => left = left.saturating_sub(bytes),
                }
            } else if let Some(wanted) = self.wanted()? {
                if self.have >= wanted {
                    self.handle(node, wanted)?;
                } else if self.receive(wanted.max(RECEIVE_BYTES))?.is_none() {
                    return Ok(Turn::Waits);
                }
            }
        }
        Ok(Turn::More)
    }

    // --- sending ---

    fn send(&mut self, parts: &mut Vec<Part>, limit: usize) -> Result<Sent, End> {
        match (&mut self.output, &self.stage) {
            (Output::Answer(answer), Stage::Requests { exported, .. }) => {
                Ok(answer.send(self.socket.as_fd(), &*exported.share, parts, limit)?)
            }
            (Output::Bytes { bytes, sent }, _) => {
                let Some(more) = send_bytes(&self.socket, &bytes[*sent..])? else {
                    return Ok(Sent::Blocked(0));
                };
                *sent += more;
                Ok(if *sent == bytes.len() { Sent::All(more) } else { Sent::Some(more) })
            }
            (Output::Nothing | Output::Answer(_), _) => Ok(Sent::All(0)),
        }
    }

    fn finish_output(&mut self, node: &ServingNode) {
        if let Output::Answer(answer) = std::mem::replace(&mut self.output, Output::Nothing) {
            let bytes = answer.entries.iter().map(|entry| entry.length).sum();
            node.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.spare = answer.entries;
            self.spare.clear();
            self.spare.shrink_to(KEPT_BYTES / size_of::<RequestEntry>());
        }
        if matches!(self.stage, Stage::Closing) {
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        }
    }

    fn reply(&mut self, bytes: Vec<u8>) {
        self.output = Output::Bytes { bytes, sent: 0 };
    }

    /// Sends a refusal, then closes.
    fn refuse(&mut self, bytes: Vec<u8>) {
        self.reply(bytes);
        self.stage = Stage::Closing;
        self.limited_since = Some(Instant::now());
    }

    // --- receiving ---

    /// Receives up to `limit` bytes in all; `None` if nothing is there now.
    fn receive(&mut self, limit: usize) -> Result<Option<usize>, End> {
        if self.input.len() < limit {
            self.input.resize(limit, 0);
        }
        match receive_bytes(&self.socket, &mut self.input[self.have..limit])? {
            Some(0) => Err(End),
            Some(bytes) => {
                self.have += bytes;
                Ok(Some(bytes))
            }
            None => Ok(None),
        }
    }

    /// Length of the next message, as far as its start tells; `None` if that start was refused.
    fn wanted(&mut self) -> Result<Option<usize>, End> {
        match &self.stage {
            Stage::Hello => Ok(Some(HELLO_BYTES)),
            Stage::Proof(_) => Ok(Some(PROOF_BYTES)),
            Stage::Closing => Err(End),
            Stage::Requests { .. } => {
                let Some(header) = self.input[..self.have].first_chunk() else {
                    return Ok(Some(request::HEADER_BYTES));
                };
                match RequestHeader::parse(header) {
                    Ok(header) => Ok(Some(request::HEADER_BYTES + header.entries_bytes as usize)),
                    Err((step, refused)) => {
                        self.refuse_request(step, refused);
                        Ok(None)
                    }
                }
            }
        }
    }

    fn refuse_request(&mut self, step: u64, refused: Refused) {
        tracing::warn!(step, entry = refused.entry, refusal = %refused.refusal, "request refused");
        self.refuse(AnswerHeader { step, outcome: Err(refused) }.encode().to_vec());
    }

    /// Handles the message of `length` bytes at the start of the input.
    fn handle(&mut self, node: &Arc<ServingNode>, length: usize) -> Result<(), End> {
        let message = &self.input[..length];
        match &self.stage {
            Stage::Hello => match message.first_chunk().and_then(Hello::parse) {
                None => return Err(End),
                Some(Err(refusal)) => self.refuse(refused_challenge(refusal)),
                Some(Ok(hello)) => {
                    let nonce = nonce()?;
                    self.reply(node.authenticator.challenge(&hello, &nonce));
                    self.stage = Stage::Proof(Box::new((hello, nonce)));
                }
            },
            Stage::Proof(expected) => {
                let (hello, nonce) = **expected;
                let proved = message
                    .first_chunk()
                    .is_some_and(|bytes| node.authenticator.check_proof(&hello, &nonce, bytes));
                match if proved { admit(node, &hello) } else { Err(Refusal::Secret) } {
                    Ok((exported, admission)) => {
                        self.reply(verdict(Ok(exported.share.bytes())).to_vec());
                        self.limited_since = None;
                        self.stage =
                            Stage::Requests { exported, checksum: hello.checksum, _admission: admission };
                    }
                    Err(refusal) => {
                        tracing::warn!(rank = hello.rank, store = hello.store.0, %refusal, "connection refused");
                        let bytes: [u8; VERDICT_BYTES] = verdict(Err(refusal));
                        self.refuse(bytes.to_vec());
                    }
                }
            }
            Stage::Requests { exported, checksum, .. } => {
                let (start, entries_bytes) = message.split_first_chunk().ok_or(End)?;
                let header = RequestHeader::parse(start).map_err(|_| End)?;
                let mut entries = std::mem::take(&mut self.spare);
                match request::parse(header, entries_bytes, exported.share.bytes(), &mut entries) {
                    Ok(bytes) => {
                        self.output = Output::Answer(Answer::new(header.step, bytes, entries, *checksum));
                    }
                    Err(refused) => self.refuse_request(header.step, refused),
                }
            }
            Stage::Closing => {}
        }
        self.input.copy_within(length..self.have, 0);
        self.have -= length;
        if self.input.len() > KEPT_BYTES && self.have <= KEPT_BYTES {
            self.input.truncate(KEPT_BYTES);
            self.input.shrink_to_fit();
        }
        Ok(())
    }
}

/// Decides about a client that has proved that it knows the secret.
fn admit(node: &Arc<ServingNode>, hello: &Hello) -> Result<(Arc<Exported>, Admission), Refusal> {
    if hello.node != node.index {
        return Err(Refusal::Node);
    }
    let exported = node.share(hello.store).ok_or(Refusal::Store)?;
    if exported.dataset != hello.dataset {
        return Err(Refusal::Dataset);
    }
    let admission = node.admit(&exported).ok_or(Refusal::Connections)?;
    Ok((exported, admission))
}
