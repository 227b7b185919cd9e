//! Cards: what a node tells others so that they can read its share.
//!
//! ```text
//! address of the share (8 bytes) | its length (8) | length of the worker's address (4)
//! | worker's address | remote key
//! ```
//!
//! Numbers are little-endian. UCX trusts addresses and keys that it unpacks, so cards come only
//! from nodes that have proved that they know the secret of the job.

/// Bytes before the worker's address.
const HEADER_BYTES: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    /// Address of the share in its process.
    pub(super) start: u64,
    /// Length of the share \[bytes\].
    pub(super) length: u64,
    pub(super) worker: Vec<u8>,
    pub(super) key: Vec<u8>,
}

impl Card {
    pub(super) fn encode(&self) -> Vec<u8> {
        let worker_bytes = (self.worker.len() as u32).to_le_bytes();
        [&self.start.to_le_bytes()[..], &self.length.to_le_bytes(), &worker_bytes, &self.worker, &self.key]
            .concat()
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(|| {
            format!("a card of {} bytes is cut off (expected at least {HEADER_BYTES})", bytes.len())
        })?;
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let worker_bytes = u32::from_le_bytes(header[16..].try_into().expect("four bytes")) as usize;
        let (worker, key) = rest
            .split_at_checked(worker_bytes)
            .filter(|(worker, key)| !worker.is_empty() && !key.is_empty())
            .ok_or_else(|| {
                format!(
                    "a card has {} bytes of address and key (expected {worker_bytes} and a key)",
                    rest.len()
                )
            })?;
        let (start, length) = (number(0), number(8));
        if start.checked_add(length).is_none() {
            return Err(format!("a card has a share of {length} bytes at address {start:#x}"));
        }
        Ok(Self { start, length, worker: worker.to_vec(), key: key.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn card() -> Card {
        Card { start: 1 << 40, length: 4096, worker: vec![1; 30], key: vec![2; 7] }
    }

    #[test]
    fn a_card_is_read_back_and_a_truncated_one_is_refused() {
        let bytes = card().encode();
        assert_eq!(Card::parse(&bytes), Ok(card()));
        for length in 0..=HEADER_BYTES + 30 {
            assert!(Card::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(Card::parse(&Card { start: u64::MAX, ..card() }.encode()).is_err());
        assert!(Card::parse(&Card { worker: Vec::new(), ..card() }.encode()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_card_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(card) = Card::parse(&bytes) {
                prop_assert_eq!(card.encode(), bytes);
            }
        }
    }
}
