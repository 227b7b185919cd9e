//! Decisions at the creation of a loader, so that all processes of a node compute the same plan.
//!
//! Each decision is a pure function of the options, facts of the dataset and facts of the storage
//! ([`decide`]). The engine gathers the facts (`facts`) and describes the decisions. None of them
//! changes which samples are delivered: only the order does. `decide_job` has the order of the
//! decisions. `memory` bounds the memory of a
//! loader, `io_mode` decides how its node touches storage, `sizing` how much memory that takes,
//! `region_layout` where its parts are, `threads` how many threads gather, `tiers` how storage
//! tiers are used.

mod decide_job;
mod facts;
mod io_mode;
mod memory;
mod region_layout;
mod sizing;
pub(crate) mod stream_choice;
mod threads;
mod tiers;

use serde::{Deserialize, Serialize};

pub use self::decide_job::{
    JobFacts, JobPlan, JobTooLarge, decide_job, needs_shares, retained_bytes, unit_bytes,
};
pub use self::facts::{
    AccessChoice, DataFacts, DirectIo, Locate, Mapping, Per, ReadOptions, Readers, StorageFacts, StorageKind,
};
pub use self::io_mode::{IoChoice, IoMode, LevelTraits, MAX_READERS, ReadAhead, wants_direct};
pub use self::memory::{Budget, MemoryBound, MemoryFacts, budget, default_memory_bytes, may_map};
pub use self::region_layout::{
    LOCATION_WORDS, RANK_SLOT_BYTES, READER_SLOT_BYTES, REGION_HEADER_BYTES, RegionLayout, RegionSizes,
};
use self::sizing::Load;
pub use self::sizing::{BudgetTooSmall, ragged_bytes};
pub use self::threads::{
    CallerFillFacts, GatherFacts, fills_in_caller, gather_threads, leaves_others_asleep, server_threads,
};
pub use self::tiers::{Tiering, TieringFacts, copy_buffer_bytes, decide_tiering};
use crate::order::group::default_group;
use crate::order::{Order, OrderKind};
use crate::read::kept_units::UnitFacts;
use crate::read::plan::IoLimits;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Alignment of direct reads \[bytes\]: a page.
const ALIGN: u64 = 4096;
/// Small reads that share a block.
const READS_PER_BLOCK: u32 = 64;
/// Requests in flight per `io_uring` reader.
const DEPTH: u32 = 16;
/// A sample at least this large is read directly into its batch if no other shares the read: the
/// second copy would cost more than the lost coalescing.
const IN_PLACE_BYTES: u64 = 64 * KIB;

/// The decisions, the same in all processes of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, not a state in disguise")]
pub struct Settings {
    /// How samples get from storage to the ranks.
    pub mode: IoMode,
    /// Roots that locate the samples of all ranks of the node, in place of the index.
    pub locating_roots: usize,
    /// The access method.
    pub access: AccessChoice,
    /// Whether reads bypass the page cache.
    pub direct: bool,
    /// State of the mapping of the files; all ranks map them, or none.
    pub mapping: Mapping,
    /// The component that prefetches.
    pub read_ahead: ReadAhead,
    /// Whether readers drop what they have read from the page cache.
    pub drops_behind: bool,
    /// Requests in flight per `io_uring` reader.
    pub depth: u32,
    /// Limits of the plan.
    pub limits: IoLimits,
    /// Samples per group, where the order groups.
    pub group_samples: u64,
    /// Groups per window, where the order groups.
    pub group_window: u64,
    /// Lanes.
    pub lanes: u64,
    /// Steps of the first segment, for step-wise orders.
    pub first_segment_steps: u64,
    /// Steps of later segments.
    pub segment_steps: u64,
    /// Whether the checksum of each record is checked.
    pub checksums: bool,
    /// Memory for the values of the ragged fields of a batch \[bytes\].
    pub ragged_bytes: u64,
    /// Bytes of decoded units that each process of the node keeps.
    pub kept_unit_bytes: u64,
    /// Rows that are decoded for each delivered one; 1 where the order takes units together.
    pub decode_amplification: f64,
    /// Sizes of the shared region.
    pub region: RegionSizes,
    /// Size of all of it \[bytes\].
    pub region_bytes: u64,
    /// Bytes that the loader may use on this node.
    pub memory_bytes: u64,
    /// The minimum budget for these options \[bytes\].
    pub minimum_bytes: u64,
    /// Whether it reserves no memory, but holds it only while it is iterated.
    pub on_loan: bool,
}

