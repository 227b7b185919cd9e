//! Decides how a node reads: the mode, the size of requests, the number of readers.

use serde::{Deserialize, Serialize};

use super::facts::{
    AccessChoice, DataFacts, DirectIo, Locate, Mapping, Per, ReadOptions, Readers, StorageFacts, StorageKind,
};
use super::{KIB, MIB};
use crate::order::OrderKind;

/// Maximum number of readers of a node.
pub const MAX_READERS: u32 = 64;
/// Readers per node of announced blocks. Blocks are requested in the order of the plan, however
/// many readers wait for them; two threads copy too slowly out of the page cache.
const ANNOUNCING_READERS: usize = 4;
/// The same if each reader requests its own blocks (direct reads or page faults), which more
/// readers would send out of order.
const LARGE_READ_READERS: usize = 2;
/// Ranks of a node that one root serves (Pumma et al.: one root per node, two on nodes with more
/// ranks than this).
const RANKS_PER_ROOT: usize = 16;
/// Size of a buffered read \[bytes\]: below 64 KiB the rate halves, above 1 MiB it does not grow.
const READ_BYTES: u64 = MIB;
/// The same for direct reads, where each request pays the full latency.
const DIRECT_READ_BYTES: u64 = 4 * MIB;
/// The same if segments are as large as memory allows: the kernel splits a read into concurrent
/// requests to all servers that hold a part. A multiple of all usual stripes.
const COALESCED_READ_BYTES: u64 = 8 * MIB;
/// Longest read of a streamed unit \[bytes\]: as long as a seek takes on disks that transfer 3.7
/// GB/s.
const STREAM_READ_BYTES: u64 = 32 * MIB;
/// Gap for roots, which should read little more than the pages of the records: the rest of a
/// record's last page, and one page of the tree for about a hundred records.
const ROOT_GAP_BYTES: u64 = 8 * KIB;
/// Bytes of one segment of a step-wise order: larger ones coalesce better and cover longer stalls
/// of the storage.
const SEGMENT_BYTES: u64 = 16 * MIB;
/// Minimum size of a segment if the user gives its steps.
const MIN_SEGMENT_BYTES: u64 = 4 * MIB;
/// The same for roots without a limit of steps.
const COALESCED_SEGMENT_BYTES: u64 = 32 * MIB;

/// Parameters that suit a storage level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelTraits {
    /// Gap that is read and dropped, because that costs less than another request \[bytes\].
    pub gap_bytes: u64,
    /// Readers of a node.
    pub readers: usize,
    /// The same if each sample is a file, which must be found and opened first.
    pub sample_file_readers: usize,
    /// A segment of an order in which each rank reads a region of its own \[bytes\].
    pub contiguous_segment_bytes: u64,
    /// The same if all ranks read the file together.
    pub sequential_segment_bytes: u64,
    /// Whether contiguous data is read at once, prefetched in the order of the plan: a disk that
    /// also serves other nodes seeks once per read.
    pub reads_in_pieces: bool,
    /// Whether reads end at multiples of their size: like reads, stripes are powers of two, nearly
    /// always of 1 MiB or more.
    pub has_stripes: bool,
    /// Whether a large sample in a file of its own may be read directly into its batch: readers
    /// wait for many of them concurrently, a batch would wait for one at a time.
    pub reads_sample_files_in_place: bool,
}

