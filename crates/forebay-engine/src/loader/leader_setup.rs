//! The leader's part of creating a loader: the index, the decisions, the memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_format::Index;
use forebay_host as host;
use forebay_io::{Mappings, ShardFiles};
use forebay_plan::config::{Mapping, retained_bytes};
use forebay_plan::{Kind, NodeShares, Order};
use forebay_tier::Client;
use serde::{Deserialize, Serialize};

use crate::base::fallback::{Fallback, Wanted};
use crate::base::memory_ledger;
use crate::config::amplified_decoding;
use crate::config::options::{AccessChoice, Locate, Options};
use crate::config::rank_facts::{RankFacts, cores_of_ranks, min_address_left};
use crate::config::shares::{JobShares, share_out};
use crate::config::strategies::Strategies;
use crate::config::tiers::{self, TierPlan, TierQuestion};
use crate::config::{self, Decision, Findings, NodeLimits, Settings};
use crate::dataset::open::{open_files, open_mappings};
use crate::dataset::ragged_size::expansion_ratio;
use crate::dataset::{IndexedDataset, Loaded};
use crate::error::Error;
use crate::host::Host;
use crate::loader::scanned_index::scanned_index;
use crate::mesh::{Links, Nodes};
use crate::residents::{self, ResidentPlan, ResidentQuestion};
use crate::store::{MadeStore, Server, StorePlan, StoreQuestion, set_up};

/// What the leader sends to the other ranks.
#[derive(Serialize, Deserialize)]
pub(crate) struct Reply {
    pub(crate) settings: Settings,
    /// Cores that each rank may use, by local rank.
    pub(crate) cores: Vec<usize>,
    pub(crate) findings: Findings,
    /// Whether retained values follow the region and the index, one descriptor for each shard.
    pub(crate) retained: bool,
    /// All nodes, if several are linked.
    #[serde(default)]
    pub(crate) nodes: Option<Nodes>,
    /// How the node uses its storage tiers.
    #[serde(default)]
    pub(crate) tiers: Option<TierPlan>,
    /// What each node holds, if the order depends on it.
    #[serde(default)]
    pub(crate) shares: Option<JobShares>,
    /// How to use the in-memory store; the memory of this node's share follows the index.
    #[serde(default)]
    pub(crate) store: Option<StorePlan>,
    /// Which units the nodes keep, in the order `opportunistic`; the memory of those of this node
    /// follows the index.
    #[serde(default)]
    pub(crate) residents: Option<ResidentPlan>,
}

/// What the leader has created: what it sends to the others, and what it keeps itself.
pub(crate) struct LeaderState {
    /// A [`Reply`], as JSON.
    pub(crate) reply: Vec<u8>,
    /// Region, index, and retained values, if any.
    pub(crate) fds: Vec<OwnedFd>,
    pub(crate) own: LeaderOwn,
}

/// What a leader keeps itself; the other ranks have nothing of it.
#[derive(Default)]
pub(crate) struct LeaderOwn {
    pub(crate) share: Option<memory_ledger::Share>,
    /// The shards, open already.
    pub(crate) files: Option<Arc<ShardFiles>>,
    /// Time to locate the samples.
    pub(crate) seek: Duration,
    /// The leader's connection to the tier daemon.
    pub(crate) tiers: Option<Arc<Client>>,
    /// What serves this node's share of the store.
    pub(crate) server: Option<Server>,
}

