//! How two leaders come to trust each other: both prove that they know the secret, which is never
//! sent.
//!
//! ```text
//! connecting → accepting: magic (8) | version (4) | from (4) | to (4) | nonce (32)
//! accepting → connecting: nonce (32) | digest (32)
//! connecting → accepting: digest (32)
//! accepting → connecting: 1                     from here on frames (wire.rs), both ways
//! ```
//!
//! Numbers are little-endian, places of nodes among the nodes. A digest is BLAKE3 keyed by the
//! secret, over which side speaks, version, places, both nonces, and the job and loader for which
//! the connection is meant. So nothing that was overheard serves another time, at another place, or
//! in the other direction. Frames are not encrypted and carry no digest: as with MPI, who can
//! change packets on the job's network is trusted.

use super::spec::Secret;

const MAGIC: [u8; 8] = *b"FOREBAY\n";
/// Grows when handshake or frames change their meaning.
pub(super) const VERSION: u32 = 1;
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

/// Places of both sides and what they made up for this connection.
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

    /// What the accepting side says.
    pub(super) fn answer(&self, pair: &Pair) -> Vec<u8> {
        [&pair.accepting[..], self.digest(Side::Accepting, pair).as_bytes()].concat()
    }

    /// What the connecting side proves.
    pub(super) fn proof(&self, pair: &Pair) -> Vec<u8> {
        self.digest(Side::Connecting, pair).as_bytes().to_vec()
    }

    /// Reads the answer to the hello of `pair`, whose other nonce is not known yet; `None` if it is
    /// not from one of us.
    pub(super) fn check_answer(&self, pair: Pair, bytes: &[u8; ANSWER_BYTES]) -> Option<Pair> {
        let (nonce, digest) = bytes.split_first_chunk::<NONCE_BYTES>()?;
        let pair = Pair { accepting: *nonce, ..pair };
        // Comparing with a `Hash` takes the same time whatever differs.
        (self.digest(Side::Accepting, &pair) == *digest).then_some(pair)
    }

    /// Whether the connecting side is one of us.
    pub(super) fn check_proof(&self, pair: &Pair, bytes: &[u8; PROOF_BYTES]) -> bool {
        self.digest(Side::Connecting, pair) == *bytes
    }
}

/// What the connecting side says first.
pub(super) fn hello(from: u32, to: u32, nonce: &Nonce) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for number in [VERSION, from, to] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(nonce);
    bytes
}

/// Reads a hello: from which place, to which, and the nonce.
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
        for place in 0..12 {
            let mut wrong = bytes;
            wrong[place] ^= 1;
            assert_eq!(read_hello(&wrong), None, "byte {place}");
        }
    }

    #[test]
    fn only_who_has_secret_job_and_loader_can_answer_and_prove() {
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
