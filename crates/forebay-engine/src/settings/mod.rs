//! What the leader of a node decides, so that all its processes compute the same plan.
//!
//! The decisions follow from the options, the index, the file system and the machine; every one of them leaves a line
//! for `explain()`. Nothing here changes which samples are delivered: that is the order's alone.

//!
//! `budget` is what a loader may use, `approach` how its node touches storage, `sizes` what that takes, `words` why in words.

mod approach;
mod budget;
mod sizes;
mod words;

use forebay_format::Index;
use forebay_io::{Mappings, ShardFiles};
use forebay_plan::{IoLimits, Kind, Order, OrderSpec};
use serde::{Deserialize, Serialize};

use self::approach::Approach;
pub use self::budget::{Budget, budget, may_map};
use self::sizes::{Load, Sizes};
use crate::error::Error;
use crate::options::{AccessChoice, Locate, Options};
use crate::region::{ALIGN, RegionLayout};
use crate::shuffling;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Small reads that share a block.
const READS_PER_BLOCK: u32 = 64;
/// Requests under way per `io_uring` reader.
const DEPTH: u32 = 16;
/// A sample at least this large is read straight into its batch where nothing else shares the read: from here on the
/// second copy costs more than the lost coalescing.
const IN_PLACE_BYTES: u64 = 64 * KIB;

/// The decisions.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools)] // independent facts, not a state in disguise
pub struct Settings {
    /// Sizes of the shared region.
    pub region: RegionLayout,
    /// Samples per group, where the order groups.
    pub group_samples: u64,
    /// Groups per window, where the order groups.
    pub group_window: u64,
    /// Lanes.
    pub lanes: u64,
    /// Steps that are read together at the beginning, for step-wise orders.
    pub first_tranche_steps: u64,
    /// The same later.
    pub tranche_steps: u64,
    /// Whether the data set was found in the page cache.
    pub warm: bool,
    /// How samples are found.
    pub locate: Locate,
    /// Whether the readers are the node's roots: they alone touch storage, for all its ranks.
    pub roots: bool,
    /// Whether a root may read as many steps at once as it likes.
    pub coalesces: bool,
    /// Whether every rank gets its samples by itself, with nothing planned or read for others: where it walks with a
    /// cursor, and where the samples are in the page cache, from which a copy costs less than a plan.
    pub alone: bool,
    /// How storage is touched.
    pub access: AccessChoice,
    /// Whether every rank maps the files.
    pub maps: bool,
    /// Whether reads go around the page cache.
    pub direct: bool,
    /// Requests under way per `io_uring` reader.
    pub depth: u32,
    /// Gap up to which reads are joined \[bytes\].
    pub gap_bytes: u64,
    /// Largest read \[bytes\].
    pub read_bytes: u64,
    /// No read crosses a multiple of this in its file \[bytes\].
    pub boundary_bytes: Option<u64>,
    /// Smallest sample that is read straight into its batch \[bytes\].
    pub in_place_bytes: Option<u64>,
    /// Whether the checksum of every record is computed.
    pub checksums: bool,
    /// Room for the values of the ragged fields of a batch \[bytes\].
    pub ragged_bytes: u64,
    /// Bytes that the loader may use on this node.
    pub memory_bytes: u64,
    /// Whether it reserves none of them, but takes them while it is iterated (`registry.rs`).
    pub on_loan: bool,
    /// Why, in words.
    pub reasons: Vec<String>,
}

impl Settings {
    /// Whether roots tell the planners where samples lie.
    #[must_use]
    pub fn has_finds(&self) -> bool {
        self.region.find_steps > 0
    }

    /// Roots that find samples: as many as there are readers, but one where they take turns in the whole job.
    #[must_use]
    pub fn finders(&self) -> usize {
        match self.locate {
            Locate::Handoff => 1,
            _ => self.region.readers,
        }
    }

    /// Whether every rank walks through the container for itself.
    #[must_use]
    pub fn walks_alone(&self) -> bool {
        self.alone && self.locate.walks()
    }

