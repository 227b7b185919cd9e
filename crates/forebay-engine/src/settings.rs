//! What the leader of a node decides, so that all its processes compute the same plan.
//!
//! The decisions follow from the options, the index, the file system and the machine; every one of them leaves a line
//! for `explain()`. Nothing here changes which samples are delivered: that is the order's alone.

use forebay_format::Index;
use forebay_plan::{Order, OrderSpec, Traits, default_group};
use forebay_types::Rank;
use serde::{Deserialize, Serialize};

use crate::access::{Mappings, ShardFiles};
use crate::batch::BatchLayout;
use crate::error::Error;
use crate::node::memory;
use crate::options::{AccessChoice, Locate, MOST_READERS, Options};
use crate::region::{ALIGN, RegionLayout};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Batch buffers per rank: one in the user's hands, one he still holds while he asks for the next, two being filled.
const BUFFERS: usize = 4;
/// The same where they are small, so that short delays of a busy core are not felt.
const SMALL_BUFFERS: usize = 8;
/// Size up to which a batch buffer is small \[bytes\].
const SMALL_BUFFER_BYTES: u64 = 2 * MIB;
/// Readers per node on a local disk: one fills storage up to 0.8 GB/s, two give 1.5 times that on warm data (facts: readers).
const LOCAL_READERS: usize = 2;
/// The same on a file system of other nodes, whose latency only requests side by side can hide: as many as a Lustre client has
/// under way per server. They sleep nearly all the time.
const NETWORK_READERS: usize = 8;
/// The same where a reader has as many requests under way as a large read is cut into.
const COALESCING_READERS: usize = 2;
/// Ranks of a node that one root serves (Pumma et al.: one root per node, two on nodes with more ranks than this).
const RANKS_PER_ROOT: usize = 16;
/// Steps that the roots find samples ahead of the slowest planner: as many as are planned ahead of the readers, and two more.
const FIND_AHEAD_TRANCHES: u64 = 4;
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
/// A sample at least this large is read straight into its batch where nothing else shares the read: from here on the
/// second copy costs more than the lost coalescing.
const IN_PLACE_BYTES: u64 = 64 * KIB;
/// Bytes of one tranche of a step-wise order: larger ones coalesce better and cover longer stalls of the storage.
const TRANCHE_BYTES: u64 = 16 * MIB;
/// The same where every rank walks through a region of its own: the regions are far apart, and on disks every change from
/// one to the other is a seek.
const NETWORK_CONTIGUOUS_TRANCHE_BYTES: u64 = 64 * MIB;
/// Bytes of the first tranche: the first batches should be there soon.
const FIRST_TRANCHE_BYTES: u64 = 4 * MIB;
/// The same where neighbours are read together anyway and the disk is local: smaller ones stay in the processor's cache, and cost
/// fewer page faults at the start.
const LOCAL_FORWARD_TRANCHE_BYTES: u64 = 4 * MIB;
/// The same for roots that may read as many steps as they like at once.
const COALESCED_TRANCHE_BYTES: u64 = 32 * MIB;
/// Tranches that the landing ring holds at once: gathered, filled, being planned, and one for the ring's seam.
const TRANCHES: u64 = 4;
/// The landing ring is a multiple of this \[bytes\]; as many blocks of this size are alive at most.
const LANDING_STEP_BYTES: u64 = 64 * KIB;
/// Small reads that share a block.
const READS_PER_BLOCK: u32 = 64;
/// Requests under way per `io_uring` reader.
const DEPTH: u32 = 16;

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
    /// Whether reads go around the page cache.
    pub direct: bool,
    /// Whether the readers find out how many of them should read at once, rather than all of them: where the order walks
    /// forward, so that there are turns to be kept.
    pub paced: bool,
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
    /// Mean record \[bytes\], for laying out batches of ragged fields.
    pub ragged_bytes: u64,
    /// Bytes that the loader may use on this node.
    pub memory_bytes: u64,
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

    /// Blocks that may be under way at the beginning: one where it is large, so that its requests reach the storage in order.
    pub(crate) fn first_width(&self) -> u64 {
        if self.coalesces { 1 } else { self.region.readers as u64 }
    }

    /// Traits of the storage for the plan.
    pub fn traits(&self) -> Traits {
        Traits {
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

/// What a loader may use on its node.
#[derive(Debug)]
pub struct Budget {
    /// What was asked for, or is the default \[bytes\].
    pub asked_bytes: u64,
    /// What other loaders and kept data hold of it \[bytes\].
    pub held_bytes: u64,
    /// Data that came with the index and are kept in memory; among what is held \[bytes\].
    pub kept_bytes: u64,
    /// Why it is so much, in words.
    pub reasons: Vec<String>,
}

impl Budget {
    /// What is left for this loader \[bytes\]: nothing where others, which were given more, hold more than was asked for.
    pub fn left_bytes(&self) -> u64 {
        self.asked_bytes.saturating_sub(self.held_bytes)
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

/// Decides for a node.
///
/// # Errors
/// Options that contradict the data set, and a budget that is too small: the message says the least that works.
pub fn decide(
    options: &Options,
    index: &Index,
    files: &ShardFiles,
    mappings: Option<&Mappings>,
    budget: Budget,
) -> Result<Settings, Error> {
    let memory_bytes = budget.left_bytes();
    let Budget { asked_bytes, held_bytes, kept_bytes, mut reasons } = budget;
    if kept_bytes > 0 {
        reasons.push(format!(
            "data: the values lie among the tree's pages, all of which the index build read; {} MiB of them are kept in \
             memory and read from there",
            kept_bytes / MIB
        ));
    }
    let summary = index.summary();
    let samples = index.samples();
    let mean_bytes = summary.record_bytes as f64 / samples.max(1) as f64;
    let file_bytes: u64 = index.shards().iter().map(|shard| shard.bytes).sum();
    // What one sample costs in the landing ring: its record with the padding that lies between records.
    let landed_bytes =
        mean_bytes.max((file_bytes as f64 / samples.max(1) as f64).min(mean_bytes + 2.0 * ALIGN as f64));

    let (group_samples, group_window) = default_group(samples, mean_bytes, index.unit_samples());
    let order = make_order(options, samples, group_samples, group_window, None)?;
    let kind = options.kind(group_samples, group_window)?;
    if let forebay_plan::Kind::Group { samples, window } = kind {
        reasons.push(format!(
            "order: groups of {samples} samples, shuffled in windows of {window}, in {} lanes; the same stream on {} ranks",
            order.lanes(),
            order.allowed_ranks().iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
        ));
    } else {
        reasons.push(format!("order: {}", options.order.kind));
    }
    let quality = order.quality();
    if let (Some(entropy), Some(pairs), Some(shuffled)) =
        (quality.order_entropy, quality.same_group_pairs, quality.same_group_pairs_of_shuffle)
    {
        reasons.push(format!(
            "shuffle quality: order entropy {entropy:.3} of a full shuffle's; two samples of a global batch share a group \
             with chance {pairs:.4}, {shuffled:.4} in a full shuffle"
        ));
    }

    if let Some(epochs) = options.epochs {
        reasons.push(format!("epochs: {epochs} will be asked for, and nothing is read ahead beyond them"));
    }

    let ranks = options.local_ranks.len();
    let warm = mappings.is_some_and(|mappings| mostly_resident(mappings, index));
    let memory_total = memory::limit_bytes();
    let direct = options.access != AccessChoice::Mmap
        && options.direct.unwrap_or(!warm && file_bytes > memory_total / 2)
        && files.direct_works();
    if options.direct == Some(true) && !direct {
        let why = files.direct_refused().unwrap_or("this file system refuses O_DIRECT");
        reasons.push(format!("direct: {why}; reads go through the page cache"));
    }
    let access = match options.access {
        AccessChoice::Auto if direct && crate::access::probe_io_uring().is_ok() => AccessChoice::IoUring,
        choice => choice,
    };
    reasons.push(match (options.access, warm) {
        (AccessChoice::Auto, true) => {
            "access: the file is local and in the page cache, so every rank copies its samples from a mapping of it; what \
             is missing there is read by pread"
                .into()
        }
        (AccessChoice::Auto, false) => format!(
            "access: {} ({}{}); what is found in the page cache later is copied from a mapping",
            if access == AccessChoice::IoUring { "io_uring" } else { "pread" },
            files.file_system_name(),
            if direct { ", around the page cache: the data set is larger than half the memory" } else { "" },
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
    let is_forward = matches!(kind, forebay_plan::Kind::Sequential | forebay_plan::Kind::Contiguous);
    // What lies in one piece is read in one go: a disk that serves others in between pays for every return, once per go. What is
    // coded wants many readers, which decode.
    let coalesces = options.coalesce.is_none()
        && !options.locate.walks()
        && (roots
            || (is_forward
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
        None if coalesces => COALESCING_READERS,
        None => NETWORK_READERS,
    };
    let step_bytes = ((options.batch_size * ranks as u64) as f64 * landed_bytes) as u64;
    let paced = is_forward && options.readers.is_none() && !roots && !files.is_local() && readers > 1;
    let tranche_bytes = match (options.coalesce, kind) {
        (Some(steps), _) => step_bytes.saturating_mul(u64::from(steps)).max(LOCAL_FORWARD_TRANCHE_BYTES),
        (None, forebay_plan::Kind::Contiguous) if !files.is_local() => NETWORK_CONTIGUOUS_TRANCHE_BYTES,
        (None, _) if coalesces && roots => COALESCED_TRANCHE_BYTES,
        (None, _) if is_forward && files.is_local() => LOCAL_FORWARD_TRANCHE_BYTES,
        (None, _) => TRANCHE_BYTES,
    };

    let ragged_bytes = ragged_capacity(options.batch_size, mean_bytes, summary.longest_record_bytes);
    let layout =
        BatchLayout::new(index.fields(), options.batch_size, ragged_bytes).ok_or_else(|| Error::Options {
            message: format!("a batch of {} samples is larger than 64 bits can say", options.batch_size),
            hint: String::new(),
        })?;
    let mut region = RegionLayout {
        ranks,
        readers,
        find_steps: 0,
        step_needs: options.batch_size * ranks as u64,
        blocks: 0,
        landing_bytes: 0,
        buffer_bytes: layout.bytes,
        buffers: match options.buffers {
            Some(buffers) => buffers as usize,
            None if layout.bytes <= SMALL_BUFFER_BYTES => SMALL_BUFFERS,
            None => BUFFERS,
        },
    };
    let node_ranks: Vec<Rank> = options.local_ranks.iter().map(|rank| Rank(*rank)).collect();
    let grouped = matches!(kind, forebay_plan::Kind::Group { .. });
    let tranches = options.group_buffers.map_or(TRANCHES, u64::from);
    let (least_landing, wanted_landing) = if alone {
        // Nothing lands: every rank copies from its own mapping.
        (0, 0)
    } else if grouped {
        let least = order.least_landing_bytes(landed_bytes, node_ranks.len());
        let window = (least / (order.lanes() * ranks as u64 / u64::from(options.size)).max(1)).max(MIB);
        let wanted = match options.group_buffers {
            // The rest is for the ring's seam.
            Some(buffers) => least.saturating_mul(u64::from(buffers)) + least / 8,
            None => least + least / 8 + 3 * window,
        };
        (least, wanted)
    } else {
        let tranche = step_bytes.max(tranche_bytes);
        (step_bytes.min(tranche_bytes), tranche.saturating_mul(tranches))
    };
    // More than the data set twice (this epoch and the next) is never read ahead.
    let whole = (2.0 * landed_bytes * samples as f64) as u64 + 2 * read_bytes;
    let up = |bytes: u64| bytes.min(whole).next_multiple_of(LANDING_STEP_BYTES);
    let tranche_steps = |landing: u64, bytes: u64| {
        let fitting = (bytes.min(landing / tranches) / step_bytes.max(1)).max(1);
        options.coalesce.map_or(fitting, |steps| fitting.min(u64::from(steps)))
    };
    let size = |region: &mut RegionLayout, landing: u64| {
        region.landing_bytes = up(landing);
        // A block holds one read of at least a page.
        let blocks = (region.landing_bytes / LANDING_STEP_BYTES).clamp(256, 1 << 20) as usize;
        region.blocks = if alone { 0 } else { blocks };
        if options.locate.walks() && !alone {
            region.find_steps = FIND_AHEAD_TRANCHES * tranche_steps(region.landing_bytes, tranche_bytes);
        }
        region.total_bytes()
    };
    let mut fits = size(&mut region, wanted_landing) <= memory_bytes;
    if !fits && options.buffers.is_none() {
        region.buffers = 2;
        fits = size(&mut region, wanted_landing) <= memory_bytes;
    }
    if !fits {
        let least = size(&mut region, least_landing);
        if least > memory_bytes {
            let held = match held_bytes {
                0 => String::new(),
                held => format!(", of which other loaders and kept data hold {held},"),
            };
            return Err(Error::Options {
                message: format!(
                    "memory={asked_bytes} bytes{held} is too little for {ranks} rank(s) of this node with batches of {}: \
                     the least that works is {least} bytes ({} for batch buffers, {} for landing blocks)",
                    options.batch_size,
                    region.buffer_bytes * (region.buffers * ranks) as u64,
                    region.landing_bytes,
                ),
                hint: format!(
                    "give memory=\"{}MiB\", a smaller batch, or a smaller group",
                    (held_bytes + least).div_ceil(MIB)
                ),
            });
        }
        let rest = memory_bytes - least + region.landing_bytes;
        size(&mut region, rest.saturating_sub(LANDING_STEP_BYTES).max(least_landing));
        while region.total_bytes() > memory_bytes && region.landing_bytes > LANDING_STEP_BYTES {
            let less = region.landing_bytes - LANDING_STEP_BYTES;
            size(&mut region, less);
        }
    }
    let landing = match region.landing_bytes {
        0 => "no landing blocks".into(),
        bytes => format!("{} MiB of landing blocks", bytes / MIB),
    };
    reasons.push(format!(
        "memory: {} MiB of {} MiB on this node: {landing}, {} batch buffers of {} KiB for each of {ranks} rank(s)",
        region.total_bytes() / MIB,
        memory_bytes / MIB,
        region.buffers,
        region.buffer_bytes / KIB,
    ));
    match options.locate {
        Locate::Cursor if alone => reasons.push(
            "locate: every rank walks from record to record by itself and copies from its own mapping; a page that is \
             missing is a page fault"
                .into(),
        ),
        Locate::Cursor => reasons.push(format!(
            "locate: {readers} root(s) of this node walk from record to record through a mapping and tell the other ranks \
             what they find"
        )),
        Locate::Handoff => reasons.push(format!(
            "locate: one root of the job walks at a time and hands its cursor to the next one, which meanwhile asks for the pages \
             that it will need, on a guess{}",
            match options.links {
                Some(_) => "",
                None if ranks == options.size as usize => "; on one node the only root goes on by itself",
                None => "; the nodes are not linked, so every root goes on by itself, over the records of the others",
            }
        )),
        Locate::Index | Locate::Scan | Locate::Provenance => {}
    }
    reasons.push(if alone {
        "reads: none ahead of time or for other ranks, so there are no readers".into()
    } else {
        format!(
            "reads: up to {} KiB, joined over gaps of {} KiB, by {readers} reader(s) on this node{}",
            read_bytes / KIB,
            gap_bytes / KIB,
            if roots { ", which alone touch storage" } else { "" },
        )
    });
    if let Some(buffers) = options.group_buffers {
        let what = if grouped { "window(s) of each lane" } else { "piece(s) of what is read at once" };
        reasons.push(format!("group buffers: {buffers} {what}, as asked"));
    }
    match options.coalesce {
        Some(_) if grouped => reasons
            .push("coalesce: the order group is read a window at a time, whatever coalesce= says".into()),
        Some(steps) => reasons.push(format!("coalesce: a read spans up to {steps} step(s), as asked")),
        None => {}
    }
    if let Some(groups) = options.stagger {
        let groups = if groups == 0 {
            "as many groups as is measured to be best".into()
        } else {
            format!("{groups} group(s)")
        };
        reasons.push(match options.links {
            Some(_) => format!("stagger: the nodes take turns in {groups}"),
            None if ranks == options.size as usize => {
                "stagger: changes nothing, as there is one node, which has nobody to take turns with".into()
            }
            None => "stagger: changes nothing, as the nodes are not linked".into(),
        });
    }
    let least_memory = region.control_bytes() + up(least_landing) + 2 * region.buffer_bytes * ranks as u64;
    reasons.push(format!(
        "memory: the least that works for these options is {} MiB",
        least_memory.div_ceil(MIB)
    ));

    Ok(Settings {
        first_tranche_steps: tranche_steps(region.landing_bytes, FIRST_TRANCHE_BYTES.min(tranche_bytes)),
        tranche_steps: tranche_steps(region.landing_bytes, tranche_bytes),
        region,
        group_samples: match kind {
            forebay_plan::Kind::Group { samples, .. } => samples,
            _ => group_samples,
        },
        group_window: match kind {
            forebay_plan::Kind::Group { window, .. } => window,
            _ => group_window,
        },
        lanes: order.lanes(),
        warm,
        locate: options.locate,
        roots,
        coalesces,
        alone,
        access,
        direct,
        paced,
        depth: DEPTH,
        gap_bytes,
        read_bytes,
        // Stripes are a power of two from 64 KiB on, nearly always of 1 MiB or more, and so are reads.
        boundary_bytes: (!files.is_local()).then_some(read_bytes),
        in_place_bytes: (!direct && !roots).then_some(IN_PLACE_BYTES),
        ragged_bytes,
        memory_bytes,
        reasons,
    })
}

/// Room for the packed bytes of a ragged field: what a batch holds on average and a quarter more; larger ones get
/// private memory.
fn ragged_capacity(batch: u64, mean_bytes: f64, max_bytes: u64) -> u64 {
    let mean = (batch as f64 * mean_bytes * 1.25) as u64 + max_bytes;
    mean.min(batch.saturating_mul(max_bytes))
}

/// What a loader may use: what was asked for or is the default, less what other loaders of the job hold.
pub fn budget(options: &Options) -> Result<Budget, Error> {
    let available = memory::available_bytes();
    let asked = options.memory_bytes.unwrap_or_else(memory::default_memory_bytes);
    let taken = crate::registry::taken_bytes(options.budget_owner());
    if options.memory_bytes.is_some() && asked > available {
        return Err(Error::Options {
            message: format!("memory={asked} bytes, but this job may use only {available} bytes more on this node"),
            hint: "the limit of the control group counts; ask the scheduler for more memory, or give memory= less".into(),
        });
    }
    let mut reasons = Vec::new();
    if taken > 0 {
        reasons.push(format!("memory: other loaders of this job hold {} MiB of the budget", taken / MIB));
    }
    Ok(Budget { asked_bytes: asked.min(available), held_bytes: taken, kept_bytes: 0, reasons })
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
            resident += u32::from(mappings.resident(forebay_types::ShardId(number as u32), offset, length));
        }
    }
    resident * 10 >= asked * 9
}
