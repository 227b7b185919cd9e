//! Messages between clients and the tier daemon: JSON in packets, with descriptors beside them.
//!
//! A client sends one request at a time and waits for its answer. The list of sources, which may be
//! long, travels in sealed memory.

use serde::{Deserialize, Serialize};

use crate::chunk::{ChunkId, Pieces};
use crate::daemon::DataSetId;
use crate::entry::SlotId;
use crate::log::PieceSum;
use crate::source::{Source, SourceKey};
use crate::spec::TierSpec;

/// Version of the messages.
pub(crate) const VERSION: u32 = 1;

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum Request {
    /// Use a data set. Descriptors: the client's pidfd, and sealed memory with its sources as JSON
    /// (`Vec<Source>`).
    Attach { version: u32, tiers: Vec<TierSpec> },
    /// Find slots for chunks, each on its level.
    Place { data_set: DataSetId, wanted: Vec<(u64, u8)> },
    /// Publish copies that stand in their slots.
    Publish { data_set: DataSetId, copied: Vec<Copied> },
    /// Tell what must be compared before the copy of a chunk is used.
    Sums { data_set: DataSetId, chunk: u64 },
    /// These pieces of an unverified chunk are right.
    Verified { data_set: DataSetId, chunk: u64, good: u16 },
    /// A level fails.
    LevelFailed { level: u8 },
    /// Tell what the levels hold.
    Usage,
    /// Delete what nobody uses.
    Clear,
    /// End, unless a client uses a data set.
    Stop,
}

/// What the daemon answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Descriptors: the table, the claims, and the slab directory of each level.
    Attached(Attachment),
    /// A slot for each chunk, where there is one.
    Placed { slots: Vec<Option<(u8, u32, u16)>> },
    /// Checksums of an unverified chunk; none if it is verified by now, or gone.
    Sums { at: Option<(u8, u32, u16)>, sums: Vec<PieceSum> },
    /// What the levels hold.
    Usage { levels: Vec<LevelUsage>, clients: u32, pid: u32 },
    /// Space that was given back \[bytes\].
    Cleared { bytes: u64 },
    /// It is done.
    Done,
    /// It cannot be done.
    Refused { tier: String, problem: String, hint: String },
}

/// What a client needs to use a data set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) data_set: DataSetId,
    pub(crate) chunks: u64,
    /// The client's tiers, in its order.
    pub(crate) levels: Vec<AttachedLevel>,
    /// Chunks that have a copy already.
    pub(crate) copied_chunks: u64,
    /// What should be told to the user.
    pub(crate) warnings: Vec<String>,
}

/// One tier of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedLevel {
    /// Its number in entries of the table.
    pub number: u8,
    /// As the user calls it.
    pub name: String,
    /// Slots that the data set may fill.
    pub slots: u64,
    /// Whether it is memory.
    pub is_memory: bool,
}

/// Pieces of a chunk that were copied into a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// The chunk.
    #[serde(with = "chunk_number")]
    pub chunk: ChunkId,
    /// Where.
    #[serde(with = "slot_numbers")]
    pub at: SlotId,
    /// The pieces, in order.
    pub sums: Vec<PieceSum>,
}

impl Copied {
    /// The pieces.
    #[must_use]
    pub fn pieces(&self) -> Pieces {
        self.sums.iter().fold(Pieces::NONE, |all, sum| all.union(Pieces(1 << (sum.piece & 15))))
    }
}

mod chunk_number {
    use serde::{Deserialize, Deserializer, Serializer};

    use crate::chunk::ChunkId;

    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(super) fn serialize<S: Serializer>(chunk: &ChunkId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(chunk.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ChunkId, D::Error> {
        u64::deserialize(from).map(ChunkId)
    }
}

mod slot_numbers {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::entry::SlotId;

    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(super) fn serialize<S: Serializer>(at: &SlotId, to: S) -> Result<S::Ok, S::Error> {
        (at.level, at.slab, at.slot).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SlotId, D::Error> {
        let (level, slab, slot) = Deserialize::deserialize(from)?;
        Ok(SlotId { level, slab, slot })
    }
}

/// What a level holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LevelUsage {
    /// As the user calls it.
    pub name: String,
    /// Its directory.
    pub path: String,
    /// What it may take \[bytes\].
    pub quota_bytes: u64,
    /// What its slabs take \[bytes\].
    pub taken_bytes: u64,
    /// Its slabs.
    pub slabs: u64,
    /// Whether it is memory.
    pub is_memory: bool,
    /// `open`, `full` or `out`.
    pub state: String,
    /// The sources that it has copies of.
    pub sources: Vec<SourceUsage>,
}

/// What a level holds of a source.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceUsage {
    /// Where the source was.
    pub path: String,
    /// Its key.
    pub key: SourceKey,
    /// Its size \[bytes\].
    pub bytes: u64,
    /// Chunks that have a copy here.
    pub chunks: u64,
    /// Their pieces.
    pub pieces: u64,
    /// When it was last used [s since 1970].
    pub used_unix_s: u64,
    /// Whether a client uses it now.
    pub is_used: bool,
}

/// The sources of a data set, as they travel in sealed memory.
pub(crate) fn sources_from(bytes: &[u8]) -> Result<Vec<Source>, String> {
    serde_json::from_slice(bytes).map_err(|error| error.to_string())
}
