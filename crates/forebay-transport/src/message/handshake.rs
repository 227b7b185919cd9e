//! How two processes of a job prove to each other that they know its secret, which is never sent.
//!
//! In order:
//! 1. The connecting side sends its first message, which holds a nonce and says what the connection
//!    is for.
//! 2. The accepting side sends a nonce.
//! 3. Each side sends its proof: BLAKE3, keyed by the secret, over the side that proves, the first
//!    message, and the nonce of the accepting side.
//!
//! So a recorded message is useless at another time, for another purpose, between other processes,
//! or in the other direction. What is sent later is neither encrypted nor signed: as with MPI,
//! hosts that can change packets on the job's network are trusted.
//!
//! Not done here: what messages look like, and which side proves first.

use std::fmt;
use std::io;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// Random bytes that are used for one connection.
pub type Nonce = [u8; NONCE_BYTES];

/// The side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that sends the first message.
    Connecting = 0,
    /// The other one.
    Accepting = 1,
}

/// A secret, for one purpose.
#[derive(Clone)]
pub struct HandshakeKey([u8; 32]);

impl fmt::Debug for HandshakeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HandshakeKey(..)")
    }
}

impl HandshakeKey {
    /// The key of a secret for a purpose, which is a constant of the program, and for what both
    /// sides have in common. It is as secret as the most secret of them.
    #[must_use]
    pub fn new(purpose: &str, common: &[&str], secret: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(purpose);
        for text in common {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(secret);
        Self(hasher.finalize().into())
    }

    fn digest(&self, side: Side, first: &[u8], nonce: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[side as u8]);
        hasher.update(first);
        hasher.update(nonce);
        hasher.finalize()
    }

    /// The proof of a side, for a connection with this first message and this nonce of the
    /// accepting side.
    #[must_use]
    pub fn proof(&self, side: Side, first: &[u8], nonce: &Nonce) -> [u8; PROOF_BYTES] {
        *self.digest(side, first, nonce).as_bytes()
    }

    /// Whether `proof` is that of a side which knows the secret.
    #[must_use]
    pub fn is_proved(&self, side: Side, first: &[u8], nonce: &Nonce, proof: &[u8; PROOF_BYTES]) -> bool {
        // Comparing with a `Hash` takes the same time whatever differs.
        self.digest(side, first, nonce) == *proof
    }
}

/// Fresh random bytes.
///
/// # Errors
/// The system has none.
pub fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    let mut filled = 0;
    while filled < NONCE_BYTES {
        match getrandom(&mut nonce[filled..], GetRandomFlags::empty()) {
            Ok(bytes) => filled += bytes,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_shown_and_nonces_differ() {
        assert_eq!(format!("{:?}", HandshakeKey::new("test", &[], &[0xab; 32])), "HandshakeKey(..)");
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }

    #[test]
    fn only_the_same_secret_purpose_side_and_messages_prove_anything() {
        let nonce = [6; NONCE_BYTES];
        let key = HandshakeKey::new("test", &["job", "train"], &[1; 32]);
        let proof = key.proof(Side::Connecting, b"first", &nonce);
        assert!(key.is_proved(Side::Connecting, b"first", &nonce, &proof));
        for other in [
            HandshakeKey::new("test", &["job", "train"], &[2; 32]),
            HandshakeKey::new("test", &["jobt", "rain"], &[1; 32]),
            HandshakeKey::new("test", &["job", "test"], &[1; 32]),
            HandshakeKey::new("another test", &["job", "train"], &[1; 32]),
        ] {
            assert!(!other.is_proved(Side::Connecting, b"first", &nonce, &proof));
        }
        assert!(!key.is_proved(Side::Accepting, b"first", &nonce, &proof));
        assert!(!key.is_proved(Side::Connecting, b"other", &nonce, &proof));
        assert!(!key.is_proved(Side::Connecting, b"first", &[7; NONCE_BYTES], &proof));
    }
}
