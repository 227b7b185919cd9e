//! Frames: the protocol of a link after both sides have authenticated.
//!
//! ```text
//! kind (1 byte) | channel (1) | 0 (2) | length of the body (4, little-endian) | body
//! ```
//!
//! A message is split into pieces of at most [`MAX_PIECE_BYTES`], so that a large one does not
//! delay small ones of other channels. The pieces of one channel are in order and do not
//! interleave. The receiver acknowledges pieces; at most [`WINDOW_BYTES`] are in flight
//! unacknowledged. So a peer that is stopped for minutes never closes its TCP window, which would
//! look like a failed node (`io_thread.rs`).

use crate::base::failure::PeerFailure;

/// Largest body of a frame \[bytes\].
pub(super) const MAX_PIECE_BYTES: usize = 8 << 10;
/// Unacknowledged pieces in flight \[bytes\]: half of the smallest initial window of a kernel. At a
/// latency of 100 us that is still 300 MB/s.
pub(super) const WINDOW_BYTES: usize = 32 << 10;
/// The receiver acknowledges after each such amount \[bytes\].
pub(super) const ACKNOWLEDGE_BYTES: usize = WINDOW_BYTES / 4;
/// Largest message \[bytes\]: the index of a dataset of some hundred million samples.
pub const MAX_MESSAGE_BYTES: usize = 1 << 30;
const HEADER_BYTES: usize = 8;

/// Topic of a message; each channel keeps its own order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Channel {
    /// The index, or a notice in its place.
    Index = 0,
    /// A cursor that is handed from node to node.
    Cursor = 1,
    /// Tokens for reading.
    Token = 2,
    /// Decisions that must be the same on all nodes.
    Settings = 3,
    /// How nodes serve their shares of an in-memory store.
    Store = 4,
}

/// Number of channels.
pub(super) const CHANNELS: usize = 5;

impl Channel {
    /// All of them.
    pub const ALL: [Self; CHANNELS] = [Self::Index, Self::Cursor, Self::Token, Self::Settings, Self::Store];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(byte as usize).copied()
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A piece of a message; `last` ends it.
    Piece { channel: Channel, last: bool, body: Vec<u8> },
    /// This many bytes of pieces were received.
    Acknowledge(u32),
    /// Alive.
    Heartbeat,
    /// A process of the job is lost.
    Lost(PeerFailure),
    /// This node cannot make the loader; `after_loss`: because a process of it has ended.
    Abandoned { reason: String, after_loss: bool },
    /// This node has made the loader.
    Made,
    /// This node began its iteration of this number at this step.
    Started { number: u64, step: u64 },
    /// The last frame of an orderly close.
    Shutdown,
}

const PIECE: u8 = 1;
const LAST_PIECE: u8 = 2;
const ACKNOWLEDGE: u8 = 3;
const HEARTBEAT: u8 = 4;
const LOST: u8 = 5;
const ABANDONED: u8 = 6;
const MADE: u8 = 7;
const SHUTDOWN: u8 = 8;
const STARTED: u8 = 9;

fn put(out: &mut Vec<u8>, kind: u8, channel: u8, body: &[u8]) {
    out.extend_from_slice(&[kind, channel, 0, 0]);
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(body);
}

/// Writes a piece of a message.
pub(super) fn put_piece(out: &mut Vec<u8>, channel: Channel, last: bool, body: &[u8]) {
    debug_assert!(body.len() <= MAX_PIECE_BYTES);
    put(out, if last { LAST_PIECE } else { PIECE }, channel as u8, body);
}

impl Frame {
    /// Writes the frame.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Piece { channel, last, body } => put_piece(out, *channel, *last, body),
            Self::Acknowledge(bytes) => put(out, ACKNOWLEDGE, 0, &bytes.to_le_bytes()),
            Self::Heartbeat => put(out, HEARTBEAT, 0, &[]),
            Self::Lost(loss) => put(out, LOST, 0, &loss.to_word().to_le_bytes()),
            Self::Abandoned { reason, after_loss } => {
                let mut end = reason.len().min(MAX_PIECE_BYTES - 1);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                let body = [&[u8::from(*after_loss)], &reason.as_bytes()[..end]].concat();
                put(out, ABANDONED, 0, &body);
            }
            Self::Made => put(out, MADE, 0, &[]),
            Self::Started { number, step } => {
                put(out, STARTED, 0, &[number.to_le_bytes(), step.to_le_bytes()].concat());
            }
            Self::Shutdown => put(out, SHUTDOWN, 0, &[]),
        }
    }
}