/// Prepares the index, the settings and the memory. `ranks` are those of the node.
pub(crate) fn lead(
    source: &IndexedDataset,
    options: &Options,
    strategies: &Strategies,
    ranks: &[RankFacts],
    links: Option<&Links>,
    caller: &dyn Host,
) -> Result<LeaderState, Error> {
    let (address_left, cores) = (min_address_left(ranks), cores_of_ranks(ranks));
    let mut budget = config::budget(options, address_left)?;
    let found_budget = budget;
    if let Some(locators) = &strategies.locators {
        if source.dataset().selection().is_some() {
            return Err(Error::Options {
                message: "the strategy finds samples by a cursor, and these are a selection of the records"
                    .into(),
                hint: "use another strategy, or the whole data set".into(),
            });
        }
        locators.check()?;
    }
    if let Some(scanner) = &strategies.scanner {
        scanner.check()?;
    }
    let locates = strategies.locators.is_some();
    let has_store = options.strategy.store.is_some();
    let keep_bytes = retained_bytes(options.strategy.readers, locates, has_store, budget.left_bytes());
    let begun = Instant::now();
    let Loaded { index, bytes, retained, origin, mut fallbacks } = match &strategies.scanner {
        Some(scanner) => scanned_index(source, &**scanner, options, links, caller)?,
        None if options.strategy.locate == Locate::Provenance => source.index_computed(keep_bytes, caller)?,
        None => source.index_keeping(keep_bytes, caller)?,
    };
    let seek = begun.elapsed();
    if index.samples() == 0 {
        return Err(Error::Options { message: "the data set has no samples".into(), hint: String::new() });
    }
    if let Some(retained) = &retained {
        let taken = retained.take_from(options.budget_owner());
        budget = budget.beside(taken);
    }
    let share_retained = || retained.as_ref().map(|retained| retained.share()).transpose();
    let files = open_files(source, &index, options.strategy.direct == Some(true), share_retained()?)?;
    let mappings = match map_within_address_space(options, &index, &files, address_left) {
        Ok(mappings) => mappings,
        // A locator needs a mapping.
        Err(error) if locates => return Err(error),
        Err(error) => {
            fallbacks.push(Fallback::new(Wanted::Mapping, error.to_string()));
            None
        }
    };
    let expansion = expansion_ratio(source, &index);
    let fingerprint = source.dataset().identity();
    let job_shares = share_out(options, &index, &files, fingerprint, links, caller)?;
    let choice = match &job_shares {
        Some(job_shares) if matches!(options.kind(1, 1, 1)?, Kind::Opportunistic { .. }) => {
            let batch_bytes = config::data_facts(options, &index, &files, expansion)?.batch_bytes;
            let (index, budget) = (&*index, &budget);
            let question =
                ResidentQuestion { options, index, job_shares, fingerprint, links, budget, batch_bytes };
            Some(residents::choose(&question, &config::plain_order(options, index)?, caller)?)
        }
        _ => None,
    };
    if let Some(choice) = choice.as_ref().filter(|_| budget.is_default) {
        // The windows follow from the entropy, not from the default.
        budget.asked_bytes = budget.asked_bytes.max(choice.memory_bytes);
    }
    let streamed = choice.as_ref().zip(job_shares.as_ref()).map(|(choice, job)| config::Streamed {
        order: &choice.order,
        staging_bytes: choice.plan.staging_bytes,
        unit_bytes: job.unit_bytes,
    });
    let budget_bytes = budget.asked_bytes;
    let limits = NodeLimits {
        budget: &budget,
        cores: cores.iter().copied().max().unwrap_or(1),
        has_shares: job_shares.is_some(),
    };
    let decision = config::decide(options, &index, &files, mappings.as_ref(), expansion, streamed, limits)?;
    let Decision { settings, data, storage, copy_buffer_bytes: buffer_bytes, fallbacks: unmet } = decision;
    fallbacks.extend(unmet);
    let shares = job_shares.as_ref().map(|job| Arc::new(job.shares.clone()));
    let mut residents = None;
    let (mut store, mut store_share, mut server) = (None, None, None);
    if let (Some(residents::Choice { mut plan, order, .. }), Some(job)) = (choice, &job_shares) {
        let (share, loaded_bytes) = residents::load(&order, job.own_node, &index, &files, caller)?;
        plan.loaded_bytes = loaded_bytes;
        (residents, store_share) = (Some(plan), Some(share));
    } else if let Some(size) = options.strategy.store {
        let shares = job_shares.as_ref().map(|job| &job.shares);
        let (index, files) = (&index, &*files);
        let dataset = source.dataset();
        let question =
            StoreQuestion { options, dataset, index, files, shares, fingerprint, links, address_left };
        let made = set_up(&question, size, caller)?;
        let MadeStore { plan, share, server: serving, fallback } = made;
        (store, store_share, server) = (Some(plan), Some(share), Some(serving));
        fallbacks.extend(fallback);
    }
    let mut tiers = None;
    if !options.tiers.tiers.is_empty() {
        let order = decided_order(options, &index, &settings, shares, None)?;
        let source_in_memory =
            retained.is_none() && files.is_local() && settings.mapping == Mapping::Resident;
        let (index, files, order) = (&index, &*files, &order);
        let settings = &settings;
        let own_node = job_shares.as_ref().map_or(0, |job| job.own_node);
        let question = TierQuestion {
            options,
            source,
            index,
            files,
            order,
            source_in_memory,
            buffer_bytes,
            settings,
            own_node,
        };
        match tiers::decide(&question, caller) {
            Ok(decided) => tiers = Some(decided),
            Err(error) => {
                let reason = tiers::unusable(error, options)?;
                caller.warn(&format!("loader \"{}\": the tiers are not used: {reason}", options.name));
                fallbacks.push(Fallback::new(Wanted::Tiers, reason));
            }
        }
    }
    for fallback in &fallbacks {
        fallback.log(&options.name);
    }
    let findings = Findings {
        data,
        storage,
        budget: found_budget,
        index: origin,
        retained_bytes: retained.as_ref().map_or(0, |retained| retained.bytes()),
        fallbacks,
    };
    let kept_bytes = settings.kept_unit_bytes * options.local_ranks.len() as u64;
    let total = settings.region_bytes + kept_bytes;
    let share =
        memory_ledger::take(options.budget_owner(), &options.name, total, budget_bytes, !settings.on_loan);
    if let Some(text) = amplified_decoding::warning(&settings, &findings.data, &options.order.kind)
        && options.rank == 0
    {
        caller.warn(&format!("loader \"{}\": {text}", options.name));
    }
    let region = host::sealed_memfd("forebay-region", settings.region_bytes as usize)?;
    let index = host::sealed_copy("forebay-index", &bytes)?;
    let nodes = options.links.as_ref().map(|links| links.nodes.clone());
    let (tiers, client) = tiers.unzip();
    let reply = Reply {
        settings,
        cores,
        findings,
        retained: retained.is_some(),
        nodes,
        tiers,
        shares: job_shares,
        store,
        residents,
    };
    let reply = serde_json::to_vec(&reply).expect("settings can be written as JSON");
    let mut fds = vec![region, index];
    fds.extend(store_share);
    fds.extend(share_retained()?.into_iter().flatten());
    let own = LeaderOwn { share: Some(share), files: Some(files), seek, tiers: client, server };
    Ok(LeaderState { reply, fds, own })
}

