//! The decisions about a job on one node, in their order:
//!
//! 1. [`needs_shares`]: whether the nodes share the dataset out, and [`unit_bytes`]: in units of
//!    which length.
//! 2. [`retained_bytes`]: how much of what the index build reads is retained; it counts as held.
//! 3. [`decide_job`]: how the node reads, within what its budget leaves beside copies for tiers.
//!    What the order needs comes first: copies get less until it fits.
//! 4. [`decide_tiering`](super::decide_tiering): what is copied to the tiers, by the order that
//!    follows from 3.

use super::sizing::BudgetTooSmall;
use super::tiers::gap_bytes_of_shares;
use super::{Budget, DataFacts, ReadOptions, Readers, Settings, StorageFacts, decide};
use crate::nodes::unit_bytes::{share_unit_bytes, store_unit_bytes, stream_unit_bytes};
use crate::order::{Order, OrderKind};

/// Divisor of the budget for values that are retained from the index build: the loader needs the
/// rest.
const RETAINED_SHARE: u64 = 2;

/// Below this, so few copies are made at a time that a lack of memory is rather an error \[bytes\].
const LEAST_COPY_BUFFER_BYTES: u64 = 256 << 10;

/// Facts of a job on one node.
#[derive(Clone, Copy, Debug)]
pub struct JobFacts<'a> {
    /// The options for reading.
    pub options: &'a ReadOptions,
    /// The dataset.
    pub data: &'a DataFacts,
    /// The storage.
    pub storage: &'a StorageFacts,
    /// The order.
    pub order: &'a Order,
    /// The memory.
    pub budget: &'a Budget,
    /// Memory for copies on their way to tiers that each process of the node should have \[bytes\];
    /// 0 without tiers.
    pub copy_buffer_bytes: u64,
    /// Whether the tiers of each node hold its own share of the data.
    pub has_tiers_of_shares: bool,
}

/// What was decided.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// How the node reads.
    pub settings: Settings,
    /// Memory for copies on their way, of each process \[bytes\].
    pub copy_buffer_bytes: u64,
}

/// The budget is too small.
#[derive(Clone, Copy, Debug)]
pub struct JobTooLarge {
    /// The least that would do.
    pub least: BudgetTooSmall,
    /// The budget, of which copies hold as little as they may.
    pub budget: Budget,
}

/// Decides for a node.
///
/// # Errors
/// A budget that is too small even with few copies.
pub fn decide_job(facts: &JobFacts<'_>) -> Result<JobPlan, JobTooLarge> {
    let &JobFacts { options, data, storage, order, .. } = facts;
    let mut copy_buffer_bytes = facts.copy_buffer_bytes;
    loop {
        let budget = facts.budget.beside(copy_buffer_bytes * options.node_ranks as u64);
        match decide(options, data, storage, order, &budget) {
            Ok(mut settings) => {
                if facts.has_tiers_of_shares {
                    settings.limits.gap_bytes = gap_bytes_of_shares(settings.limits.gap_bytes);
                }
                return Ok(JobPlan { settings, copy_buffer_bytes });
            }
            Err(_) if copy_buffer_bytes > LEAST_COPY_BUFFER_BYTES => copy_buffer_bytes /= 2,
            Err(least) => return Err(JobTooLarge { least, budget }),
        }
    }
}

/// Whether the nodes share the dataset out: for an order that depends on it, or an in-memory
/// store. Only `opportunistic` needs it on a single node.
#[must_use]
pub fn needs_shares(kind: OrderKind, has_store: bool, is_single_node: bool) -> bool {
    match kind {
        OrderKind::Opportunistic { .. } => true,
        OrderKind::LocalShuffle { .. } => !is_single_node,
        _ => has_store && !is_single_node,
    }
}

/// Length of the units that `nodes` nodes share out \[bytes\]; `asked` for what they stream. Of
/// `local-shuffle` it decides which samples each rank takes, so it never changes.
#[must_use]
pub fn unit_bytes(kind: OrderKind, data_bytes: u64, samples: u64, nodes: u64, asked: Option<u64>) -> u64 {
    match kind {
        OrderKind::Opportunistic { .. } => stream_unit_bytes(data_bytes, samples, nodes, asked),
        OrderKind::LocalShuffle { .. } => share_unit_bytes(data_bytes, samples, nodes),
        _ => store_unit_bytes(data_bytes, samples, nodes),
    }
}

