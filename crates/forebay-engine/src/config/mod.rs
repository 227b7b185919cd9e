//! Decisions of a node's leader, so that all its processes compute the same plan.
//!
//! The decisions are pure functions in [`forebay_plan::config`]. This module gathers the facts that
//! they need: about the index, the file system, the page cache and the memory (`budget`). All
//! processes of the node get these facts with the decisions, as [`Findings`] for `Loader.config`.

pub(crate) mod amplified_decoding;
mod memory;
pub(crate) mod options;
pub(crate) mod rank_facts;
pub(crate) mod shares;
pub(crate) mod strategies;
pub(crate) mod tiers;

use forebay_format::Index;
use forebay_host as host;
use forebay_io::{Mappings, ShardFiles, probe_io_uring};
pub use forebay_plan::config::Settings;
use forebay_plan::config::{
    AccessChoice, Budget, DataFacts, DirectIo, JobFacts, JobPlan, JobTooLarge, Locate, Mapping, ReadOptions,
    StorageFacts, StorageKind, copy_buffer_bytes, decide_job, ragged_bytes, wants_direct,
};
use forebay_plan::{Order, OrderKind};
use forebay_types::ShardId;
use serde::{Deserialize, Serialize};

pub use self::memory::{budget, may_map};
use crate::base::fallback::{Fallback, Wanted};
use crate::batch::layout::BatchLayout;
use crate::config::options::Options;
use crate::dataset::IndexOrigin;
use crate::dataset::drawn_bytes::drawn_bytes;
use crate::dataset::field_decoders::{Decoding, decode_threads};
use crate::dataset::shuffle_quality;
use crate::error::Error;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Facts that the leader of a node gathered before it decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Findings {
    /// The dataset.
    pub data: DataFacts,
    /// The storage.
    pub storage: StorageFacts,
    /// The memory, before retained values took some.
    pub budget: Budget,
    /// Origin of the index.
    pub index: IndexOrigin,
    /// Memory of values that are retained from the index build \[bytes\].
    pub retained_bytes: u64,
    /// Requests that could not be met.
    pub fallbacks: Vec<Fallback>,
}

/// The decisions for a node, and the facts that they follow from.
pub struct Decision {
    /// The decisions.
    pub settings: Settings,
    /// The dataset.
    pub data: DataFacts,
    /// The storage.
    pub storage: StorageFacts,
    /// Memory for copies on their way to tiers, of each process \[bytes\].
    pub copy_buffer_bytes: u64,
    /// Options without effect.
    pub fallbacks: Vec<Fallback>,
}

/// The order `opportunistic`, and what streaming takes.
#[derive(Clone, Copy, Debug)]
pub struct Streamed<'a> {
    /// The order.
    pub order: &'a Order,
    /// Staging memory for what this node streams \[bytes\].
    pub staging_bytes: u64,
    /// Length of a unit \[bytes\].
    pub unit_bytes: u64,
}

/// What a loader may use of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeLimits<'a> {
    /// Its memory.
    pub budget: &'a Budget,
    /// Cores of a rank; of the one that has the most.
    pub cores: usize,
    /// Whether the nodes share the dataset out.
    pub has_shares: bool,
}

/// Decides for a node. `expansion` is that of
/// [`expansion_ratio`](crate::dataset::ragged_size::expansion_ratio). `streamed` is the order
/// `opportunistic`, where it is known.
///
/// # Errors
/// Options that contradict the dataset, and a budget that is too small: the message names the
/// minimum.
pub fn decide(
    options: &Options,
    index: &Index,
    files: &ShardFiles,
    mappings: Option<&Mappings>,
    expansion: f64,
    streamed: Option<Streamed<'_>>,
    NodeLimits { budget, cores, has_shares }: NodeLimits<'_>,
) -> Result<Decision, Error> {
    let mut data = data_facts(options, index, files, expansion)?;
    let order = match streamed {
        Some(Streamed { order, staging_bytes, unit_bytes }) => {
            (data.stream_bytes, data.stream_unit_bytes) = (staging_bytes, unit_bytes);
            order.clone()
        }
        None => plain_order(options, index)?,
    };
    let read_options = options.read_options(index.has_vocabulary(), decode_threads(&options.decode, cores));
    let storage = storage_facts(&read_options, &data, order.kind(), index, files, mappings);
    let has_tiers = !options.tiers.tiers.is_empty();
    let facts = JobFacts {
        options: &read_options,
        data: &data,
        storage: &storage,
        order: &order,
        budget,
        copy_buffer_bytes: if has_tiers {
            copy_buffer_bytes(options.local_ranks.len(), budget.left_bytes())
        } else {
            0
        },
        has_tiers_of_shares: has_tiers && has_shares,
    };
    let JobPlan { settings, copy_buffer_bytes } = decide_job(&facts)
        .map_err(|JobTooLarge { least, budget }| memory::too_small(options, &budget, order.kind(), least))?;
    let fallbacks = without_effect(options, &settings, order.kind(), files.direct_refused());
    Ok(Decision { settings, data, storage, copy_buffer_bytes, fallbacks })
}

/// The order that the options request, on unknown nodes, with the group sizes that suit the
/// dataset.
pub fn plain_order(options: &Options, index: &Index) -> Result<Order, Error> {
    let (group_samples, group_window) = shuffle_quality::group_of(index);
    Ok(options.order(index.samples(), group_samples, group_window, None)?)
}

