//! How a node goes about reading: what touches storage, in requests of which size, by how many readers.

use forebay_format::Index;
use forebay_host as host;
use forebay_io::{Mappings, ShardFiles};
use forebay_plan::Kind;
use forebay_types::ShardId;

use super::{KIB, MIB};
use crate::options::{AccessChoice, Locate, MOST_READERS, Options};

/// Readers per node on a local disk: one fills storage up to 0.8 GB/s, two give 1.5 times that on warm data (facts: readers).
const LOCAL_READERS: usize = 2;
/// The same on a file system of other nodes, whose latency only requests side by side can hide: as many as a Lustre client has
/// under way per server. They sleep nearly all the time.
const NETWORK_READERS: usize = 8;
/// The same where every sample is a file, which takes a trip to be found, one to be opened and one to be read.
const NETWORK_FILE_READERS: usize = 32;
/// The same where a reader has as many requests under way as a large read is cut into.
const COALESCING_READERS: usize = 2;
/// Ranks of a node that one root serves (Pumma et al.: one root per node, two on nodes with more ranks than this).
const RANKS_PER_ROOT: usize = 16;
/// Size of a read \[bytes\]: below 64 KiB the rate halves, above 1 MiB nothing is gained (buffered).
const READ_BYTES: u64 = MIB;
/// The same around the page cache, where every request pays the full latency.
const DIRECT_READ_BYTES: u64 = 4 * MIB;
/// The same for a root that may read as many steps at once as it likes: the kernel cuts it into requests that are under way side
/// by side, on all servers that hold a part. A multiple of all usual stripes.
const COALESCED_READ_BYTES: u64 = 8 * MIB;
/// Gap that is read through where the pages are resident: a call costs 0.6 us, a copy 7 GB/s.
const WARM_GAP_BYTES: u64 = 4 * KIB;
/// The same on a cold local disk: 100 us at 1.6 GB/s.
const LOCAL_GAP_BYTES: u64 = 128 * KIB;
/// The same on a parallel file system: 0.5 ms at 1 GB/s.
const NETWORK_GAP_BYTES: u64 = 512 * KIB;
/// The same for roots, which should read the pages of the records and little else: the rest of a record's last page, and the one
/// page of the tree that comes with every hundred or so records.
const ROOT_GAP_BYTES: u64 = 8 * KIB;
/// Bytes of one tranche of a step-wise order: larger ones coalesce better and cover longer stalls of the storage.
const TRANCHE_BYTES: u64 = 16 * MIB;
/// The same where every rank walks through a region of its own: the regions are far apart, and on disks every change from
/// one to the other is a seek.
const NETWORK_CONTIGUOUS_TRANCHE_BYTES: u64 = 64 * MIB;
/// The same where neighbours are read together anyway and the disk is local: smaller ones stay in the processor's cache, and cost
/// fewer page faults at the start.
const LOCAL_FORWARD_TRANCHE_BYTES: u64 = 4 * MIB;
/// The same for roots that may read as many steps as they like at once.
const COALESCED_TRANCHE_BYTES: u64 = 32 * MIB;

/// See the module header.
#[allow(clippy::struct_excessive_bools)] // independent facts, not a state in disguise
pub(super) struct Approach {
    /// Whether the data set was found in the page cache.
    pub(super) warm: bool,
    /// How storage is touched.
    pub(super) access: AccessChoice,
    /// Whether reads go around the page cache.
    pub(super) direct: bool,
    /// Whether the readers are the node's roots.
    pub(super) roots: bool,
    /// Whether as many steps as fit are read at once.
    pub(super) coalesces: bool,
    /// Whether every rank gets its samples by itself.
    pub(super) alone: bool,
    /// Readers of the node.
    pub(super) readers: usize,
    /// Gap up to which reads are joined \[bytes\].
    pub(super) gap_bytes: u64,
    /// Largest read \[bytes\].
    pub(super) read_bytes: u64,
    /// What a step-wise order reads at once \[bytes\].
    pub(super) tranche_bytes: u64,
}

