//! Mutual authentication of two leaders: both prove that they know the secret, which is never sent.
//!
//! ```text
//! connecting → accepting: magic (8) | version (4) | from (4) | to (4) | nonce (32)
//! accepting → connecting: nonce (32) | digest (32)
//! connecting → accepting: digest (32)
//! accepting → connecting: 1                     from here on frames (frames.rs), both ways
//! ```
//!
//! Numbers are little-endian; `from` and `to` are node indices. A digest is BLAKE3 keyed by the
//! secret, over the side that sends it, the version, both indices, both nonces, and the job and
//! loader of the connection. So a recorded message is useless at another time, between other nodes,
//! or in the other direction. Frames are not encrypted and carry no digest: as with MPI, hosts that
//! can change packets on the job's network are trusted.

use super::spec::Secret;

const MAGIC: [u8; 8] = *b"FOREBAY\n";
/// Grows when handshake or frames change their meaning.
pub(super) const VERSION: u32 = 2;
pub(super) const NONCE_BYTES: usize = 32;
const DIGEST_BYTES: usize = 32;
pub(super) const HELLO_BYTES: usize = 8 + 3 * 4 + NONCE_BYTES;
pub(super) const ANSWER_BYTES: usize = NONCE_BYTES + DIGEST_BYTES;
pub(super) const PROOF_BYTES: usize = DIGEST_BYTES;
/// The byte that ends the handshake.
pub(super) const WELCOME: u8 = 1;

pub(super) type Nonce = [u8; NONCE_BYTES];

/// What a connection is made for.
#[derive(Clone, Debug)]
pub(super) struct Purpose {
    key: [u8; 32],
    context: [u8; 32],
}

/// The side of a connection.
#[derive(Clone, Copy, Debug)]
enum Side {
    Connecting = 0,
    Accepting = 1,
}

/// Node indices of both sides, and their nonces for this connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) connecting: Nonce,
    pub(super) accepting: Nonce,
}

impl Purpose {
    pub(super) fn new(secret: &Secret, job: &str, loader: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        for text in [job, loader] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        Self {
            key: blake3::derive_key("forebay 2026 links between the leaders of nodes", secret.bytes()),
            context: hasher.finalize().into(),
        }
    }

    fn digest(&self, side: Side, pair: &Pair) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&[side as u8]);
        for number in [VERSION, pair.from, pair.to] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&pair.connecting);
        hasher.update(&pair.accepting);
        hasher.update(&self.context);
        hasher.finalize()
    }

    /// The accepting side's answer to a hello.
    pub(super) fn answer(&self, pair: &Pair) -> Vec<u8> {
        [&pair.accepting[..], self.digest(Side::Accepting, pair).as_bytes()].concat()
    }

    /// The connecting side's proof.
    pub(super) fn proof(&self, pair: &Pair) -> Vec<u8> {
        self.digest(Side::Connecting, pair).as_bytes().to_vec()
    }

    /// Checks the answer to the hello of `pair`, whose other nonce is not known yet; `None` if its
    /// sender does not know the secret.
    pub(super) fn check_answer(&self, pair: Pair, bytes: &[u8; ANSWER_BYTES]) -> Option<Pair> {
        let (nonce, digest) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let pair = Pair { accepting: *nonce, ..pair };
        // Comparing with a `Hash` takes the same time whatever differs.
        (self.digest(Side::Accepting, &pair) == *digest).then_some(pair)
    }

    /// Whether the connecting side knows the secret.
    pub(super) fn check_proof(&self, pair: &Pair, bytes: &[u8; PROOF_BYTES]) -> bool {
        self.digest(Side::Connecting, pair) == *bytes
    }
}

/// The connecting side's first message.
pub(super) fn hello(from: u32, to: u32, nonce: &Nonce) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for number in [VERSION, from, to] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(nonce);
    bytes
}

/// Parses a hello: the sender's node index, the receiver's, and the nonce.
pub(super) fn read_hello(bytes: &[u8; HELLO_BYTES]) -> Option<(u32, u32, Nonce)> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let (numbers, nonce) = rest.split_first_chunk::<12>()?;
    let number = |at: usize| u32::from_le_bytes(numbers[4 * at..4 * at + 4].try_into().expect("four bytes"));
    (*magic == MAGIC && number(0) == VERSION).then_some(())?;
    Some((number(1), number(2), nonce.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::spec::SECRET_BYTES;

    fn purpose(secret: u8, job: &str, loader: &str) -> Purpose {
        Purpose::new(&Secret::new([secret; SECRET_BYTES]), job, loader)
    }

    #[test]
    fn a_hello_is_read_back_and_another_is_not() {
        let bytes: [u8; HELLO_BYTES] = hello(3, 1, &[9; NONCE_BYTES]).try_into().unwrap();
        assert_eq!(read_hello(&bytes), Some((3, 1, [9; NONCE_BYTES])));
        for byte in 0..12 {
            let mut wrong = bytes;
            wrong[byte] ^= 1;
            assert_eq!(read_hello(&wrong), None, "byte {byte}");
        }
    }

    #[test]
    fn only_a_peer_with_the_secret_job_and_loader_can_answer_and_prove() {
        let ours = purpose(1, "job", "train");
        let pair = Pair { from: 2, to: 0, connecting: [5; NONCE_BYTES], accepting: [6; NONCE_BYTES] };
        let answer: [u8; ANSWER_BYTES] = ours.answer(&pair).try_into().unwrap();
        let proof: [u8; PROOF_BYTES] = ours.proof(&pair).try_into().unwrap();
        assert!(ours.check_answer(Pair { accepting: [0; NONCE_BYTES], ..pair }, &answer).is_some());
        assert!(ours.check_proof(&pair, &proof));
        for theirs in [purpose(2, "job", "train"), purpose(1, "jobt", "rain"), purpose(1, "job", "test")] {
            assert!(theirs.check_answer(pair, &answer).is_none());
            assert!(!theirs.check_proof(&pair, &proof));
        }
        for other in [Pair { from: 1, ..pair }, Pair { to: 1, ..pair }, Pair { connecting: [7; 32], ..pair }]
        {
            assert!(ours.check_answer(other, &answer).is_none());
            assert!(!ours.check_proof(&other, &proof));
        }
        // What the accepting side proved does not serve the connecting side.
        let reflected: [u8; PROOF_BYTES] = answer[NONCE_BYTES..].try_into().unwrap();
        assert!(!ours.check_proof(&pair, &reflected));
    }
}
