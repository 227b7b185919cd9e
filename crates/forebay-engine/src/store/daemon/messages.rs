//! Messages between loaders and the store daemon: JSON in packets, memory as descriptors.
//!
//! Each request has the version. A daemon of another version refuses all but `stop`. What may be
//! long travels as sealed memory: the chunks of a share as ascending little-endian `u64`, the
//! status as JSON.

use std::os::fd::OwnedFd;

use forebay_host::{HostError, Map, sealed_copy, sealed_length};
use forebay_types::CHUNK_BYTES;
use serde::{Deserialize, Serialize};

/// Version of all messages.
pub(super) const VERSION: u32 = 1;

/// Most chunks of a share: slots are 32-bit words.
const MAX_CHUNKS: u64 = u32::MAX as u64;

/// The dataset of a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedDataset {
    /// Digest of its files: their paths, sizes, times and inodes, what the format knows of them,
    /// and how they are cut into chunks.
    pub(crate) version: String,
    /// Digest of the paths alone.
    pub(crate) place: String,
    /// Digest of sizes and times alone: shares of the same place and another state are stale.
    pub(crate) state: String,
    /// For people.
    pub(crate) path: String,
}

impl SharedDataset {
    /// Whether its files have changed since, or before, they were this other one.
    pub(super) fn is_other_state_of(&self, other: &Self) -> bool {
        self.place == other.place && self.state != other.state
    }
}

/// A request with its version.
#[derive(Debug, Serialize)]
pub(super) struct StoreRequest<'a> {
    pub(super) version: u32,
    #[serde(flatten)]
    pub(super) action: &'a StoreAction,
}

/// What each version can read of a request.
#[derive(Debug, Deserialize)]
pub(super) struct StoreRequestHead {
    pub(super) version: u32,
    pub(super) ask: String,
}

/// What is requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(super) enum StoreAction {
    /// The share of a dataset; the client uses it from now on. With the client's pidfd.
    Find { dataset: SharedDataset },
    /// Keep a share, which the client uses from now on instead of the one it used. With its memory
    /// and its chunks.
    Keep { dataset: SharedDataset, node: u32, nodes: u32 },
    /// Drop unused shares until this much memory is free that is not now \[bytes\].
    MakeRoom { bytes: u64 },
    /// The client uses its share no more; with `drops`, nor will a later one.
    Release { drops: bool },
    /// What the daemon holds.
    Status,
    /// End.
    Stop,
}

/// The word of [`StoreAction::Stop`].
pub(super) const STOP: &str = "stop";

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(super) enum StoreReply {
    /// To `Find`: the share with its memory and chunks as descriptors, unless it is none.
    Found {
        is_kept: bool,
        /// Other loaders use it too.
        is_shared: bool,
        /// Memory of other shares that nobody uses \[bytes\].
        unused_bytes: u64,
    },
    /// To `Keep`: whether it is kept; else there is room for this much.
    Kept { is_kept: bool, room_bytes: u64 },
    /// To `MakeRoom` and `Release`: memory that was freed.
    Freed { bytes: u64 },
    /// To `Status`, with JSON as a descriptor.
    Status,
    /// To `Stop`: processes that use shares.
    Stopping { users: u32 },
    /// To any: why it is refused.
    Refused { problem: String },
}

/// Bytes of the memory of a share with so many chunks; none has no bytes.
pub(crate) fn share_bytes(chunks: u64) -> u64 {
    (chunks * CHUNK_BYTES).max(1)
}

/// The chunks of a share as memory.
pub(super) fn chunks_to_memory(chunks: &[u64]) -> Result<OwnedFd, HostError> {
    let bytes: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.to_le_bytes()).collect();
    sealed_copy("forebay-share-chunks", &bytes)
}

/// Checks the memory of a share and its chunks, and reads the latter; in case of error, what was
/// expected and what was found.
pub(super) fn check_share(memory: &OwnedFd, chunks: &OwnedFd) -> Result<Vec<u64>, (String, String)> {
    let length = sealed_length(memory).map_err(|error| ("sealed memory".into(), error.to_string()))?;
    let map = Map::read_only(chunks).map_err(|error| ("sealed memory".into(), error.to_string()))?;
    let bytes = map.bytes();
    if !bytes.len().is_multiple_of(size_of::<u64>()) || bytes.len() as u64 / 8 > MAX_CHUNKS {
        return Err((format!("at most {MAX_CHUNKS} words of 8 bytes"), format!("{} bytes", bytes.len())));
    }
    let (words, _) = bytes.as_chunks();
    let chunks: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    if let Some((one, next)) = chunks.iter().zip(chunks.iter().skip(1)).find(|(one, next)| one >= next) {
        return Err(("ascending chunks".into(), format!("{one} before {next}")));
    }
    let expected = share_bytes(chunks.len() as u64);
    if length != expected {
        return Err((format!("{expected} bytes for {} chunks", chunks.len()), format!("{length} bytes")));
    }
    Ok(chunks)
}

#[cfg(test)]
mod tests {
    use forebay_host::{Draft, sealed_memfd};

    use super::*;

    fn memory(bytes: u64) -> OwnedFd {
        Draft::new("forebay-test", bytes).unwrap().seal().unwrap()
    }

    #[test]
    fn a_share_is_checked_before_use() {
        let chunks = chunks_to_memory(&[3, 5, 9]).unwrap();
        assert_eq!(check_share(&memory(3 * CHUNK_BYTES), &chunks).unwrap(), [3, 5, 9]);
        assert_eq!(check_share(&memory(1), &chunks_to_memory(&[]).unwrap()).unwrap(), [] as [u64; 0]);
        // Another length than that of the chunks.
        assert!(check_share(&memory(3 * CHUNK_BYTES - 1), &chunks).is_err());
        assert!(check_share(&memory(4 * CHUNK_BYTES), &chunks).is_err());
        // Memory that can still be written.
        let writable = sealed_memfd("forebay-test", 3 * CHUNK_BYTES as usize).unwrap();
        assert!(check_share(&writable, &chunks).is_err());
        // Chunks that are no list of ascending numbers.
        for wrong in [vec![5, 3, 9], vec![3, 3, 5]] {
            assert!(check_share(&memory(3 * CHUNK_BYTES), &chunks_to_memory(&wrong).unwrap()).is_err());
        }
        assert!(
            check_share(&memory(CHUNK_BYTES), &sealed_copy("forebay-test", b"seven b").unwrap()).is_err()
        );
        // A file cannot be sealed.
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * CHUNK_BYTES).unwrap();
        assert!(check_share(&file.into(), &chunks).is_err());
    }

    #[test]
    fn requests_say_their_version_before_anything_else_is_read() {
        let action = StoreAction::Release { drops: true };
        let text = serde_json::to_string(&StoreRequest { version: VERSION, action: &action }).unwrap();
        let head: StoreRequestHead = serde_json::from_str(&text).unwrap();
        assert_eq!((head.version, head.ask.as_str()), (VERSION, "release"));
        assert_eq!(serde_json::from_str::<StoreAction>(&text).unwrap(), action);
        let stop = serde_json::to_string(&StoreRequest { version: 9, action: &StoreAction::Stop }).unwrap();
        assert_eq!(serde_json::from_str::<StoreRequestHead>(&stop).unwrap().ask, STOP);
    }
}