    /// What the plan must keep to.
    pub fn io_limits(&self) -> IoLimits {
        IoLimits {
            gap_bytes: self.gap_bytes,
            max_read_bytes: self.read_bytes,
            align_bytes: if self.direct { ALIGN } else { 1 },
            boundary_bytes: self.boundary_bytes,
            in_place_bytes: self.in_place_bytes,
            block_bytes: self.read_bytes,
            reads_per_block: READS_PER_BLOCK,
        }
    }
}

/// The order that the options ask for, with these group sizes.
pub fn make_order(
    options: &Options,
    samples: u64,
    group_samples: u64,
    group_window: u64,
    lanes: Option<u64>,
) -> Result<Order, Error> {
    Ok(Order::new(OrderSpec {
        kind: options.kind(group_samples, group_window)?,
        last: options.last()?,
        seed: options.seed,
        samples,
        batch: options.batch_size,
        ranks: u64::from(options.size),
        lanes: lanes.or(options.order.lanes),
    })?)
}

/// Decides for a node. `ragged_growth` is that of [`room::growth`](crate::room::growth).
///
/// # Errors
/// Options that contradict the data set, and a budget that is too small: the message says the least that works.
pub fn decide(
    options: &Options,
    index: &Index,
    files: &ShardFiles,
    mappings: Option<&Mappings>,
    ragged_growth: f64,
    mut budget: Budget,
) -> Result<Settings, Error> {
    let mut reasons = std::mem::take(&mut budget.reasons);
    let samples = index.samples();
    let mean_bytes = index.summary().record_bytes as f64 / samples.max(1) as f64;
    let file_bytes: u64 = index.shards().iter().map(|shard| shard.bytes).sum();
    // What one sample costs in the landing ring: its record with the padding that lies between records.
    let landed_bytes =
        mean_bytes.max((file_bytes as f64 / samples.max(1) as f64).min(mean_bytes + 2.0 * ALIGN as f64));
    let step_bytes = (options.batch_size * options.local_ranks.len() as u64) as f64 * landed_bytes;
    let step_bytes = step_bytes as u64;

    let (group_samples, group_window) = shuffling::group_of(index);
    let order = make_order(options, samples, group_samples, group_window, None)?;
    let kind = options.kind(group_samples, group_window)?;
    words::explain_order(options, &order, kind, &mut reasons);
    let approach = Approach::choose(options, index, files, mappings, kind, step_bytes, &mut reasons);
    let load = Load {
        options,
        index,
        order: &order,
        kind,
        approach: &approach,
        landed_bytes,
        step_bytes,
        ragged_growth,
    };
    let sizes = load.fit(&budget, &mut reasons)?;
    words::explain_reading(options, &approach, kind, index.has_checksums(), &mut reasons);
    reasons.push(format!(
        "memory: the least that works for these options is {} MiB",
        sizes.least_bytes.div_ceil(MIB)
    ));

    let (group_samples, group_window) = match kind {
        Kind::Group { samples, window } => (samples, window),
        _ => (group_samples, group_window),
    };
    let Sizes { region, memory_bytes, on_loan, first_tranche_steps, tranche_steps, ragged_bytes, .. } = sizes;
    let Approach { warm, access, direct, roots, coalesces, alone, gap_bytes, read_bytes, .. } = approach;
    Ok(Settings {
        region,
        group_samples,
        group_window,
        lanes: order.lanes(),
        first_tranche_steps,
        tranche_steps,
        warm,
        locate: options.locate,
        roots,
        coalesces,
        alone,
        access,
        maps: mappings.is_some(),
        direct,
        depth: DEPTH,
        gap_bytes,
        read_bytes,
        // Stripes are a power of two from 64 KiB on, nearly always of 1 MiB or more, and so are reads.
        boundary_bytes: (!files.is_local()).then_some(read_bytes),
        // Where every sample is a file on another node, readers wait for many of them side by side; a batch would for one at a time.
        in_place_bytes: (!direct && !roots && (files.is_local() || !files.are_of_samples()))
            .then_some(IN_PLACE_BYTES),
        checksums: options.checksums && index.has_checksums(),
        ragged_bytes,
        memory_bytes,
        on_loan,
        reasons,
    })
}
