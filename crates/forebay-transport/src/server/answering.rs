//! An answer on its way: what of it was sent, and its checksum so far.
//!
//! Each [`Answer::send`] passes the next parts of the share to one `sendmsg`, without a copy in
//! between. The checksum is computed over the same parts just before, so that the kernel copies
//! them from the cache of this core.
//!
//! `sendfile` from the sealed memory would save that copy. Over loopback it was slower: 0.5 (1
//! client) to 0.8 (16) of the rate of `sendmsg` with extents of 64 KiB to 1 MiB
//! (`examples/transfer.rs`).

use std::io;
use std::os::fd::BorrowedFd;

use crate::checksum;
use crate::message::answer::{AnswerHeader, CHECKSUM_BYTES, HEADER_BYTES};
use crate::message::request::RequestEntry;
use crate::server::share::Share;
use crate::socket::{MAX_PARTS, Part, send};

/// Most bytes of one system call \[bytes\]: they stay in the second-level cache of a core between
/// checksum and copy. With 1 MiB the server takes 1.5 times as much time per byte.
const SEND_BYTES: usize = 256 << 10;

/// State of an answer after an attempt to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// This many bytes, which were the last.
    All(usize),
    /// This many bytes; there are more.
    Some(usize),
    /// This many bytes; the socket accepts no more now.
    Blocked(usize),
}

/// An answer that is being sent.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    header: [u8; HEADER_BYTES],
    header_sent: usize,
    pub(crate) entries: Vec<RequestEntry>,
    /// The entry that is sent next, and what was sent of it \[bytes\].
    at: usize,
    within: u64,
    payload_bytes: u64,
    payload_sent: u64,
    /// Bytes of payload that the checksum covers so far.
    summed: u64,
    checksum: u32,
    trailer_bytes: usize,
    trailer_sent: usize,
}

impl Answer {
    /// The answer with these bytes of a share.
    pub(crate) fn new(step: u64, bytes: u64, entries: Vec<RequestEntry>, with_checksum: bool) -> Self {
        Self {
            header: AnswerHeader { step, outcome: Ok(bytes) }.encode(),
            entries,
            payload_bytes: bytes,
            trailer_bytes: if with_checksum { CHECKSUM_BYTES } else { 0 },
            ..Self::default()
        }
    }

    /// Sends the next parts, at most `limit` bytes of payload.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        share: &dyn Share,
        parts: &mut Vec<Part>,
        limit: usize,
    ) -> io::Result<Sent> {
        parts.clear();
        parts.push(Part::of(&self.header[self.header_sent..]));
        let planned = self.plan(share, parts, limit.min(SEND_BYTES) as u64)?;
        let checksum = self.checksum.to_le_bytes();
        if self.payload_sent + planned == self.payload_bytes {
            parts.push(Part::of(&checksum[self.trailer_sent..self.trailer_bytes]));
        }
        let offered = parts.iter().map(Part::len).sum();
        // SAFETY: all parts are slices that are borrowed until the end of this function.
        let Some(bytes) = (unsafe { send(socket, parts)? }) else { return Ok(Sent::Blocked(0)) };
        self.advance(bytes as u64, planned);
        let rest = self.payload_bytes - self.payload_sent + (self.trailer_bytes - self.trailer_sent) as u64;
        Ok(match rest {
            0 if self.header_sent == HEADER_BYTES => Sent::All(bytes),
            _ if bytes < offered => Sent::Blocked(bytes),
            _ => Sent::Some(bytes),
        })
    }

    /// Adds the next parts of the payload and their checksum; returns their bytes.
    fn plan(&mut self, share: &dyn Share, parts: &mut Vec<Part>, limit: u64) -> io::Result<u64> {
        let (mut at, mut within, mut planned) = (self.at, self.within, 0);
        // One part is left for the checksum.
        while planned < limit && at < self.entries.len() && parts.len() < MAX_PARTS - 1 {
            let entry = self.entries[at];
            let length = (entry.length - within).min(limit - planned);
            let slice = share.slice(entry.offset + within, length);
            let slice = slice.ok_or_else(|| io::Error::other("the share does not hold what it promised"))?;
            planned += length;
            if self.trailer_bytes > 0 && self.payload_sent + planned > self.summed {
                let new = self.payload_sent + planned - self.summed;
                let next = self.entries.get(at + 1);
                let next = next.and_then(|next| share.slice(next.offset, next.length)).unwrap_or_default();
                self.checksum = checksum::append(self.checksum, &slice[(length - new) as usize..], next);
                self.summed += new;
            }
            parts.push(Part::of(slice));
            within += length;
            if within == entry.length {
                (at, within) = (at + 1, 0);
            }
        }
        Ok(planned)
    }

    fn advance(&mut self, bytes: u64, planned: u64) {
        let header = bytes.min((HEADER_BYTES - self.header_sent) as u64);
        self.header_sent += header as usize;
        let mut payload = (bytes - header).min(planned);
        self.payload_sent += payload;
        self.trailer_sent += (bytes - header - payload) as usize;
        while payload > 0 {
            let rest = self.entries[self.at].length - self.within;
            if payload < rest {
                self.within += payload;
                return;
            }
            payload -= rest;
            (self.at, self.within) = (self.at + 1, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_answer_is_the_same_however_it_is_cut(
            lengths in prop::collection::vec(0_u64..5000, 1..40), limit in 1_usize..9000, with_checksum: bool,
        ) {
            let total: u64 = lengths.iter().sum();
            let share: Vec<u8> = (0..2 * total).map(|at| (at * 7 % 251) as u8).collect();
            let mut end = 0;
            let entries: Vec<_> = lengths.iter().map(|&length| {
                let offset = end + length;
                end = offset + length;
                RequestEntry { offset, length }
            }).filter(|entry| entry.length > 0).collect();
            let payload: Vec<u8> =
                entries.iter().flat_map(|entry| share.slice(entry.offset, entry.length).unwrap().to_vec()).collect();
            let mut expected = AnswerHeader { step: 3, outcome: Ok(total) }.encode().to_vec();
            expected.extend_from_slice(&payload);
            if with_checksum {
                expected.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
            }
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            let mut answer = Answer::new(3, total, entries, with_checksum);
            let (mut found, mut parts) = (vec![0; expected.len()], Vec::new());
            let mut have = 0;
            loop {
                let sent = answer.send(ours.as_fd(), &share, &mut parts, limit).unwrap();
                if matches!(sent, Sent::Blocked(_)) {
                    // Reads an odd number, so that later sends are short.
                    let end = (have + 1777).min(found.len());
                    have += theirs.read(&mut found[have..end]).unwrap();
                }
                if matches!(sent, Sent::All(_)) {
                    break;
                }
            }
            theirs.read_exact(&mut found[have..]).unwrap();
            prop_assert_eq!(found, expected);
        }
    }
}