/// The order that the settings make, on nodes with these shares that keep these units.
pub(crate) fn decided_order(
    options: &Options,
    index: &Index,
    settings: &Settings,
    shares: Option<Arc<NodeShares>>,
    residents: Option<&ResidentPlan>,
) -> Result<Order, Error> {
    let order = config::make_order(
        options,
        index.samples(),
        settings.group_samples,
        settings.group_window,
        Some(settings.lanes).filter(|_| options.order.kind == "group"),
    )?;
    Ok(match (shares, residents) {
        (Some(shares), Some(plan)) => {
            order.with_window(plan.window).with_residents(shares, |unit| plan.keeps(unit))
        }
        (Some(shares), None) => order.on_nodes(shares),
        (None, _) => order,
    })
}

/// Like [`open_mappings`], if that leaves enough address space.
fn map_within_address_space(
    options: &Options,
    index: &Index,
    files: &Arc<ShardFiles>,
    address_left: Option<u64>,
) -> Result<Option<Mappings>, Error> {
    // A store takes the place of mappings.
    if options.strategy.store.is_some() {
        return Ok(None);
    }
    let mapped =
        matches!(options.strategy.access, AccessChoice::Auto | AccessChoice::Mmap) && !files.are_of_samples();
    if mapped && (options.strategy.access == AccessChoice::Mmap || files.is_local()) {
        let bytes = index.shards().iter().map(|shard| shard.bytes).sum();
        config::may_map(bytes, address_left).map_err(|message| Error::Memory {
            message,
            hint: "raise the limit with `ulimit -v`, or take a strategy that needs no mapping".into(),
        })?;
    }
    open_mappings(options.strategy.access, files)
}
