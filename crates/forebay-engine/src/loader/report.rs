//! Reports of a loader: counters, bad samples, and decisions.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use forebay_plan::config::{self as decisions, AccessChoice, IoMode, MemoryBound, Settings};
use forebay_plan::{Copies, LastBatch, Mixture, NoCopies, Order, OrderKind, Stop};
use forebay_types::CHUNK_BYTES;
use serde_json::{Value, json};

use crate::base::fallback::{Fallback, record};
use crate::config::Findings;
use crate::config::options::Options;
use crate::config::shares::JobShares;
use crate::config::tiers::TierPlan;
use crate::loader::Engine;
use crate::mesh::FailureSink;
use crate::shm::counters::{self, COUNTER_NAMES, LEVEL_COLUMNS, LEVEL_NAMES, Level, STORE_LEVEL_NAMES};
use crate::shm::region::RankSlot;
use crate::store::{Store, StorePlan, request_limits};

/// Values of [`LEVEL_COLUMNS`].
pub type LevelValues = [u64; LEVEL_COLUMNS.len()];

impl Engine {
    /// Cores that this rank may use: its part of those of the node, by affinity masks and quotas.
    pub fn cores(&self) -> usize {
        self.context.cores
    }

    /// Samples of the dataset.
    pub fn samples(&self) -> u64 {
        self.context.findings.data.samples
    }

    /// Batch buffers of each rank.
    pub fn batch_buffers(&self) -> usize {
        self.context.settings.region.buffers
    }

