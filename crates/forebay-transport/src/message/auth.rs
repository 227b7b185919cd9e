//! Messages of the handshake of client and server (`handshake.rs`).
//!
//! ```text
//! client → server: magic (8) | version (4) | options (4) | rank (4) | node (4) | store (4)
//!                  | dataset (32) | nonce (32)
//! server → client: magic (8) | version (4) | status (4) | nonce (32) | digest (32)
//! client → server: digest (32)
//! server → client: status (4) | bytes of the share (8)      from here on requests and answers
//! ```
//!
//! Numbers are little-endian. `node` is the index of the node that the client means to reach,
//! `rank` is its own. A digest is a proof of its sender.
//!
//! The server checks the proof first: only a peer that knows the secret learns whether store and
//! dataset fit. The first 16 bytes of both messages stay the same in all versions.

use std::fmt;

use crate::message::handshake::{HandshakeKey, NONCE_BYTES, Nonce, PROOF_BYTES, Side};
use crate::message::refusal::Refusal;

const MAGIC: [u8; 8] = *b"FBSTORE\n";
/// Grows when handshake, requests or answers change their meaning.
pub const VERSION: u32 = 1;
/// Bytes of the secret.
pub const SECRET_BYTES: usize = 32;
pub(crate) const HELLO_BYTES: usize = 8 + 5 * 4 + 32 + NONCE_BYTES;
pub(crate) const CHALLENGE_BYTES: usize = 8 + 2 * 4 + NONCE_BYTES + PROOF_BYTES;
pub(crate) const VERDICT_BYTES: usize = 4 + 8;
/// The option of a hello that leaves out checksums.
const WITHOUT_CHECKSUM: u32 = 1;

/// The secret of a job. The job's own channel distributes it; no connection carries it and no
/// message shows it.
#[derive(Clone)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// A secret of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Number of a store in its job: a node exports one share of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(pub u32);

/// Digest of a dataset and of what decides where its samples are; equal on all nodes of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetDigest(pub [u8; 32]);

/// The client's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Rank of the client.
    pub(crate) rank: u32,
    /// Index of the node that it means to reach.
    pub(crate) node: u32,
    pub(crate) store: StoreId,
    pub(crate) dataset: DatasetDigest,
    /// Whether answers carry a checksum.
    pub(crate) checksum: bool,
    pub(crate) nonce: Nonce,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let options = if self.checksum { 0 } else { WITHOUT_CHECKSUM };
        let numbers = [VERSION, options, self.rank, self.node, self.store.0].map(u32::to_le_bytes).concat();
        let bytes = [&MAGIC[..], &numbers, &self.dataset.0, &self.nonce].concat();
        bytes.try_into().expect("the parts have this length")
    }

    /// Parses a hello. `None` if it is no hello at all, which deserves no answer.
    pub(crate) fn parse(bytes: &[u8; HELLO_BYTES]) -> Option<Result<Self, Refusal>> {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        (bytes[..8] == MAGIC).then_some(())?;
        if number(8) != VERSION {
            return Some(Err(Refusal::Version));
        }
        if number(12) & !WITHOUT_CHECKSUM != 0 {
            return Some(Err(Refusal::Option));
        }
        Some(Ok(Self {
            checksum: number(12) & WITHOUT_CHECKSUM == 0,
            rank: number(16),
            node: number(20),
            store: StoreId(number(24)),
            dataset: DatasetDigest(bytes[28..60].try_into().expect("32 bytes")),
            nonce: bytes[60..].try_into().expect("32 bytes"),
        }))
    }
}

/// Makes and checks the messages that prove something.
#[derive(Clone, Debug)]
pub(crate) struct Authenticator {
    key: HandshakeKey,
}

impl Authenticator {
    pub(crate) fn new(secret: &Secret) -> Self {
        Self { key: HandshakeKey::new("forebay 2026 transport of samples between nodes", &[], &secret.0) }
    }

    /// The server's answer to a hello.
    pub(crate) fn challenge(&self, hello: &Hello, nonce: &Nonce) -> Vec<u8> {
        [&challenge_start(0)[..], nonce, &self.key.proof(Side::Accepting, &hello.encode(), nonce)].concat()
    }

    /// Checks the server's answer to `hello`, and returns its nonce.
    pub(crate) fn check_challenge(
        &self,
        hello: &Hello,
        bytes: &[u8; CHALLENGE_BYTES],
    ) -> Result<Nonce, BadChallenge> {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if bytes[..8] != MAGIC {
            return Err(BadChallenge::Stranger);
        }
        if number(8) != VERSION {
            return Err(BadChallenge::Version(number(8)));
        }
        if number(12) != 0 {
            let refusal = Refusal::from_status(number(12));
            return Err(refusal.map_or(BadChallenge::Stranger, BadChallenge::Refused));
        }
        let nonce = bytes[16..16 + NONCE_BYTES].try_into().expect("32 bytes");
        let proof = bytes[16 + NONCE_BYTES..].try_into().expect("32 bytes");
        let is_proved = self.key.is_proved(Side::Accepting, &hello.encode(), &nonce, &proof);
        is_proved.then_some(nonce).ok_or(BadChallenge::Secret)
    }

    /// The client's proof.
    pub(crate) fn proof(&self, hello: &Hello, nonce: &Nonce) -> [u8; PROOF_BYTES] {
        self.key.proof(Side::Connecting, &hello.encode(), nonce)
    }

    /// Whether the client knows the secret.
    pub(crate) fn check_proof(&self, hello: &Hello, nonce: &Nonce, bytes: &[u8; PROOF_BYTES]) -> bool {
        self.key.is_proved(Side::Connecting, &hello.encode(), nonce, bytes)
    }
}