impl StorageKind {
    /// Parameters that suit the level.
    #[must_use]
    pub const fn traits(self) -> LevelTraits {
        match self {
            // A call costs 0.6 us, a copy 7 GB/s.
            Self::PageCache => LevelTraits { gap_bytes: 4 * KIB, ..Self::LocalDisk.traits() },
            Self::LocalDisk => LevelTraits {
                // 100 us at 1.6 GB/s.
                gap_bytes: 128 * KIB,
                // One fills storage up to 0.8 GB/s, two give 1.5 times that on warm data (facts:
                // readers).
                readers: 2,
                sample_file_readers: 2,
                // Smaller ones stay in the processor's cache, and cost fewer page faults at the
                // start.
                contiguous_segment_bytes: 4 * MIB,
                sequential_segment_bytes: 4 * MIB,
                reads_in_pieces: false,
                has_stripes: false,
                reads_sample_files_in_place: true,
            },
            Self::Network => LevelTraits {
                // 0.5 ms at 1 GB/s.
                gap_bytes: 512 * KIB,
                // Only concurrent requests hide the latency: as many as a Lustre client keeps in
                // flight per server. Their threads sleep nearly all the time.
                readers: 8,
                // A file needs a round trip to be found, one to be opened and one to be read.
                sample_file_readers: 32,
                // The regions are far apart; on disks each change between them is a seek.
                contiguous_segment_bytes: 64 * MIB,
                sequential_segment_bytes: SEGMENT_BYTES,
                reads_in_pieces: true,
                has_stripes: true,
                reads_sample_files_in_place: false,
            },
        }
    }
}

/// How samples get from storage to the ranks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoMode {
    /// Each rank copies its samples from a mapping of resident files; it plans and reads nothing
    /// for others.
    Mapped,
    /// Each rank gets its samples from an in-memory store; it plans and reads nothing for others.
    Store,
    /// Readers execute a plan for all ranks of the node.
    Planned {
        /// Whether the readers are the node's roots, which alone touch storage.
        roots: bool,
    },
    /// Samples are located by a walk from record to record, with a cursor through a mapping.
    CursorWalk {
        /// Whether the node's roots walk for all its ranks, which then plan; else each rank walks
        /// for itself.
        roots: bool,
    },
}

impl IoMode {
    /// Whether each rank reads its samples itself, without readers and plans.
    #[must_use]
    pub fn is_alone(self) -> bool {
        matches!(self, Self::Mapped | Self::Store | Self::CursorWalk { roots: false })
    }

    /// Whether the readers are the node's roots.
    #[must_use]
    pub fn has_roots(self) -> bool {
        matches!(self, Self::Planned { roots: true } | Self::CursorWalk { roots: true })
    }
}

/// The component that prefetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadAhead {
    /// The kernel's own read-ahead.
    Kernel,
    /// The readers, which prefetch blocks in the order of the plan.
    Announced,
    /// None: blocks are large, and the data after them belongs to other ranks.
    Off,
}

/// How a node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoChoice {
    /// How samples get from storage to the ranks.
    pub mode: IoMode,
    /// The access method.
    pub access: AccessChoice,
    /// Whether reads bypass the page cache.
    pub direct: bool,
    /// The component that prefetches.
    pub read_ahead: ReadAhead,
    /// Whether readers drop what they have read from the page cache.
    pub drops_behind: bool,
    /// Readers of the node.
    pub readers: usize,
    /// Roots that locate the samples of all ranks of the node, in place of the index.
    pub locating_roots: usize,
    /// Gap up to which reads are joined \[bytes\].
    pub gap_bytes: u64,
    /// Largest read \[bytes\].
    pub read_bytes: u64,
    /// No read crosses a multiple of this in its file \[bytes\].
    pub boundary_bytes: Option<u64>,
    /// Whether a large sample may be read directly into its batch if no other shares its read.
    pub reads_in_place: bool,
    /// Segment of a step-wise order \[bytes\].
    pub segment_bytes: u64,
}

/// Whether the page cache cannot be expected to keep the files for the next epoch.
fn exceeds_page_cache(data: &DataFacts, memory_bytes: u64) -> bool {
    data.file_bytes > memory_bytes / 2
}

/// Whether contiguous data lies on other nodes, and readers may prefetch their blocks.
fn may_announce(options: &ReadOptions, data: &DataFacts, source: StorageKind, kind: OrderKind) -> bool {
    // Steps of a forward walk, groups and units are pieces of a file, unless every sample is a
    // file.
    let is_piecewise = matches!(
        kind,
        OrderKind::Sequential
            | OrderKind::Contiguous
            | OrderKind::Group { .. }
            | OrderKind::Opportunistic { .. }
    );
    let in_pieces = !data.has_sample_files && is_piecewise;
    in_pieces
        && source.traits().reads_in_pieces
        && !options.locate.walks()
        && options.coalesce.is_none()
        && options.readers.is_none()
}

