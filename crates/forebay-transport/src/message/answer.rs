//! Answers: the bytes that a request asked for.
//!
//! ```text
//! step (8 bytes) | bytes of payload (8) | status (4) | payload | CRC-32C (4)
//! ```
//!
//! Numbers are little-endian. The payload is in the order of the entries. The checksum covers the
//! payload and follows it, so that each side computes it over bytes that are still in the cache of
//! its core: the server just before they are sent, the client just after they arrived. It is absent
//! if the hello asked for none.
//!
//! A status other than 0 refuses the request. Then the second field is the first bad entry, nothing
//! follows, and the server closes the connection.

use crate::message::refusal::Refusal;
use crate::message::request::Refused;

/// Bytes of an answer before its payload.
pub(crate) const HEADER_BYTES: usize = 20;
/// Bytes of the checksum.
pub(crate) const CHECKSUM_BYTES: usize = 4;

/// First part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerHeader {
    /// Step of the request.
    pub(crate) step: u64,
    /// Bytes of payload that follow, or why there are none.
    pub(crate) outcome: Result<u64, Refused>,
}

impl AnswerHeader {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let (second, status) = match self.outcome {
            Ok(bytes) => (bytes, 0),
            Err(refused) => (refused.entry, refused.refusal.status()),
        };
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&self.step.to_le_bytes());
        out[8..16].copy_from_slice(&second.to_le_bytes());
        out[16..].copy_from_slice(&status.to_le_bytes());
        out
    }

    /// Parses a header; an unknown status is the error.
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, u32> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let status = u32::from_le_bytes(bytes[16..].try_into().expect("four bytes"));
        let outcome = match status {
            0 => Ok(number(8)),
            _ => Err(Refused { refusal: Refusal::from_status(status).ok_or(status)?, entry: number(8) }),
        };
        Ok(Self { step: number(0), outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_and_an_unknown_status_is_an_error() {
        let refused = Refused { refusal: Refusal::Outside, entry: 3 };
        for outcome in [Ok(1 << 40), Err(refused)] {
            let header = AnswerHeader { step: 9, outcome };
            assert_eq!(AnswerHeader::parse(&header.encode()), Ok(header));
        }
        let mut bytes = AnswerHeader { step: 9, outcome: Ok(1) }.encode();
        bytes[16] = 99;
        assert_eq!(AnswerHeader::parse(&bytes), Err(99));
    }
}
