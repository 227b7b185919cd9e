//! Receives answers of one connection straight into the memory of their requests.
//!
//! Each [`Receiver::step`] passes the rest of the header, the next parts of the destination and the
//! checksum to one `readv`. Then it checks the header, if that is complete now, and adds the new
//! bytes to the checksum while they are in the cache of this core. Bytes that a bad peer sends
//! after a bad header can land in the destination, never elsewhere.

use std::io;
use std::os::fd::BorrowedFd;

use crate::client::fetcher::Destination;
use crate::message::answer::{AnswerHeader, CHECKSUM_BYTES, HEADER_BYTES};
use crate::message::request::Refused;
use crate::socket::{MAX_PARTS, Part, receive};

/// Most bytes of one system call \[bytes\]: they are still in the second-level cache of a core when
/// the checksum reads them.
const RECEIVE_BYTES: usize = 512 << 10;

/// A request whose answer has not arrived.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) step: u64,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) bytes: u64,
}

/// Result of an attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A part of the answer, or nothing if `bytes` is 0. No more is there now if `drained`.
    Some { bytes: usize, drained: bool },
    /// The answer is complete.
    All,
}

/// Why an answer cannot be received.
#[derive(Debug)]
pub(crate) enum Failure {
    Lost(io::Error),
    Refused(Refused),
    Corrupt { expected: u32, found: u32 },
    Protocol(String),
}

/// Receives the answer to one request after the other.
#[derive(Debug)]
pub(crate) struct Receiver {
    trailer_bytes: usize,
    header: [u8; HEADER_BYTES],
    header_have: usize,
    /// The destination that is filled next, and what it has \[bytes\].
    at: usize,
    within: usize,
    payload_have: u64,
    checksum: u32,
    trailer: [u8; CHECKSUM_BYTES],
    trailer_have: usize,
    parts: Vec<Part>,
}

impl Receiver {
    pub(crate) fn new(with_checksum: bool) -> Self {
        Self {
            trailer_bytes: if with_checksum { CHECKSUM_BYTES } else { 0 },
            header: [0; HEADER_BYTES],
            header_have: 0,
            at: 0,
            within: 0,
            payload_have: 0,
            checksum: 0,
            trailer: [0; CHECKSUM_BYTES],
            trailer_have: 0,
            parts: Vec::new(),
        }
    }

    /// Receives what is there of the answer to `request`.
    pub(crate) fn step(
        &mut self,
        socket: BorrowedFd<'_>,
        request: &PendingRequest,
    ) -> Result<Received, Failure> {
        self.plan(request);
        // SAFETY: header and checksum are fields of `self`, which no reference reaches during the
        // call. The destinations are claimed until the request is answered or has failed
        // (`Destination::new`).
        let received = unsafe { receive(socket, &self.parts) }.map_err(Failure::Lost)?;
        let bytes = match received {
            None => return Ok(Received::Some { bytes: 0, drained: true }),
            Some(0) => return Err(Failure::Lost(io::ErrorKind::UnexpectedEof.into())),
            Some(bytes) => bytes,
        };
        let drained = bytes < self.parts.iter().map(Part::len).sum();
        self.advance(bytes, request)?;
        if self.missing(request) > 0 {
            return Ok(Received::Some { bytes, drained });
        }
        let (found, expected) = (self.checksum, u32::from_le_bytes(self.trailer));
        if self.trailer_bytes > 0 && found != expected {
            return Err(Failure::Corrupt { expected, found });
        }
        (self.header_have, self.at, self.within, self.payload_have) = (0, 0, 0, 0);
        (self.checksum, self.trailer_have) = (0, 0);
        Ok(Received::All)
    }

    /// Bytes that are missing of the answer to `request`.
    pub(crate) fn missing(&self, request: &PendingRequest) -> u64 {
        let rest = HEADER_BYTES - self.header_have + self.trailer_bytes - self.trailer_have;
        request.bytes - self.payload_have + rest as u64
    }

    /// Lists the memory that is received into next.
    fn plan(&mut self, request: &PendingRequest) {
        self.parts.clear();
        let header = &mut self.header[self.header_have..];
        self.parts.push(Part::at(header.as_mut_ptr(), header.len()));
        let (mut within, mut planned) = (self.within, 0);
        for destination in request.destinations.get(self.at..).unwrap_or_default() {
            if planned >= RECEIVE_BYTES || self.parts.len() >= MAX_PARTS - 1 {
                break;
            }
            let length = (destination.len() - within).min(RECEIVE_BYTES - planned);
            self.parts.push(Part::at(destination.as_ptr().wrapping_add(within), length));
            planned += length;
            within = 0;
        }
        if self.payload_have + planned as u64 == request.bytes {
            let trailer = &mut self.trailer[self.trailer_have..self.trailer_bytes];
            self.parts.push(Part::at(trailer.as_mut_ptr(), trailer.len()));
        }
    }

    /// Accounts for `bytes` that were received into the parts.
    fn advance(&mut self, mut bytes: usize, request: &PendingRequest) -> Result<(), Failure> {
        if self.header_have < HEADER_BYTES {
            let header = bytes.min(HEADER_BYTES - self.header_have);
            self.header_have += header;
            bytes -= header;
            if self.header_have < HEADER_BYTES {
                return Ok(());
            }
            self.check_header(request)?;
        }
        for at in 1..self.parts.len() {
            let left = request.bytes - self.payload_have;
            if bytes == 0 || left == 0 {
                break;
            }
            let length = self.parts[at].len().min(bytes);
            if self.trailer_bytes > 0 {
                // SAFETY: bytes of a claimed destination, which the kernel has just written.
                let new = unsafe { std::slice::from_raw_parts(self.parts[at].as_ptr(), length) };
                self.checksum = crc32c::crc32c_append(self.checksum, new);
            }
            bytes -= length;
            self.payload_have += length as u64;
            self.within += length;
            if self.within == request.destinations[self.at].len() {
                (self.at, self.within) = (self.at + 1, 0);
            }
        }
        self.trailer_have += bytes;
        Ok(())
    }

    fn check_header(&self, request: &PendingRequest) -> Result<(), Failure> {
        let header = AnswerHeader::parse(&self.header)
            .map_err(|status| Failure::Protocol(format!("unknown status {status}")))?;
        let bytes = header.outcome.map_err(Failure::Refused)?;
        if (header.step, bytes) == (request.step, request.bytes) {
            return Ok(());
        }
        Err(Failure::Protocol(format!(
            "expected an answer of {} bytes for step {}, found one of {bytes} bytes for step {}",
            request.bytes, request.step, header.step
        )))
    }
}