/// Options without effect for this dataset, this storage or this job.
fn without_effect(
    options: &Options,
    settings: &Settings,
    kind: OrderKind,
    direct_refused: Option<&str>,
) -> Vec<Fallback> {
    let mut fallbacks = Vec::new();
    let mut add = |wanted, reason: &str| fallbacks.push(Fallback::new(wanted, reason));
    if options.strategy.direct == Some(true) && !settings.direct {
        add(Wanted::Direct, direct_refused.unwrap_or("the file system refuses O_DIRECT"));
    }
    if options.strategy.coalesce.is_some()
        && matches!(kind, OrderKind::Group { .. } | OrderKind::Opportunistic { .. })
    {
        add(Wanted::Coalesce, &format!("the order {} is read a window at a time", kind.name()));
    }
    if options.links.is_none() {
        let reason = if options.is_one_node() { "the job has one node" } else { "the nodes are not linked" };
        if options.strategy.stagger.is_some() {
            add(Wanted::Stagger, reason);
        }
        if options.strategy.locate == Locate::Handoff {
            add(Wanted::Handoff, reason);
        }
    }
    if options.checksums && !settings.checksums {
        add(Wanted::Checksums, "the format has none of single records, or its codecs always check them");
    }
    fallbacks
}

pub(crate) fn data_facts(
    options: &Options,
    index: &Index,
    files: &ShardFiles,
    expansion: f64,
) -> Result<DataFacts, Error> {
    let (samples, summary) = (index.samples(), index.summary());
    let drawn_bytes = match &options.order.mixture {
        Some(mixture) => drawn_bytes(mixture, index),
        None => index.record_bytes(),
    };
    let mean_bytes = drawn_bytes as f64 / samples.max(1) as f64;
    // The sizes of groups do not matter for it.
    let batch = options.order(samples, 1, 1, None)?.largest_batch();
    let decoding = Decoding::new(index.fields(), &options.decode)?;
    let fields = decoding.fields();
    let ragged_bytes = ragged_bytes(fields, batch, mean_bytes, summary.longest_record_bytes, expansion);
    let layout = BatchLayout::new(fields, batch, ragged_bytes).ok_or_else(|| Error::Options {
        message: format!("the batch is too large: {batch} samples overflow 64 bits"),
        hint: String::new(),
    })?;
    Ok(DataFacts {
        samples,
        record_bytes: index.record_bytes(),
        drawn_bytes,
        file_bytes: index.shards().iter().map(|shard| shard.bytes).sum(),
        unit_samples: index.unit_samples(),
        is_coded: index.is_coded(),
        has_sample_files: files.are_of_samples(),
        has_checksums: index.has_checksums(),
        batch_bytes: layout.bytes,
        ragged_bytes,
        stream_bytes: 0,
        stream_unit_bytes: 0,
    })
}

fn storage_facts(
    options: &ReadOptions,
    data: &DataFacts,
    kind: OrderKind,
    index: &Index,
    files: &ShardFiles,
    mappings: Option<&Mappings>,
) -> StorageFacts {
    let source = if files.is_local() { StorageKind::LocalDisk } else { StorageKind::Network };
    let is_resident = mappings.is_some_and(|mappings| is_resident(mappings, index, RESIDENT_PERCENT));
    let memory_bytes = host::limit_bytes();
    // The probe costs an open file per shard, and a ring.
    let wanted = wants_direct(options, data, source, kind, is_resident, memory_bytes);
    let direct = if !wanted || !files.direct_works() {
        DirectIo::Unavailable
    } else if options.access == AccessChoice::Auto && probe_io_uring().is_ok() {
        DirectIo::IoUring
    } else {
        DirectIo::Pread
    };
    StorageFacts {
        source,
        mapping: match mappings {
            None => Mapping::None,
            Some(_) if is_resident => Mapping::Resident,
            Some(_) => Mapping::Cold,
        },
        direct,
        memory_bytes,
    }
}

/// Share of the files in the page cache from which on ranks copy from mappings \[%\].
const RESIDENT_PERCENT: u32 = 90;
/// The same for a loader that has planned so far. Where the files are slightly larger than the page
/// cache, nine tenths may be there now, and others when they are needed.
pub(crate) const LATER_RESIDENT_PERCENT: u32 = 95;

/// Whether such a share of the pages is in the page cache, as far as probes tell that are spread
/// over the files. A probe is one page: containers have pages without samples, which no reader
/// fetches, and one of them would be missing in a longer range.
pub(crate) fn is_resident(mappings: &Mappings, index: &Index, percent: u32) -> bool {
    /// In all; a probe that is answered by the kernel takes up to 55 us.
    const PROBES: usize = 4096;
    const PROBES_OF_SHARD: usize = 256;
    /// Of few probes in each of many shards, not all are at the start.
    const PLACES: u64 = 8;
    let shards = index.shards().len().max(1);
    let probes = (PROBES / shards).clamp(1, PROBES_OF_SHARD) as u64;
    let (mut probed, mut resident) = (0_u32, 0_u32);
    for (number, shard) in index.shards().iter().enumerate().step_by(shards.div_ceil(PROBES)) {
        let apart = shard.bytes / probes;
        for probe in (0..probes).filter(|_| shard.bytes > 0) {
            let offset = apart * probe + apart / PLACES * (number as u64 % PLACES);
            probed += 1;
            resident += u32::from(mappings.resident(ShardId(number as u32), offset, 1));
        }
    }
    resident * 100 >= probed * percent
}