impl Approach {
    /// Chooses for a node whose steps take so many bytes; tells why.
    pub(super) fn choose(
        options: &Options,
        index: &Index,
        files: &ShardFiles,
        mappings: Option<&Mappings>,
        kind: Kind,
        step_bytes: u64,
        reasons: &mut Vec<String>,
    ) -> Self {
        let file_bytes: u64 = index.shards().iter().map(|shard| shard.bytes).sum();
        let ranks = options.local_ranks.len();
        let warm = mappings.is_some_and(|mappings| mostly_resident(mappings, index));
        let memory_total = host::limit_bytes();
        let direct = options.access != AccessChoice::Mmap
            && options.direct.unwrap_or(!warm && file_bytes > memory_total / 2)
            && files.direct_works();
        if options.direct == Some(true) && !direct {
            let why = files.direct_refused().unwrap_or("this file system refuses O_DIRECT");
            reasons.push(format!("direct: {why}; reads go through the page cache"));
        }
        let access = match options.access {
            AccessChoice::Auto if direct && forebay_io::probe_io_uring().is_ok() => AccessChoice::IoUring,
            choice => choice,
        };
        reasons.push(match (options.access, warm) {
            (AccessChoice::Auto, true) => {
                "access: the file is local and in the page cache, so every rank copies its samples from a mapping of it; what \
                 is missing there is read by pread"
                    .into()
            }
            (AccessChoice::Auto, false) => format!(
                "access: {} ({}{}){}",
                if access == AccessChoice::IoUring { "io_uring" } else { "pread" },
                files.file_system_name(),
                if direct { ", around the page cache: the data set is larger than half the memory" } else { "" },
                if mappings.is_some() {
                    "; what is found in the page cache later is copied from a mapping"
                } else {
                    ""
                },
            ),
            (choice, _) => format!("access: {}, as asked", choice.name()),
        });
        // With a cursor, whoever is given readers wants roots; else every rank walks for itself.
        let roots = options.roots
            || options.locate == Locate::Handoff
            || (options.locate.walks() && options.readers.is_some());
        let gap_bytes = match (warm, files.is_local()) {
            _ if roots => ROOT_GAP_BYTES,
            (true, _) => WARM_GAP_BYTES,
            (false, true) => LOCAL_GAP_BYTES,
            (false, false) => NETWORK_GAP_BYTES,
        };
        let is_forward = matches!(kind, Kind::Sequential | Kind::Contiguous);
        // Steps of a forward walk and groups are pieces of a file, unless every sample is a file.
        let in_pieces = (is_forward || matches!(kind, Kind::Group { .. })) && !files.are_of_samples();
        // What lies in one piece is read in one go: a disk that serves others in between pays for every return, once per go. What is
        // coded wants many readers, which decode.
        let coalesces = options.coalesce.is_none()
            && !options.locate.walks()
            && (roots
                || (in_pieces
                    && !files.is_local()
                    && options.readers.is_none()
                    && !options.reader_per_rank
                    && !index.is_coded()));
        let read_bytes = match (coalesces, direct) {
            (true, _) => COALESCED_READ_BYTES,
            (false, true) => DIRECT_READ_BYTES,
            (false, false) => READ_BYTES,
        };
        let alone = if options.locate.walks() {
            !roots
        } else {
            // What is coded is decoded once for all ranks, by readers.
            !roots && warm && options.access == AccessChoice::Auto && !direct && !index.is_coded()
        };
        let readers = match options.readers {
            _ if alone => 0,
            Some(readers) => readers as usize,
            None if options.reader_per_rank => ranks.min(MOST_READERS as usize),
            None if roots => ranks.div_ceil(RANKS_PER_ROOT).min(2),
            None if files.is_local() => LOCAL_READERS,
            None if files.are_of_samples() => NETWORK_FILE_READERS,
            None if coalesces => COALESCING_READERS,
            None => NETWORK_READERS,
        };
        let tranche_bytes = match (options.coalesce, kind) {
            (Some(steps), _) => step_bytes.saturating_mul(u64::from(steps)).max(LOCAL_FORWARD_TRANCHE_BYTES),
            (None, Kind::Contiguous) if !files.is_local() => NETWORK_CONTIGUOUS_TRANCHE_BYTES,
            (None, _) if coalesces && roots => COALESCED_TRANCHE_BYTES,
            (None, _) if is_forward && files.is_local() => LOCAL_FORWARD_TRANCHE_BYTES,
            (None, _) => TRANCHE_BYTES,
        };
        Self { warm, access, direct, roots, coalesces, alone, readers, gap_bytes, read_bytes, tranche_bytes }
    }
}

/// Whether nearly all of a few dozen spots, spread over the shards, are in the page cache.
fn mostly_resident(mappings: &Mappings, index: &Index) -> bool {
    const SPOTS: u64 = 64;
    let (mut asked, mut resident) = (0_u32, 0_u32);
    for (number, shard) in index.shards().iter().enumerate() {
        for spot in 0..SPOTS {
            let offset = shard.bytes / SPOTS * spot;
            let length = shard.bytes.saturating_sub(offset).min(64 * KIB);
            asked += 1;
            resident += u32::from(mappings.resident(ShardId(number as u32), offset, length));
        }
    }
    resident * 10 >= asked * 9
}
