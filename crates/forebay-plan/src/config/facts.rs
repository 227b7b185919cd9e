//! What the decisions follow from: the options that bear on reading, and facts that somebody with a
//! file system gathers.

use serde::{Deserialize, Serialize};

/// How storage is touched.
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
    /// By walking the container from record to record: the roots of the node for all its ranks, or
    /// every rank for itself.
    Cursor,
    /// By walking, too, but one root of the job at a time, which hands its cursor to the next one.
    Handoff,
    /// By the index that one process of the job makes by such a walk when the loader is made.
    Scan,
    /// By the index that is computed from the recipe of the container's layout.
    Provenance,
}

impl Locate {
    /// Whether samples are found while they are needed, by going over those in between.
    #[must_use]
    pub fn walks(self) -> bool {
        matches!(self, Self::Cursor | Self::Handoff)
    }
}

/// The options that bear on reading.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Ranks of the node.
    pub node_ranks: usize,
    /// How samples are found.
    pub locate: Locate,
    /// How storage is touched.
    pub access: AccessChoice,
    /// Whether reads go around the page cache; `None`: where the data set is large.
    pub direct: Option<bool>,
    /// Readers of the node.
    pub readers: Option<u32>,
    /// Whether the readers alone touch storage, and as few of them as the papers have.
    pub roots: bool,
    /// Whether there is a reader for each rank of the node.
    pub reader_per_rank: bool,
    /// Steps that one read may span, where the order goes step by step.
    pub coalesce: Option<u32>,
    /// What is read ahead, in windows of each lane, or in segments.
    pub prefetch_windows: Option<u32>,
    /// Batch buffers per rank.
    pub batch_buffers: Option<u32>,
    /// Whether data are held against the checksums that the format keeps with them.
    pub checksums: bool,
}

impl ReadOptions {
    /// Options that leave everything open, for this many ranks on the node.
    #[must_use]
    pub fn new(node_ranks: usize) -> Self {
        Self {
            node_ranks,
            locate: Locate::Index,
            access: AccessChoice::Auto,
            direct: None,
            readers: None,
            roots: false,
            reader_per_rank: false,
            coalesce: None,
            prefetch_windows: None,
            batch_buffers: None,
            checksums: false,
        }
    }
}

/// Facts of the data set, and of a batch of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DataFacts {
    /// Samples.
    pub samples: u64,
    /// Bytes of all records.
    pub record_bytes: u64,
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
    /// Of that, what the ragged fields get \[bytes\].
    pub ragged_bytes: u64,
}

impl DataFacts {
    /// Mean length of a record \[bytes\].
    #[must_use]
    pub fn mean_record_bytes(&self) -> f64 {
        self.record_bytes as f64 / self.samples.max(1) as f64
    }
}

/// Where bytes come from. What is best for one level is wrong for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Pages that are in memory.
    PageCache,
    /// A file system of this node.
    LocalDisk,
    /// A file system of other nodes.
    Network,
}

/// What is known of the files through a mapping of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mapping {
    /// They are not mapped.
    None,
    /// They are mapped, and most of them is not in the page cache.
    Cold,
    /// They are mapped, and were found in the page cache.
    Resident,
}

/// Whether reads go around the page cache where they should. Looked at only where
/// [`wants_direct`](super::wants_direct) says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectIo {
    /// The file system refuses them, or nobody asked.
    Unavailable,
    /// By `pread`.
    Pread,
    /// By `io_uring`, too.
    IoUring,
}

/// Facts of the storage and of the node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StorageFacts {
    /// Where the files lie: [`Level::LocalDisk`] or [`Level::Network`].
    pub source: Level,
    /// What is known of them through a mapping.
    pub mapping: Mapping,
    /// Whether reads go around the page cache where they should.
    pub direct: DirectIo,
    /// Memory of the node, or of the control group \[bytes\].
    pub memory_bytes: u64,
}