/// Whether ranks take samples from the memory of nodes, and read only what fits nowhere.
///
/// In the order `opportunistic` readers stream samples for all ranks of the node.
fn takes_from_memory(options: &ReadOptions, kind: OrderKind) -> bool {
    options.store && !matches!(kind, OrderKind::Opportunistic { .. })
}

/// Whether reads should bypass the page cache, if the file system supports it.
///
/// What fits in no share of a store goes through the page cache, which may have room for it.
///
/// Prefetched blocks go through the page cache even if the files exceed it: the kernel requests
/// them in the order of the file, and readers drop them after the read. Direct reads of several
/// readers would be out of order, which costs seeks.
#[must_use]
pub fn wants_direct(
    options: &ReadOptions,
    data: &DataFacts,
    source: StorageKind,
    kind: OrderKind,
    is_resident: bool,
    memory_bytes: u64,
) -> bool {
    let default = || {
        !is_resident
            && exceeds_page_cache(data, memory_bytes)
            && !may_announce(options, data, source, kind)
            && !takes_from_memory(options, kind)
    };
    options.access != AccessChoice::Mmap && options.direct.unwrap_or_else(default)
}

impl IoChoice {
    /// Chooses for a node with steps of `step_bytes`.
    #[must_use]
    pub fn new(
        options: &ReadOptions,
        data: &DataFacts,
        storage: &StorageFacts,
        kind: OrderKind,
        step_bytes: u64,
    ) -> Self {
        let resident = storage.mapping == Mapping::Resident;
        let source = storage.source.traits();
        let walks = options.locate.walks();
        let direct = storage.direct != DirectIo::Unavailable
            && wants_direct(options, data, storage.source, kind, resident, storage.memory_bytes);
        let access = match options.access {
            AccessChoice::Auto if direct && storage.direct == DirectIo::IoUring => AccessChoice::IoUring,
            choice => choice,
        };
        // With a cursor, readers are used only as roots; else each rank walks for itself.
        let is_counted = matches!(options.readers, Some(Readers::Count(_)));
        let roots = options.readers == Some(Readers::ROOTS)
            || options.locate == Locate::Handoff
            || (walks && is_counted);
        let mode = if walks {
            IoMode::CursorWalk { roots }
        } else if takes_from_memory(options, kind) {
            IoMode::Store
        } else if !roots && resident && options.access == AccessChoice::Auto && !direct && !data.is_coded {
            // Readers decode coded units once for all ranks.
            IoMode::Mapped
        } else {
            IoMode::Planned { roots }
        };
        let announces = may_announce(options, data, storage.source, kind);
        let coalesces = options.coalesce.is_none() && !walks && (roots || (announces && !data.is_coded));
        let read_bytes = match (coalesces, direct) {
            (true, _) => COALESCED_READ_BYTES,
            // A reader decodes a block after reading all of it: small blocks keep all readers busy.
            (false, true) => DIRECT_READ_BYTES,
            (false, false) => READ_BYTES,
        };
        // Between two requests of a node, a disk serves those of others, and seeks.
        let unit_bytes = data.stream_unit_bytes.min(STREAM_READ_BYTES);
        let read_bytes = if data.is_coded { read_bytes } else { read_bytes.max(unit_bytes) };
        let read_ahead = match access {
            AccessChoice::Mmap => ReadAhead::Kernel,
            _ if (coalesces || announces) && !direct => ReadAhead::Announced,
            _ if coalesces || roots => ReadAhead::Off,
            _ => ReadAhead::Kernel,
        };
        let readers = match options.readers {
            _ if mode.is_alone() => 0,
            Some(Readers::Count(readers)) => readers as usize,
            Some(Readers::Per(Per::Rank)) => options.node_ranks.min(MAX_READERS as usize),
            _ if roots => options.node_ranks.div_ceil(RANKS_PER_ROOT).min(2),
            _ if data.has_sample_files => source.sample_file_readers,
            _ if coalesces && read_ahead == ReadAhead::Announced => ANNOUNCING_READERS,
            _ if coalesces => LARGE_READ_READERS,
            _ => source.readers,
        };
        let segment_bytes = match (options.coalesce, kind) {
            (Some(steps), _) => step_bytes.saturating_mul(u64::from(steps)).max(MIN_SEGMENT_BYTES),
            (None, OrderKind::Contiguous) if storage.source == StorageKind::Network => {
                source.contiguous_segment_bytes
            }
            (None, _) if coalesces && roots => COALESCED_SEGMENT_BYTES,
            (None, OrderKind::Contiguous) => source.contiguous_segment_bytes,
            (None, OrderKind::Sequential) => source.sequential_segment_bytes,
            (None, _) => SEGMENT_BYTES,
        };
        Self {
            mode,
            access,
            direct,
            read_ahead,
            drops_behind: announces
                && read_ahead == ReadAhead::Announced
                && options.direct.is_none()
                && exceeds_page_cache(data, storage.memory_bytes),
            readers,
            locating_roots: match (mode, options.locate) {
                // One root of the job walks at a time.
                (IoMode::CursorWalk { roots: true }, Locate::Handoff) => 1,
                (IoMode::CursorWalk { roots: true }, _) => readers,
                _ => 0,
            },
            gap_bytes: match mode {
                _ if roots => ROOT_GAP_BYTES,
                // Between units lie those that are resident, or in other windows.
                _ if matches!(kind, OrderKind::Opportunistic { .. }) => {
                    StorageKind::PageCache.traits().gap_bytes
                }
                _ if resident => StorageKind::PageCache.traits().gap_bytes,
                _ => source.gap_bytes,
            },
            read_bytes,
            boundary_bytes: source.has_stripes.then_some(read_bytes),
            reads_in_place: !direct
                && !roots
                && (source.reads_sample_files_in_place || !data.has_sample_files),
            segment_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: OrderKind = OrderKind::Group { samples: 8, window: 4 };

    fn data() -> DataFacts {
        DataFacts {
            samples: 10_000,
            record_bytes: 10_000 * 100 * KIB,
            drawn_bytes: 10_000 * 100 * KIB,
            file_bytes: 10_000 * 100 * KIB,
            unit_samples: 1,
            is_coded: false,
            has_sample_files: false,
            has_checksums: false,
            batch_bytes: MIB,
            ragged_bytes: 0,
            stream_bytes: 0,
            stream_unit_bytes: 0,
        }
    }

    const LOCAL: StorageFacts = StorageFacts {
        source: StorageKind::LocalDisk,
        mapping: Mapping::Cold,
        direct: DirectIo::IoUring,
        memory_bytes: 64 << 30,
    };
    const WARM: StorageFacts = StorageFacts { mapping: Mapping::Resident, ..LOCAL };
    const NETWORK: StorageFacts =
        StorageFacts { source: StorageKind::Network, mapping: Mapping::None, ..LOCAL };

    fn options() -> ReadOptions {
        ReadOptions::new(4)
    }

    fn choose(options: ReadOptions, data: DataFacts, storage: StorageFacts, kind: OrderKind) -> IoChoice {
        IoChoice::new(&options, &data, &storage, kind, 2 * MIB)
    }

    #[test]
    fn the_mode_follows_from_the_options_and_the_page_cache() {
        use IoMode::{CursorWalk, Mapped, Planned};
        let mmap = ReadOptions { access: AccessChoice::Mmap, ..options() };
        let cursor = ReadOptions { locate: Locate::Cursor, ..mmap };
        let coded = DataFacts { is_coded: true, ..data() };
        for (options, data, storage, expected, readers) in [
            (options(), data(), WARM, Mapped, 0),
            (options(), data(), LOCAL, Planned { roots: false }, 2),
            (options(), coded, WARM, Planned { roots: false }, 2),
            (
                ReadOptions { readers: Some(Readers::ROOTS), ..options() },
                data(),
                WARM,
                Planned { roots: true },
                1,
            ),
            (
                ReadOptions { access: AccessChoice::Pread, ..options() },
                data(),
                WARM,
                Planned { roots: false },
                2,
            ),
            (ReadOptions { direct: Some(true), ..options() }, data(), WARM, Planned { roots: false }, 2),
            (mmap, data(), WARM, Planned { roots: false }, 2),
            (cursor, data(), LOCAL, CursorWalk { roots: false }, 0),
            (
                ReadOptions { readers: Some(Readers::Count(3)), ..cursor },
                data(),
                LOCAL,
                CursorWalk { roots: true },
                3,
            ),
            (
                ReadOptions { readers: Some(Readers::ROOTS), ..cursor },
                data(),
                LOCAL,
                CursorWalk { roots: true },
                1,
            ),
            (ReadOptions { locate: Locate::Handoff, ..mmap }, data(), LOCAL, CursorWalk { roots: true }, 1),
        ] {
            let choice = choose(options, data, storage, OrderKind::Sequential);
            assert_eq!((choice.mode, choice.readers), (expected, readers), "{options:?} {storage:?}");
            let locating = if expected == (CursorWalk { roots: true }) { readers } else { 0 };
            assert_eq!(choice.locating_roots, locating, "{options:?}");
        }
        let handoff = ReadOptions { locate: Locate::Handoff, readers: Some(Readers::Count(3)), ..mmap };
        let choice = choose(handoff, data(), LOCAL, OrderKind::Sequential);
        assert_eq!((choice.readers, choice.locating_roots), (3, 1));
    }

    #[test]
    fn what_lies_in_pieces_on_other_nodes_is_announced_and_in_large_blocks_unless_coded() {
        let coded = DataFacts { is_coded: true, ..data() };
        let files = DataFacts { has_sample_files: true, ..data() };
        let eight = ReadOptions { readers: Some(Readers::Count(8)), ..options() };
        let steps = ReadOptions { coalesce: Some(2), ..options() };
        for (name, options, data, storage, kind, announces, readers, read, segment) in [
            ("sequential", options(), data(), NETWORK, OrderKind::Sequential, true, 4, 8, 16),
            ("contiguous", options(), data(), NETWORK, OrderKind::Contiguous, true, 4, 8, 64),
            ("group", options(), data(), NETWORK, GROUP, true, 4, 8, 16),
            ("shuffle", options(), data(), NETWORK, OrderKind::Shuffle, false, 8, 1, 16),
            ("coded", options(), coded, NETWORK, GROUP, true, 8, 1, 16),
            ("coded shuffle", options(), coded, NETWORK, OrderKind::Shuffle, false, 8, 1, 16),
            ("files", options(), files, NETWORK, GROUP, false, 32, 1, 16),
            ("readers=8", eight, data(), NETWORK, GROUP, false, 8, 1, 16),
            ("coalesce=2", steps, data(), NETWORK, OrderKind::Sequential, false, 8, 1, 4),
            ("local", options(), data(), LOCAL, OrderKind::Sequential, false, 2, 1, 4),
            ("local contiguous", options(), data(), LOCAL, OrderKind::Contiguous, false, 2, 1, 4),
            ("local group", options(), data(), LOCAL, GROUP, false, 2, 1, 16),
            ("local files", options(), files, LOCAL, GROUP, false, 2, 1, 16),
        ] {
            let choice = choose(options, data, storage, kind);
            let found = (
                choice.read_ahead == ReadAhead::Announced,
                choice.readers,
                choice.read_bytes / MIB,
                choice.segment_bytes / MIB,
            );
            assert_eq!(found, (announces, readers, read, segment), "{name}");
            assert_eq!(choice.read_ahead == ReadAhead::Kernel, !announces, "{name}");
            assert_eq!(
                choice.boundary_bytes,
                (storage.source == StorageKind::Network).then_some(choice.read_bytes),
                "{name}"
            );
        }
    }

    #[test]
    fn files_larger_than_half_the_memory_go_around_the_page_cache_unless_blocks_are_announced() {
        use AccessChoice::{Auto, IoUring, Mmap, Pread};
        let large = DataFacts { file_bytes: 33 << 30, ..data() };
        let coded = DataFacts { is_coded: true, ..large };
        let files = DataFacts { has_sample_files: true, ..large };
        let refused = StorageFacts { direct: DirectIo::Unavailable, ..NETWORK };
        let no_ring = StorageFacts { direct: DirectIo::Pread, ..NETWORK };
        let around = ReadOptions { direct: Some(true), ..options() };
        let through = ReadOptions { direct: Some(false), ..options() };
        let eight = ReadOptions { readers: Some(Readers::Count(8)), ..options() };
        let pread = ReadOptions { access: Pread, ..options() };
        let mmap = ReadOptions { access: Mmap, ..options() };
        let steps = ReadOptions { coalesce: Some(2), ..options() };
        let roots = ReadOptions { readers: Some(Readers::ROOTS), ..options() };
        let each = ReadOptions { readers: Some(Readers::Per(Per::Rank)), ..options() };
        let store = ReadOptions { store: true, ..options() };
        let store_around = ReadOptions { direct: Some(true), ..store };
        for (name, options, data, storage, kind, direct, access) in [
            ("shuffle", options(), large, NETWORK, OrderKind::Shuffle, true, IoUring),
            ("store", store, large, NETWORK, OrderKind::Shuffle, false, Auto),
            ("store, direct=True", store_around, large, NETWORK, OrderKind::Shuffle, true, IoUring),
            ("without io_uring", options(), large, no_ring, OrderKind::Shuffle, true, Auto),
            ("refused", options(), large, refused, OrderKind::Shuffle, false, Auto),
            ("small", options(), data(), NETWORK, OrderKind::Shuffle, false, Auto),
            ("pread", pread, large, NETWORK, OrderKind::Shuffle, true, Pread),
            ("mmap", mmap, large, NETWORK, OrderKind::Shuffle, false, Mmap),
            ("files of one sample", options(), files, NETWORK, GROUP, true, IoUring),
            ("readers=8", eight, large, NETWORK, GROUP, true, IoUring),
            ("coalesce=2", steps, large, NETWORK, OrderKind::Sequential, true, IoUring),
            ("roots", roots, large, NETWORK, GROUP, true, IoUring),
            ("a reader per rank", each, large, NETWORK, GROUP, true, IoUring),
            ("local", options(), large, LOCAL, OrderKind::Sequential, true, IoUring),
            ("resident", options(), large, WARM, OrderKind::Sequential, false, Auto),
            // Announced.
            ("sequential", options(), large, NETWORK, OrderKind::Sequential, false, Auto),
            ("contiguous", options(), large, NETWORK, OrderKind::Contiguous, false, Auto),
            ("group", options(), large, NETWORK, GROUP, false, Auto),
            ("coded", options(), coded, NETWORK, GROUP, false, Auto),
            ("pread, group", pread, large, NETWORK, GROUP, false, Pread),
            ("direct=True", around, data(), NETWORK, GROUP, true, IoUring),
            ("direct=False", through, large, NETWORK, GROUP, false, Auto),
        ] {
            let choice = choose(options, data, storage, kind);
            assert_eq!((choice.direct, choice.access), (direct, access), "{name}");
            assert!(!(choice.direct && choice.reads_in_place), "{name}");
            assert!(!(choice.direct && choice.read_ahead == ReadAhead::Announced), "{name}");
        }
    }

    #[test]
    fn requests_of_large_blocks_that_are_not_announced_come_from_two_readers() {
        let around = ReadOptions { direct: Some(true), ..options() };
        let mmap = ReadOptions { access: AccessChoice::Mmap, ..options() };
        for (options, expected) in [
            (options(), (ReadAhead::Announced, 4)),
            (around, (ReadAhead::Off, 2)),
            (mmap, (ReadAhead::Kernel, 2)),
        ] {
            let choice = choose(options, data(), NETWORK, GROUP);
            assert_eq!((choice.read_ahead, choice.readers), expected, "{options:?}");
        }
    }

    #[test]
    fn announced_blocks_are_dropped_behind_the_readers_where_the_page_cache_cannot_keep_the_files() {
        let large = DataFacts { file_bytes: 33 << 30, ..data() };
        let coded = DataFacts { is_coded: true, ..large };
        let around = ReadOptions { direct: Some(true), ..options() };
        let through = ReadOptions { direct: Some(false), ..options() };
        let mmap = ReadOptions { access: AccessChoice::Mmap, ..options() };
        let roots = ReadOptions { readers: Some(Readers::ROOTS), ..through };
        for (name, options, data, storage, kind, expected) in [
            ("large", options(), large, NETWORK, GROUP, true),
            ("coded", options(), coded, NETWORK, GROUP, true),
            ("small", options(), data(), NETWORK, GROUP, false),
            ("shuffle", options(), large, NETWORK, OrderKind::Shuffle, false),
            ("local", options(), large, LOCAL, OrderKind::Sequential, false),
            ("direct=True", around, large, NETWORK, GROUP, false),
            ("direct=False keeps them", through, large, NETWORK, GROUP, false),
            ("mmap", mmap, large, NETWORK, GROUP, false),
            ("roots", roots, large, NETWORK, GROUP, false),
        ] {
            assert_eq!(choose(options, data, storage, kind).drops_behind, expected, "{name}");
        }
    }

    #[test]
    fn gaps_follow_the_level_and_roots_read_little_else() {
        let roots = ReadOptions { readers: Some(Readers::ROOTS), ..options() };
        let mmap = ReadOptions { access: AccessChoice::Mmap, ..options() };
        for (options, storage, gap_kib) in [
            (options(), LOCAL, 128),
            (options(), WARM, 4),
            (options(), NETWORK, 512),
            (mmap, StorageFacts { mapping: Mapping::Resident, ..NETWORK }, 4),
            (roots, WARM, 8),
            (roots, NETWORK, 8),
        ] {
            let choice = choose(options, data(), storage, OrderKind::Sequential);
            assert_eq!(choice.gap_bytes, gap_kib * KIB, "{options:?} {storage:?}");
        }
    }

    #[test]
    fn large_samples_are_read_in_place_but_from_files_on_other_nodes() {
        let files = DataFacts { has_sample_files: true, ..data() };
        let roots = ReadOptions { readers: Some(Readers::ROOTS), ..options() };
        for (options, data, storage, expected) in [
            (options(), data(), LOCAL, true),
            (options(), data(), NETWORK, true),
            (options(), files, LOCAL, true),
            (options(), files, NETWORK, false),
            (roots, data(), LOCAL, false),
        ] {
            assert_eq!(choose(options, data, storage, GROUP).reads_in_place, expected, "{storage:?}");
        }
    }

    #[test]
    fn roots_are_few_and_readers_per_rank_are_bounded() {
        let roots = |ranks| ReadOptions { readers: Some(Readers::ROOTS), ..ReadOptions::new(ranks) };
        let each = |ranks| ReadOptions { readers: Some(Readers::Per(Per::Rank)), ..ReadOptions::new(ranks) };
        for (options, readers) in [
            (roots(1), 1),
            (roots(16), 1),
            (roots(17), 2),
            (roots(200), 2),
            (each(5), 5),
            (each(200), 64),
            (ReadOptions { readers: Some(Readers::Count(7)), ..roots(17) }, 7),
        ] {
            assert_eq!(choose(options, data(), NETWORK, GROUP).readers, readers, "{options:?}");
        }
    }
}
