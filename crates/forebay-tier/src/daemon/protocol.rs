//! Messages between clients and the tier daemon: JSON in packets, with descriptors beside them.
//!
//! A client sends one request at a time and waits for its answer, or passes it over later. The list
//! of sources, which may be long, travels in sealed memory.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use forebay_host::{Map, sealed_copy};
use forebay_plan::options::TierSpec;
use forebay_types::ChunkId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::copy::offer::Copied;
use crate::daemon::run_options::RunOptions;
use crate::error::TierError;
use crate::log::PieceSum;
use crate::source::identity::SourceKey;
use crate::table::entry::SlotId;

/// Version of the messages.
pub(crate) const VERSION: u32 = 3;

/// Number of a dataset that clients are attached to. Each daemon counts from a random number, so
/// that of another daemon is unknown to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DatasetId(pub u64);

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub(crate) enum TierRequest {
    /// Use a dataset. Descriptors: the client's pidfd, and sealed memory with its sources as JSON
    /// (`Vec<Source>`).
    Attach { version: u32, tiers: Vec<TierSpec> },
    /// Use the dataset that another client is attached to, on its tiers. Descriptor: the client's
    /// pidfd.
    Join { version: u32, dataset: DatasetId },
    /// Find slots for chunks, each on its level.
    Place { dataset: DatasetId, wanted: Vec<(u64, u8)> },
    /// Publish copies that stand in their slots.
    Publish { dataset: DatasetId, copied: Vec<CopiedMessage> },
    /// Tell what must be compared before the copies of chunks are used.
    Sums { dataset: DatasetId, chunks: Vec<u64> },
    /// These pieces of unverified chunks are right.
    Verified { dataset: DatasetId, good: Vec<(u64, u16)> },
    /// The copies of this source of a dataset are not its bytes.
    SourceDiffers { dataset: DatasetId, source: usize },
    /// A level fails.
    LevelFailed { level: u8 },
    /// Begin a run, or join that with the same tiers and options. Descriptor: the client's pidfd.
    OpenRun { version: u32, tiers: Vec<TierSpec>, options: RunOptions },
    /// Something that a run of this client should do or tell.
    Run { run: u32, action: RunAction },
    /// Tell what all runs have done.
    Runs,
    /// Tell what the levels hold.
    Usage,
    /// Delete an unused slab from the level whose directory has this device and inode; or all
    /// unused copies of what is at or below a path.
    Clear {
        directory: (u64, u64),
        #[serde(with = "forebay_types::path_json::optional")]
        below: Option<PathBuf>,
    },
    /// Forget copies of sources and of files, which are wrong, on the level with this directory.
    Drop { directory: (u64, u64), sources: Vec<SourceKey>, files: Vec<u64> },
    /// End, unless a client uses a dataset.
    Stop,
}

/// What a client may ask of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunAction {
    /// Copy all sources.
    Stage,
    /// End copies under way, and make no more.
    Finish,
    /// Tell how far it is.
    Progress,
    /// Tell what it has done.
    Summary,
}

/// What the daemon answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum TierReply {
    /// Descriptors: the table, the claims, and the slab directory of each level.
    Attached(Attachment),
    /// A slot for each chunk, where there is one.
    Placed { slots: Vec<Option<(u8, u32, u16)>> },
    /// Chunks, their slots and checksums; none of those that are verified by now, or gone.
    Sums { chunks: Vec<ChunkSums> },
    /// A run, and the path that its table has once it is ready.
    OpenedRun {
        run: u32,
        #[serde(with = "forebay_types::path_json")]
        table: PathBuf,
        warnings: Vec<String>,
    },
    /// Facts of a run, as its user gets them.
    Run { facts: Value },
    /// Those of all runs.
    Runs { runs: Vec<Value> },
    /// Descriptor: sealed memory with what the levels hold, as JSON (`Vec<LevelUsage>`).
    Usage { clients: u32, pid: u32 },
    /// What a slab has given back, none if there was none to delete \[bytes\]; or it is no level
    /// of this daemon.
    Cleared { is_level: bool, bytes: Option<u64> },
    /// Whether it ends: clients that use a dataset prevent that.
    Stopping { clients: u32 },
    /// It is done.
    Done,
    /// It cannot be done.
    Refused { tier: String, problem: String, hint: String },
}

/// Number, slot and checksums of a chunk.
pub(crate) type ChunkSums = (u64, (u8, u32, u16), Vec<PieceSum>);

/// What a client needs to use a dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) dataset: DatasetId,
    pub(crate) chunks: u64,
    /// The tiers, in the order of the client that attached first.
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
    /// Slots that the dataset may fill.
    pub slots: u64,
    /// Whether it is memory.
    pub is_memory: bool,
}

/// [`Copied`], as it travels.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CopiedMessage {
    chunk: u64,
    at: (u8, u32, u16),
    sums: Vec<PieceSum>,
}

impl From<&Copied> for CopiedMessage {
    fn from(copied: &Copied) -> Self {
        let SlotId { level, slab, slot } = copied.at;
        Self { chunk: copied.chunk.0, at: (level, slab, slot), sums: copied.sums.clone() }
    }
}

impl From<CopiedMessage> for Copied {
    fn from(CopiedMessage { chunk, at: (level, slab, slot), sums }: CopiedMessage) -> Self {
        Self { chunk: ChunkId(chunk), at: SlotId { level, slab, slot }, sums }
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
    /// What its slabs and copies of files take \[bytes\].
    pub taken_bytes: u64,
    /// Its slabs.
    pub slabs: u64,
    /// Whether it is memory.
    pub is_memory: bool,
    /// `open`, `full` or `out`.
    pub state: String,
    /// The sources that it has copies of.
    pub sources: Vec<SourceUsage>,
    /// The sources of `forebay run` whose files it has copies of.
    pub roots: Vec<RootUsage>,
}

/// What a level holds of a source of `forebay run`: copies of whole files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RootUsage {
    /// Where the source was.
    pub path: String,
    /// Files that have a copy here.
    pub files: u64,
    /// Their sizes \[bytes\].
    pub bytes: u64,
    /// When it was last used [s since 1970].
    pub used_unix_s: u64,
    /// Whether a run uses it now.
    pub is_used: bool,
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

/// Sealed memory with a list that may be too long for a packet.
pub(crate) fn to_memory<T: Serialize>(list: &[T]) -> Result<OwnedFd, TierError> {
    let json = serde_json::to_vec(list).expect("lists of messages can be written as JSON");
    Ok(sealed_copy("forebay-tier-message", &json)?)
}

/// A list from sealed memory.
pub(crate) fn from_memory<T: DeserializeOwned>(
    attempt: &'static str,
    memory: &OwnedFd,
) -> Result<Vec<T>, TierError> {
    serde_json::from_slice(Map::read_only(memory)?.bytes()).map_err(|error| TierError::Protocol {
        attempt,
        expected: "a list in memory".into(),
        found: error.to_string(),
    })
}