/// Most bytes of values that are retained from the index build, where the budget leaves
/// `left_bytes`. Roots and locators exist to touch storage, and a store holds values itself.
#[must_use]
pub fn retained_bytes(readers: Option<Readers>, has_locators: bool, has_store: bool, left_bytes: u64) -> u64 {
    if readers == Some(Readers::ROOTS) || has_locators || has_store { 0 } else { left_bytes / RETAINED_SHARE }
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryBound;
    use super::super::{DirectIo, Mapping, StorageKind};
    use super::*;
    use crate::order::{LastBatch, OrderSpec};

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const RANKS: u64 = 4;

    fn plan(left_bytes: u64, copy_buffer_bytes: u64, tiers_of_shares: bool) -> Result<JobPlan, JobTooLarge> {
        let (samples, record_bytes) = (100_000, 100 * KIB);
        let options = ReadOptions::new(RANKS as usize);
        let data = DataFacts {
            samples,
            record_bytes: samples * record_bytes,
            drawn_bytes: samples * record_bytes,
            file_bytes: samples * record_bytes,
            unit_samples: 1,
            is_coded: false,
            has_sample_files: false,
            has_checksums: false,
            batch_bytes: 16 * record_bytes,
            ragged_bytes: 0,
            stream_bytes: 0,
            stream_unit_bytes: 0,
        };
        let storage = StorageFacts {
            source: StorageKind::Network,
            mapping: Mapping::None,
            direct: DirectIo::Unavailable,
            memory_bytes: 64 << 30,
        };
        let order = Order::new(OrderSpec {
            kind: OrderKind::Shuffle,
            last_batch: LastBatch::Fill,
            seed: 0,
            samples,
            batch: 16,
            ranks: RANKS,
            lanes: None,
        });
        let budget = Budget {
            requested_bytes: left_bytes,
            is_default: true,
            held_bytes: 0,
            lendable_bytes: 0,
            bound: MemoryBound::Free(64 << 30),
            is_cut: false,
            is_half_of_address_space: false,
        };
        let facts = JobFacts {
            options: &options,
            data: &data,
            storage: &storage,
            order: &order.unwrap(),
            budget: &budget,
            copy_buffer_bytes,
            has_tiers_of_shares: tiers_of_shares,
        };
        decide_job(&facts)
    }

    #[test]
    fn copies_take_what_the_order_leaves() {
        let least = plan(MIB, 0, false).unwrap_err().least.minimum_bytes;
        for (left_bytes, asked, expected) in [
            (4096 * MIB, 16 * MIB, 16 * MIB),
            (4096 * MIB, 0, 0),
            (least, 0, 0),
            (least + RANKS * 16 * MIB, 16 * MIB, 16 * MIB),
            (least + RANKS * 16 * MIB - 1, 16 * MIB, 8 * MIB),
            (least + RANKS * MIB, 16 * MIB, MIB),
            (least + RANKS * 256 * KIB, 16 * MIB, 256 * KIB),
        ] {
            let plan = plan(left_bytes, asked, false).unwrap();
            assert_eq!(plan.copy_buffer_bytes, expected, "{left_bytes}, {asked}");
            let copies = plan.copy_buffer_bytes * RANKS;
            assert!(plan.settings.region_bytes + copies <= left_bytes, "{left_bytes}, {asked}");
        }
        let refused = plan(least + RANKS * 256 * KIB - 1, 16 * MIB, false).unwrap_err();
        assert_eq!((refused.least.minimum_bytes, refused.budget.held_bytes), (least, RANKS * 256 * KIB));
    }

    #[test]
    fn reads_are_not_joined_over_chunks_of_other_nodes() {
        let gap_bytes = |of_shares| plan(4096 * MIB, MIB, of_shares).unwrap().settings.limits.gap_bytes;
        assert_eq!(gap_bytes(true), gap_bytes(false).min(4096));
    }

    #[test]
    fn the_dataset_is_shared_out_where_order_or_store_depend_on_it() {
        let streamed = OrderKind::Opportunistic { window: 1 };
        let local = OrderKind::LocalShuffle { steps: 4 };
        for (kind, has_store, is_single_node, expected) in [
            (OrderKind::Shuffle, false, false, false),
            (OrderKind::Shuffle, true, false, true),
            (OrderKind::Shuffle, true, true, false),
            (local, false, false, true),
            (local, false, true, false),
            (streamed, false, true, true),
            (streamed, true, false, true),
        ] {
            assert_eq!(needs_shares(kind, has_store, is_single_node), expected, "{kind}, {has_store}");
        }
    }

    #[test]
    fn units_are_long_where_the_order_does_not_depend_on_them() {
        let bytes = |kind| unit_bytes(kind, 140_000 * MIB, 50_000_000, 16, None);
        assert_eq!(bytes(OrderKind::LocalShuffle { steps: 4 }), 4 * MIB);
        assert_eq!(bytes(OrderKind::Shuffle), 32 * MIB);
        assert_eq!(bytes(OrderKind::Opportunistic { window: 1 }), 4 * MIB);
        let asked =
            unit_bytes(OrderKind::Opportunistic { window: 1 }, 140_000 * MIB, 50_000_000, 16, Some(MIB));
        assert_eq!(asked, MIB);
    }

    #[test]
    fn half_of_the_memory_holds_values_of_the_build_unless_the_strategy_touches_storage() {
        for (readers, has_locators, has_store, expected) in [
            (None, false, false, 50),
            (Some(Readers::Count(2)), false, false, 50),
            (Some(Readers::ROOTS), false, false, 0),
            (None, true, false, 0),
            (None, false, true, 0),
        ] {
            assert_eq!(retained_bytes(readers, has_locators, has_store, 100), expected, "{readers:?}");
        }
    }
}