    /// Counters of this rank by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        if let Some(links) = &self.context.links {
            self.failure_detector.count(links.messages(), links.received());
        }
        self.context.count_copied();
        let values = counters::read(self.context.slot());
        COUNTER_NAMES.iter().map(|(_, name)| *name).zip(values).collect()
    }

    /// Counters added up over the ranks of the node, by name.
    pub fn node_counters(&self) -> Vec<(&'static str, u64)> {
        let mut sums = vec![0; COUNTER_NAMES.len()];
        for slot in self.context.region.ranks() {
            for (sum, value) in sums.iter_mut().zip(counters::read(slot)) {
                *sum += value;
            }
        }
        COUNTER_NAMES.iter().map(|(_, name)| *name).zip(sums).collect()
    }

    /// The columns of each storage level, by name: of this rank, and summed over the ranks of the
    /// node.
    pub fn levels(&self) -> [Vec<(String, LevelValues)>; 2] {
        let names = self.level_names();
        let sum = |slots: &[RankSlot]| {
            let columns = |level| {
                let mut sums = LevelValues::default();
                for slot in slots {
                    for (sum, value) in sums.iter_mut().zip(counters::read_level(slot, level)) {
                        *sum += value;
                    }
                }
                sums
            };
            names.iter().map(|(level, name)| (name.clone(), columns(*level))).collect()
        };
        let all = self.context.region.ranks();
        let own = self.context.local_rank();
        [sum(&all[own..=own]), sum(all)]
    }

    /// Bytes that each storage level delivered to this rank for the last epochs: (epoch, bytes by
    /// name).
    pub fn level_bytes_by_epoch(&self) -> Vec<(u64, Vec<(String, u64)>)> {
        let (levels, names): (Vec<Level>, Vec<String>) = self.level_names().into_iter().unzip();
        let known = self.context.epoch_reads.levels(&levels).into_iter();
        known.map(|(epoch, bytes)| (epoch, names.iter().cloned().zip(bytes).collect())).collect()
    }

    fn level_names(&self) -> Vec<(Level, String)> {
        let tiers = self.context.tier_plan.iter().flat_map(|plan| &plan.levels).enumerate();
        let has_share = self.context.store.is_some() || self.context.resident_plan.is_some();
        let of_store = STORE_LEVEL_NAMES.iter().filter(|_| has_share);
        let known = LEVEL_NAMES.iter().chain(of_store).map(|(level, name)| (*level, (*name).to_owned()));
        known.chain(tiers.map(|(place, tier)| (Level::Tier(place), tier.path.clone()))).collect()
    }

    /// Bytes read by this rank's readers for the last epochs: (epoch, bytes).
    pub fn read_bytes_by_epoch(&self) -> Vec<(u64, u64)> {
        self.context.epoch_reads.all()
    }

    /// The bad samples that this rank has met and replaced, and the error of each.
    pub fn bad_samples(&self) -> Vec<(u64, String)> {
        self.context.bad_samples.list()
    }

    /// Decisions, findings and fallbacks, as facts: `Loader.config`, whose keys docs/metrics.md
    /// lists. [`Engine::fields`] returns the fields of a batch.
    pub fn config(&self) -> Value {
        let context = &self.context;
        let (settings, order, files) = (&context.settings, &context.order, &context.files);
        let Findings { data, storage, budget, index, retained_bytes, .. } = &context.findings;
        let (group_samples, group_window) = match order.kind() {
            OrderKind::Group { samples, window } => (Some(samples), Some(window)),
            _ => (None, None),
        };
        let is_endless = order.mixture().is_some_and(|mixture| mixture.stop() == Stop::Never);
        json!({
            "data": {
                "samples": data.samples,
                "record_bytes": data.record_bytes,
                "file_bytes": data.file_bytes,
                "unit_samples": data.unit_samples,
                "file_system": files.file_system_name(),
                "is_local": storage.source == decisions::StorageKind::LocalDisk,
            },
            "order": {
                "kind": context.options.order.kind,
                "steps": (!is_endless).then_some(self.steps_per_epoch()),
                "global_batch": order.global_batch(),
                "last_batch": order.spec().last_batch.name(),
                "ends": ends(order),
                "expected_epochs": context.options.expected_epochs,
                "lanes": order.lanes(),
                "allowed_ranks": order.allowed_ranks(),
                "group_samples": group_samples,
                "group_window": group_window,
                "mixture": order.mixture().map(|mixture| self.mixture(mixture)),
                "local": self.locality(),
                "streaming": self.streaming(),
                "shuffle_quality": self.shuffle_quality(),
            },
            "index": index,
            "reading": {
                "locate": context.options.strategy.locate,
                "io_mode": io_mode(settings.mode),
                "roots": settings.mode.has_roots(),
                "access": access(settings),
                "direct": settings.direct,
                "drops_behind": settings.drops_behind,
                "mapping": settings.mapping,
                "read_ahead": settings.read_ahead,
                "readers": settings.region.readers,
                "max_read_bytes": settings.limits.max_read_bytes,
                "gap_bytes": settings.limits.gap_bytes,
                "first_segment_steps": settings.first_segment_steps,
                "segment_steps": settings.segment_steps,
                "checksums": settings.checksums,
                "decode_amplification": settings.decode_amplification,
            },
            "memory": {
                "requested_bytes": budget.requested_bytes,
                "is_default": budget.is_default,
                "bound": bound_name(budget.bound),
                "bound_bytes": budget.bound.bytes(),
                "is_half_of_address_space": budget.is_half_of_address_space,
                "held_bytes": budget.held_bytes,
                "retained_bytes": retained_bytes,
                "node_bytes": storage.memory_bytes,
                "budget_bytes": settings.memory_bytes,
                "minimum_bytes": settings.minimum_bytes,
                "on_loan": settings.on_loan,
                "region_bytes": settings.region_bytes,
                "staging_bytes": settings.region.staging_bytes,
                "kept_unit_bytes": settings.kept_unit_bytes,
                "batch_buffers": settings.region.buffers,
                "batch_buffer_bytes": settings.region.buffer_bytes,
            },
            "tiers": context.tier_plan.as_ref().map(tiers),
            "store": context.store_plan.as_ref().zip(context.store.as_deref()).map(|both| store(both, &context.options)),
            "linked_nodes": self.failure_detector.nodes.as_ref().map(|nodes| nodes.0.len()),
            "fallbacks": self.fallbacks(),
            "now": self.now(),
        })
    }

    /// The sources of a mixture, and how often an epoch passes each.
    fn mixture(&self, mixture: &Mixture) -> Value {
        let drawn = (mixture.stop() != Stop::Never).then(|| self.context.order.spec().samples as f64);
        let sources = mixture.sources().iter().enumerate().map(|(place, source)| {
            let share = mixture.share(place);
            json!({
                "name": source.name,
                "weight": share,
                "samples": source.samples,
                "passes": drawn.map(|drawn| drawn * share / source.samples as f64),
            })
        });
        json!({ "stop": mixture.stop().name(), "sources": sources.collect::<Vec<_>>() })
    }

    /// How the order gives samples to the nodes that hold them, if it does.
    fn locality(&self) -> Option<Value> {
        let order = &self.context.order;
        let OrderKind::LocalShuffle { steps } = order.kind() else { return None };
        let Some(JobShares { shares, unit_bytes, own_node }) = &self.context.job_shares else {
            return Some(json!({ "pool_steps": steps, "nodes": 1, "local_share": 1.0, "held_share": 1.0 }));
        };
        let samples = order.spec().samples.max(1) as f64;
        Some(json!({
            "pool_steps": steps,
            "nodes": shares.nodes().len(),
            "local_share": 1.0 - shares.moved(steps * order.spec().batch),
            "held_share": shares.held_samples(*own_node) as f64 / samples,
            "units": shares.units(),
            "unit_bytes": unit_bytes,
        }))
    }

    /// What the nodes keep and stream, if the order is `opportunistic`.
    fn streaming(&self) -> Option<Value> {
        let context = &self.context;
        let (plan, job) = context.resident_plan.as_ref().zip(context.job_shares.as_ref())?;
        let order = &context.order;
        let (shares, samples) = (&job.shares, order.spec().samples.max(1) as f64);
        let nodes = shares.nodes().len();
        let kept = |node: usize| order.resident_and_streamed(node).map_or(0, |(resident, _)| resident);
        let entropy = order.draw_entropy();
        Some(json!({
            "nodes": nodes,
            "resident_share": (0..nodes).map(kept).sum::<u64>() as f64 / samples,
            "own_resident_share": kept(job.own_node) as f64 / samples,
            "resident_bytes": plan.resident_bytes,
            "loaded_bytes": plan.loaded_bytes,
            "streamed_bytes": plan.streamed_bytes,
            "streamed_bytes_without_windows": plan.unwindowed_bytes,
            "units": shares.units(),
            "unit_bytes": job.unit_bytes,
            "streamed_units": order.streamed_units().len(),
            "window_units": plan.window,
            "window_bytes": plan.window_bytes,
            "staging_bytes": plan.staging_bytes,
            "entropy_bound": plan.entropy,
            "order_entropy": entropy.map(|entropy| entropy.order_entropy),
            "cross_entropy": entropy.map(|entropy| entropy.cross_entropy),
        }))
    }

    /// Facts that change while the loader lives.
    fn now(&self) -> Value {
        let region = &self.context.region;
        let groups = region.gate().groups.load(Ordering::Acquire);
        json!({
            "epochs": self.known_epochs(),
            "touched_bytes": region.touched_bytes(),
            "huge_page_bytes": self.huge_pages.then(|| region.memory().huge_bytes()),
            "stagger_groups": (groups > 0).then_some(groups),
            "mapped_from_epoch": region.mapped_epochs().first(),
            "all_batch_buffers_kept": self.context.buffers.ring.keeps_all(),
        })
    }

    /// All fallbacks: those of the leader, then those of this rank.
    fn fallbacks(&self) -> Vec<Fallback> {
        let mut all = self.context.findings.fallbacks.clone();
        for fallback in self.context.fallbacks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            record(&mut all, fallback.clone());
        }
        all
    }
}

