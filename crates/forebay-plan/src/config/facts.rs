//! Inputs of the decisions: the options for reading, and facts that the engine gathers from the
//! file system.

use serde::{Deserialize, Serialize};

/// The access method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessChoice {
    /// From the mapping where the bytes are resident in the page cache of a local file, else by
    /// reads.
    #[default]
    Auto,
    /// From the mapping only: missing pages are page faults.
    Mmap,
    /// `pread`.
    Pread,
    /// `io_uring`.
    IoUring,
}

impl AccessChoice {
    /// The name that users give.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Mmap => "mmap",
            Self::Pread => "pread",
            Self::IoUring => "io_uring",
        }
    }
}

/// How samples are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Locate {
    /// By the index.
    #[default]
    Index,
    /// By walking the container from record to record: roots do this for all ranks of the node, or
    /// each rank for itself.
    Cursor,
    /// By a walk of one root of the job at a time, which hands its cursor to the next one.
    Handoff,
    /// By the index that one process of the job builds by such a walk when the loader is created.
    Scan,
    /// By the index that is computed from the recipe of the container's layout.
    Provenance,
}

impl Locate {
    /// Whether samples are located on demand, by a walk over those in between.
    #[must_use]
    pub fn walks(self) -> bool {
        matches!(self, Self::Cursor | Self::Handoff)
    }
}

/// Readers per node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Readers {
    /// This many.
    Count(u32),
    /// As many as follow from the ranks.
    Per(Per),
}

impl Readers {
    /// Only the readers touch storage, and as few of them as in the papers.
    pub const ROOTS: Self = Self::Per(Per::Node);
}

/// What the number of readers follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Per {
    /// 1, or 2 above 16 ranks; only they touch storage, like the roots of the papers.
    #[serde(rename = "per_node")]
    Node,
    /// One for each rank.
    #[serde(rename = "per_rank")]
    Rank,
}

/// The options for reading.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Ranks of the node.
    pub node_ranks: usize,
    /// How samples are found.
    pub locate: Locate,
    /// How storage is touched.
    pub access: AccessChoice,
    /// Whether reads go around the page cache; `None`: where the dataset is large.
    pub direct: Option<bool>,
    /// Readers of the node.
    pub readers: Option<Readers>,
    /// Steps that one read may span, in orders that are read step by step.
    pub coalesce: Option<u32>,
    /// Read-ahead in windows of each lane, or in segments.
    pub prefetch_windows: Option<u32>,
    /// Batch buffers per rank.
    pub batch_buffers: Option<u32>,
    /// Whether data are checked against the checksums of the format.
    pub checksums: bool,
    /// Whether samples come from an in-memory store.
    pub store: bool,
    /// Threads of a rank that decode images; 0 where none are decoded.
    pub decode_threads: usize,
}

impl ReadOptions {
    /// Default options, for this many ranks on the node.
    #[must_use]
    pub fn new(node_ranks: usize) -> Self {
        Self {
            node_ranks,
            locate: Locate::Index,
            access: AccessChoice::Auto,
            direct: None,
            readers: None,
            coalesce: None,
            prefetch_windows: None,
            batch_buffers: None,
            checksums: false,
            store: false,
            decode_threads: 0,
        }
    }
}

/// Facts of the dataset, and of a batch of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DataFacts {
    /// Samples.
    pub samples: u64,
    /// Bytes of all records.
    pub record_bytes: u64,
    /// Bytes of as many records as there are samples, as the order draws them: `record_bytes` but
    /// for mixtures.
    pub drawn_bytes: u64,
    /// Bytes of all files.
    pub file_bytes: u64,
    /// Samples that are decoded together.
    pub unit_samples: u64,
    /// Whether units have to be decoded.
    pub is_coded: bool,
    /// Whether every sample is a file.
    pub has_sample_files: bool,
    /// Whether the format keeps checksums of records.
    pub has_checksums: bool,
    /// Size of a batch buffer \[bytes\].
    pub batch_bytes: u64,
    /// Part of it for the ragged fields \[bytes\].
    pub ragged_bytes: u64,
    /// Staging memory for the streamed units of `opportunistic` \[bytes\]; 0 in other orders.
    #[serde(default)]
    pub stream_bytes: u64,
    /// Length of a streamed unit there \[bytes\]; 0 in other orders.
    pub stream_unit_bytes: u64,
}

impl DataFacts {
    /// Mean length of a record that is drawn \[bytes\].
    #[must_use]
    pub fn mean_record_bytes(&self) -> f64 {
        self.drawn_bytes as f64 / self.samples.max(1) as f64
    }
}

/// Kind of storage that bytes come from; each needs other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StorageKind {
    /// Pages that are in memory.
    PageCache,
    /// A file system of this node.
    LocalDisk,
    /// A file system of other nodes.
    Network,
}

/// State of the mapping of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// They are not mapped.
    None,
    /// They are mapped, and mostly not in the page cache.
    Cold,
    /// They are mapped and in the page cache.
    Resident,
}

/// Whether reads can bypass the page cache. Probed only if [`wants_direct`](super::wants_direct)
/// returns true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectIo {
    /// The file system refuses them, or they were not probed.
    Unavailable,
    /// By `pread`.
    Pread,
    /// Also by `io_uring`.
    IoUring,
}

/// Facts of the storage and of the node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StorageFacts {
    /// Where the files lie: [`StorageKind::LocalDisk`] or [`StorageKind::Network`].
    pub source: StorageKind,
    /// State of their mapping.
    pub mapping: Mapping,
    /// Whether reads can bypass the page cache.
    pub direct: DirectIo,
    /// Memory of the node, or of the control group \[bytes\].
    pub memory_bytes: u64,
}