/// Why a client does not go on after a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadChallenge {
    /// No server of this protocol.
    Stranger,
    /// The server speaks this version.
    Version(u32),
    /// The server does not know the secret.
    Secret,
    Refused(Refusal),
}

fn challenge_start(status: u32) -> [u8; 16] {
    let numbers = [VERSION, status].map(u32::to_le_bytes).concat();
    [&MAGIC[..], &numbers].concat().try_into().expect("16 bytes")
}

/// The server's answer to a hello that it refuses.
pub(crate) fn refused_challenge(refusal: Refusal) -> Vec<u8> {
    let mut bytes = challenge_start(refusal.status()).to_vec();
    bytes.resize(CHALLENGE_BYTES, 0);
    bytes
}

/// The server's last message of the handshake: the length of the share, or why not.
pub(crate) fn verdict(outcome: Result<u64, Refusal>) -> [u8; VERDICT_BYTES] {
    let (status, bytes) = outcome.map_or_else(|refusal| (refusal.status(), 0), |bytes| (0, bytes));
    let mut out = [0; VERDICT_BYTES];
    out[..4].copy_from_slice(&status.to_le_bytes());
    out[4..].copy_from_slice(&bytes.to_le_bytes());
    out
}

/// Parses a verdict; an unknown status is the outer error.
pub(crate) fn parse_verdict(bytes: &[u8; VERDICT_BYTES]) -> Result<Result<u64, Refusal>, u32> {
    let status = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
    let bytes = u64::from_le_bytes(bytes[4..].try_into().expect("eight bytes"));
    match status {
        0 => Ok(Ok(bytes)),
        _ => Refusal::from_status(status).map(Err).ok_or(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            rank: 3,
            node: 1,
            store: StoreId(2),
            dataset: DatasetDigest([8; 32]),
            checksum: true,
            nonce: [9; NONCE_BYTES],
        }
    }

    fn authenticator(secret: u8) -> Authenticator {
        Authenticator::new(&Secret::new([secret; SECRET_BYTES]))
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new([0xab; SECRET_BYTES])), "Secret(..)");
    }

    #[test]
    fn a_hello_is_read_back_and_another_is_not() {
        let bytes = hello().encode();
        assert_eq!(Hello::parse(&bytes), Some(Ok(hello())));
        let with = |at: usize| {
            let mut wrong = bytes;
            wrong[at] ^= 0x40;
            Hello::parse(&wrong)
        };
        for at in 0..8 {
            assert_eq!(with(at), None, "magic, byte {at}");
        }
        for at in 8..12 {
            assert_eq!(with(at), Some(Err(Refusal::Version)), "version, byte {at}");
        }
        for at in 12..16 {
            assert_eq!(with(at), Some(Err(Refusal::Option)), "options, byte {at}");
        }
    }

    #[test]
    fn only_a_peer_with_the_secret_can_answer_and_prove_and_only_for_this_hello() {
        let (ours, theirs, server) = (authenticator(1), authenticator(2), [6; NONCE_BYTES]);
        let challenge = |from: &Authenticator, hello: &Hello| -> [u8; CHALLENGE_BYTES] {
            from.challenge(hello, &server).try_into().unwrap()
        };
        assert_eq!(ours.check_challenge(&hello(), &challenge(&ours, &hello())), Ok(server));
        assert!(ours.check_proof(&hello(), &server, &ours.proof(&hello(), &server)));
        assert_eq!(ours.check_challenge(&hello(), &challenge(&theirs, &hello())), Err(BadChallenge::Secret));
        assert!(!ours.check_proof(&hello(), &server, &theirs.proof(&hello(), &server)));
        for other in [
            Hello { rank: 0, ..hello() },
            Hello { node: 0, ..hello() },
            Hello { store: StoreId(0), ..hello() },
            Hello { dataset: DatasetDigest([7; 32]), ..hello() },
            Hello { checksum: false, ..hello() },
            Hello { nonce: [0; NONCE_BYTES], ..hello() },
        ] {
            assert_eq!(ours.check_challenge(&hello(), &challenge(&ours, &other)), Err(BadChallenge::Secret));
            assert!(!ours.check_proof(&hello(), &server, &ours.proof(&other, &server)));
        }
        // A proof for another nonce of the server, and the server's own digest sent back.
        assert!(!ours.check_proof(&hello(), &[7; NONCE_BYTES], &ours.proof(&hello(), &server)));
        let reflected = challenge(&ours, &hello())[16 + NONCE_BYTES..].try_into().unwrap();
        assert!(!ours.check_proof(&hello(), &server, &reflected));
    }

    #[test]
    fn a_refused_challenge_says_why() {
        let check = |bytes: Vec<u8>| authenticator(1).check_challenge(&hello(), &bytes.try_into().unwrap());
        let refused = refused_challenge(Refusal::Option);
        assert_eq!(check(refused.clone()), Err(BadChallenge::Refused(Refusal::Option)));
        let mut other = refused.clone();
        other[8] = 9;
        assert_eq!(check(other), Err(BadChallenge::Version(9)));
        let mut stranger = refused;
        stranger[0] = 0;
        assert_eq!(check(stranger), Err(BadChallenge::Stranger));
    }

    #[test]
    fn a_verdict_is_read_back() {
        assert_eq!(parse_verdict(&verdict(Ok(1 << 40))), Ok(Ok(1 << 40)));
        assert_eq!(parse_verdict(&verdict(Err(Refusal::Dataset))), Ok(Err(Refusal::Dataset)));
        let mut unknown = verdict(Ok(0));
        unknown[0] = 77;
        assert_eq!(parse_verdict(&unknown), Err(77));
    }
}