impl Settings {
    /// Whether readers leave blocks in the mapping of the files, and ranks take the page faults
    /// when they copy their samples: roots take them for their node.
    #[must_use]
    pub fn leaves_faults_to_ranks(&self) -> bool {
        self.access == AccessChoice::Mmap && !self.mode.has_roots()
    }
}

/// Decides for a node.
///
/// # Errors
/// A budget that is too small.
pub fn decide(
    options: &ReadOptions,
    data: &DataFacts,
    storage: &StorageFacts,
    order: &Order,
    budget: &Budget,
) -> Result<Settings, BudgetTooSmall> {
    let mean_bytes = data.mean_record_bytes();
    // Size of one sample in the staging ring: its record and the padding between records.
    let staged_bytes = mean_bytes
        .max((data.file_bytes as f64 / data.samples.max(1) as f64).min(mean_bytes + 2.0 * ALIGN as f64));
    let step_samples = order.spec().batch * options.node_ranks as u64;
    let step_bytes = (step_samples as f64 * staged_bytes) as u64;
    let choice = IoChoice::new(options, data, storage, order.kind(), step_bytes);
    let load = Load { options, data, order, choice: &choice, staged_bytes, step_bytes };
    let sizes = load.fit(budget)?;
    let (group_samples, group_window) = match order.kind() {
        OrderKind::Group { samples, window } => (samples, window),
        _ => default_group(data.samples, mean_bytes, data.unit_samples),
    };
    let units = UnitFacts {
        samples: data.samples,
        sample_bytes: mean_bytes,
        unit_samples: if data.is_coded { data.unit_samples } else { 1 },
        segment_bytes: choice.segment_bytes,
        ranks: options.node_ranks as u64,
        left_bytes: if sizes.on_loan { 0 } else { sizes.memory_bytes.saturating_sub(sizes.region_bytes) },
    };
    let kept_unit_bytes = units.kept_bytes(order.kind());
    let takes_from_anywhere =
        matches!(order.kind(), OrderKind::Shuffle | OrderKind::LocalShuffle { .. } | OrderKind::Given { .. });
    let segment_samples = sizes.segment_steps.saturating_mul(step_samples);
    let decode_amplification = if takes_from_anywhere && units.unit_samples > 1 {
        units.amplification(kept_unit_bytes, segment_samples, sizes.region.staging_bytes)
    } else {
        1.0
    };
    Ok(Settings {
        mode: choice.mode,
        locating_roots: choice.locating_roots,
        access: choice.access,
        direct: choice.direct,
        mapping: storage.mapping,
        read_ahead: choice.read_ahead,
        drops_behind: choice.drops_behind,
        depth: DEPTH,
        limits: IoLimits {
            gap_bytes: choice.gap_bytes,
            max_read_bytes: choice.read_bytes,
            align_bytes: if choice.direct { ALIGN } else { 1 },
            boundary_bytes: choice.boundary_bytes,
            in_place_bytes: choice.reads_in_place.then_some(IN_PLACE_BYTES),
            block_bytes: choice.read_bytes,
            reads_per_block: READS_PER_BLOCK,
        },
        group_samples,
        group_window,
        lanes: order.lanes(),
        first_segment_steps: sizes.first_segment_steps,
        segment_steps: sizes.segment_steps,
        checksums: options.checksums && data.has_checksums,
        ragged_bytes: data.ragged_bytes,
        kept_unit_bytes,
        decode_amplification,
        region: sizes.region,
        region_bytes: sizes.region_bytes,
        memory_bytes: sizes.memory_bytes,
        minimum_bytes: sizes.minimum_bytes,
        on_loan: sizes.on_loan,
    })
}
