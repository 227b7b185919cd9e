//! Messages of the handshake of two leaders (`forebay_transport::handshake`).
//!
//! ```text
//! connecting → accepting: magic (8) | version (4) | from (4) | to (4) | nonce (32)
//! accepting → connecting: nonce (32) | proof (32)
//! connecting → accepting: proof (32)
//! accepting → connecting: 1                     from here on frames (frames.rs), both ways
//! ```
//!
//! Numbers are little-endian; `from` and `to` are node indices. The key is of the secret, the job
//! and the loader.

use forebay_transport::handshake::{HandshakeKey, NONCE_BYTES, Nonce, PROOF_BYTES, Side};

use super::spec::Secret;

const MAGIC: [u8; 8] = *b"FOREBAY\n";
/// Grows when handshake or frames change their meaning.
pub(super) const VERSION: u32 = 3;
pub(super) const HELLO_BYTES: usize = 8 + 3 * 4 + NONCE_BYTES;
pub(super) const ANSWER_BYTES: usize = NONCE_BYTES + PROOF_BYTES;
/// The byte that ends the handshake.
pub(super) const WELCOME: u8 = 1;

/// What the leaders of a job prove to each other for a loader.
pub(super) fn key(secret: &Secret, job: &str, loader: &str) -> HandshakeKey {
    let purpose = "forebay 2026 links between the leaders of nodes";
    HandshakeKey::new(purpose, &[job, loader], secret.bytes())
}

/// The connecting side's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Node index of its sender.
    pub(super) from: u32,
    /// Node index of its receiver.
    pub(super) to: u32,
    pub(super) nonce: Nonce,
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let numbers = [VERSION, self.from, self.to].map(u32::to_le_bytes).concat();
        let bytes = [&MAGIC[..], &numbers, &self.nonce].concat();
        bytes.try_into().expect("the parts have this length")
    }

    pub(super) fn parse(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        (bytes[..8] == MAGIC && number(8) == VERSION).then_some(())?;
        Some(Self { from: number(12), to: number(16), nonce: bytes[20..].try_into().expect("32 bytes") })
    }
}

/// The accepting side's answer to a hello.
pub(super) fn answer(key: &HandshakeKey, hello: &Hello, nonce: &Nonce) -> Vec<u8> {
    [&nonce[..], &key.proof(Side::Accepting, &hello.encode(), nonce)].concat()
}

/// The nonce of an answer; `None` if its sender does not know the secret.
pub(super) fn check_answer(key: &HandshakeKey, hello: &Hello, bytes: &[u8; ANSWER_BYTES]) -> Option<Nonce> {
    let (nonce, proof) = bytes.split_first_chunk::<NONCE_BYTES>()?;
    key.is_proved(Side::Accepting, &hello.encode(), nonce, proof.try_into().ok()?).then_some(*nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::spec::SECRET_BYTES;

    const HELLO: Hello = Hello { from: 3, to: 1, nonce: [9; NONCE_BYTES] };

    #[test]
    fn a_hello_is_read_back_and_another_is_not() {
        let bytes = HELLO.encode();
        assert_eq!(Hello::parse(&bytes), Some(HELLO));
        for byte in 0..12 {
            let mut wrong = bytes;
            wrong[byte] ^= 1;
            assert_eq!(Hello::parse(&wrong), None, "byte {byte}");
        }
    }

    #[test]
    fn only_a_peer_with_the_secret_can_answer_and_only_this_hello() {
        let key = |secret: u8, job, loader| key(&Secret::new([secret; SECRET_BYTES]), job, loader);
        let (ours, nonce) = (key(1, "job", "train"), [6; NONCE_BYTES]);
        let answer: [u8; ANSWER_BYTES] = answer(&ours, &HELLO, &nonce).try_into().unwrap();
        assert_eq!(check_answer(&ours, &HELLO, &answer), Some(nonce));
        for theirs in [key(2, "job", "train"), key(1, "jobt", "rain"), key(1, "job", "test")] {
            assert_eq!(check_answer(&theirs, &HELLO, &answer), None);
        }
        for other in [Hello { from: 2, ..HELLO }, Hello { to: 0, ..HELLO }, Hello { nonce, ..HELLO }] {
            assert_eq!(check_answer(&ours, &other, &answer), None);
        }
    }
}