/// The in-memory store.
fn store((plan, store): (&StorePlan, &Store), options: &Options) -> Value {
    let (chunks, held, own) = plan.chunks();
    let limits = request_limits(options);
    json!({
        "nodes": plan.nodes(),
        "chunks": chunks,
        "held_chunks": held,
        "own_chunks": own,
        "share_bytes": own * CHUNK_BYTES,
        "loaded_bytes": plan.loaded_bytes,
        "kept_bytes": plan.kept_bytes,
        "is_kept": plan.is_kept,
        "transport": store.ucx().map(|ucx| if ucx.is_ok() { "ucx" } else { "tcp" }),
        "ucx_transports": store.ucx().and_then(|ucx| ucx.as_ref().ok()),
        "no_ucx": store.ucx().and_then(|ucx| ucx.as_ref().err()),
        "probe": plan.probe,
        "requests_per_node": limits.requests,
        "request_bytes": limits.bytes,
    })
}

/// How the node uses its tiers.
fn tiers(plan: &TierPlan) -> Value {
    let because = |reason, pays_from: Option<u64>| json!({ "reason": reason, "pays_from": pays_from });
    let no_copies = match &plan.copies {
        Copies::Pieces => None,
        Copies::Off(NoCopies::SourceInMemory) => Some(because("source_in_memory", None)),
        Copies::Off(NoCopies::OneEpoch) => Some(because("one_epoch", None)),
        Copies::Off(NoCopies::CostMore { pays_from, .. }) => Some(because("cost_more", *pays_from)),
    };
    json!({
        "levels": plan.levels,
        "chunks": plan.chunks,
        "nodes": plan.nodes,
        "copies": no_copies.is_none(),
        "no_copies": no_copies,
        "buffer_bytes": plan.buffer_bytes,
        "forecast": plan.forecast,
    })
}

fn io_mode(mode: IoMode) -> &'static str {
    match mode {
        IoMode::Mapped => "mapped",
        IoMode::Store => "store",
        IoMode::Planned { .. } => "planned",
        IoMode::CursorWalk { .. } => "cursor_walk",
    }
}

/// The access method that was decided.
fn access(settings: &Settings) -> AccessChoice {
    match settings.access {
        AccessChoice::Auto if settings.mode.is_alone() && settings.mode != IoMode::Store => {
            AccessChoice::Mmap
        }
        AccessChoice::Auto => AccessChoice::Pread,
        choice => choice,
    }
}

fn bound_name(bound: MemoryBound) -> &'static str {
    match bound {
        MemoryBound::AddressSpace(_) => "address_space",
        MemoryBound::Free(_) => "free",
    }
}
/// What an epoch has with each way to end it.
fn ends(order: &Order) -> Vec<Value> {
    let samples = order.spec().samples;
    let end = |(last, steps, delivered): (LastBatch, u64, u64)| {
        json!({
            "last_batch": last.name(),
            "steps": steps,
            "delivered": delivered,
            "repeated": delivered.saturating_sub(samples),
            "left_out": samples.saturating_sub(delivered),
        })
    };
    order.ends().into_iter().map(end).collect()
}