/// The other side does not follow the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// Splits received bytes into frames.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    bytes: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Adds received bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Broken> {
        let rest = &self.bytes[self.taken..];
        let Some((header, rest)) = rest.split_at_checked(HEADER_BYTES) else { return Ok(None) };
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if length > MAX_PIECE_BYTES || header[2..4] != [0, 0] {
            return Err(Broken);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = read(header[0], header[1], body).ok_or(Broken)?;
        self.taken += HEADER_BYTES + length;
        Ok(Some(frame))
    }
}

fn read(kind: u8, channel: u8, body: &[u8]) -> Option<Frame> {
    Some(match (kind, body.len()) {
        (PIECE | LAST_PIECE, _) => Frame::Piece {
            channel: Channel::from_byte(channel)?,
            last: kind == LAST_PIECE,
            body: body.to_vec(),
        },
        (ACKNOWLEDGE, 4) => Frame::Acknowledge(u32::from_le_bytes(body.try_into().ok()?)),
        (HEARTBEAT, 0) => Frame::Heartbeat,
        (LOST, 8) => Frame::Lost(PeerFailure::from_word(u64::from_le_bytes(body.try_into().ok()?))?),
        (ABANDONED, 1..) => Frame::Abandoned {
            after_loss: body[0] != 0,
            reason: String::from_utf8_lossy(&body[1..]).into_owned(),
        },
        (MADE, 0) => Frame::Made,
        (STARTED, 16) => Frame::Started {
            number: u64::from_le_bytes(body[..8].try_into().ok()?),
            step: u64::from_le_bytes(body[8..].try_into().ok()?),
        },
        (SHUTDOWN, 0) => Frame::Shutdown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::failure::Cause;

    fn frames() -> Vec<Frame> {
        vec![
            Frame::Heartbeat,
            Frame::Piece { channel: Channel::Token, last: false, body: vec![7; MAX_PIECE_BYTES] },
            Frame::Piece { channel: Channel::Index, last: true, body: Vec::new() },
            Frame::Acknowledge(u32::MAX),
            Frame::Lost(PeerFailure { cause: Cause::Died, rank: 3, pid: 99 }),
            Frame::Abandoned { reason: "no such file: é".into(), after_loss: true },
            Frame::Made,
            Frame::Started { number: 3, step: u64::MAX },
            Frame::Shutdown,
        ]
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let mut bytes = Vec::new();
        for frame in frames() {
            frame.put(&mut bytes);
        }
        for cut in [1, 3, 8, 1000, bytes.len()] {
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for part in bytes.chunks(cut) {
                decoder.feed(part);
                while let Some(frame) = decoder.next().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames(), "cut {cut}");
        }
    }

    #[test]
    fn a_malformed_header_is_rejected_before_its_body_arrives() {
        let rejected = |bytes: &[u8]| {
            let mut decoder = Decoder::default();
            decoder.feed(bytes);
            decoder.next()
        };
        assert_eq!(rejected(&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), Err(Broken), "too long");
        assert_eq!(rejected(&[0, 0, 0, 0, 0, 0, 0, 0]), Err(Broken), "unknown kind");
        assert_eq!(rejected(&[1, 200, 0, 0, 0, 0, 0, 0]), Err(Broken), "unknown channel");
        assert_eq!(rejected(&[4, 0, 1, 0, 0, 0, 0, 0]), Err(Broken), "reserved bytes");
        assert_eq!(rejected(&[3, 0, 0, 0, 1, 0, 0, 0, 9]), Err(Broken), "short body");
        assert_eq!(rejected(&[5, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Broken), "no loss");
        assert_eq!(rejected(&[4, 0, 0]), Ok(None));
    }

    #[test]
    fn a_long_reason_is_cut_at_a_letter() {
        let mut bytes = Vec::new();
        Frame::Abandoned { reason: "é".repeat(MAX_PIECE_BYTES), after_loss: false }.put(&mut bytes);
        let mut decoder = Decoder::default();
        decoder.feed(&bytes);
        let Ok(Some(Frame::Abandoned { reason, .. })) = decoder.next() else { panic!("not a reason") };
        assert_eq!(reason.len(), MAX_PIECE_BYTES - 2);
        assert!(reason.chars().all(|letter| letter == 'é'));
    }
}
