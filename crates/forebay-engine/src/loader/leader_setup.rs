//! The leader's part of creating a loader: the index, the decisions, the memory.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_format::Index;
use forebay_host as host;
use forebay_io::{Mappings, ShardFiles};
use forebay_plan::config::{AccessChoice, Budget, Locate, Mapping, retained_bytes};
use forebay_plan::{NodeShares, Order, OrderKind};
use forebay_tier::TierClient;
use serde::{Deserialize, Serialize};

use crate::base::fallback::{Fallback, Wanted};
use crate::base::memory_ledger;
use crate::config::amplified_decoding;
use crate::config::options::Options;
use crate::config::rank_facts::{RankFacts, cores_of_ranks, min_address_left};
use crate::config::shares::{JobShares, share_out};
use crate::config::strategies::Strategies;
use crate::config::tiers::{self, TierPlan, TierQuestion};
use crate::config::{self, Decision, Findings, NodeLimits, Settings};
use crate::dataset::open::{open_files, open_mappings};
use crate::dataset::ragged_size::expansion_ratio;
use crate::dataset::retained_values::RetainedValues;
use crate::dataset::{IndexOrigin, IndexedDataset, Loaded};
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
    pub(crate) loan: Option<memory_ledger::Loan>,
    /// The index, parsed already.
    pub(crate) index: Option<Index>,
    /// The shards, open already.
    pub(crate) files: Option<Arc<ShardFiles>>,
    /// Time to locate the samples.
    pub(crate) seek: Duration,
    /// The leader's connection to the tier daemon.
    pub(crate) tiers: Option<Arc<TierClient>>,
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
    let leading = Leading { source, options, strategies, links, caller, address_left, cores };
    let mut budget = config::budget(options, address_left)?;
    let found_budget = budget;
    leading.check_strategies()?;
    let mut fallbacks = Vec::new();
    let found = leading.find(&mut budget, &mut fallbacks)?;
    let choice = leading.choose_residents(&found, &mut budget)?;
    let decision = leading.decide(&found, choice.as_ref(), &budget)?;
    let Decision { settings, data, storage, copy_buffer_bytes, fallbacks: unmet } = decision;
    fallbacks.extend(unmet);
    let held = leading.hold(&found, choice, &mut fallbacks)?;
    let tiers = leading.use_tiers(&found, &settings, copy_buffer_bytes, &mut fallbacks)?;
    for fallback in &fallbacks {
        fallback.log(&options.name);
    }
    let findings = Findings {
        data,
        storage,
        budget: found_budget,
        index: found.origin.clone(),
        retained_bytes: found.retained.as_ref().map_or(0, |retained| retained.bytes()),
        fallbacks,
    };
    if let Some(text) = amplified_decoding::warning(&settings, &findings.data, options.kind(1, 1, 1))
        && options.rank == 0
    {
        leading.warn(&text);
    }
    let kept_bytes = settings.kept_unit_bytes * options.local_ranks.len() as u64;
    let total = settings.region_bytes + kept_bytes;
    let (owner, name) = (options.budget_owner(), &options.name);
    let loan = memory_ledger::take(owner, name, total, budget.requested_bytes, !settings.on_loan);
    let region = host::sealed_memfd("forebay-region", settings.region_bytes as usize)?;
    let mut fds = vec![region, host::sealed_copy("forebay-index", &found.bytes)?];
    fds.extend(held.share);
    fds.extend(found.share_retained()?.into_iter().flatten());
    let (tiers, client) = tiers.unzip();
    let reply = Reply {
        settings,
        cores: leading.cores,
        findings,
        retained: found.retained.is_some(),
        nodes: options.links.as_ref().map(|links| links.nodes.clone()),
        tiers,
        shares: found.job_shares,
        store: held.store,
        residents: held.residents,
    };
    let reply = serde_json::to_vec(&reply).expect("settings can be written as JSON");
    let (loan, index, files) = (Some(loan), Some(found.index.apart()), Some(found.files));
    let own = LeaderOwn { loan, index, files, seek: found.seek, tiers: client, server: held.server };
    Ok(LeaderState { reply, fds, own })
}

/// The leader of a node, at work.
struct Leading<'a> {
    source: &'a IndexedDataset,
    options: &'a Options,
    strategies: &'a Strategies,
    links: Option<&'a Links>,
    caller: &'a dyn Host,
    /// Address space that the rank with the least has left, where there is a limit \[bytes\].
    address_left: Option<u64>,
    /// Cores that each rank may use.
    cores: Vec<usize>,
}

/// The dataset, as the leader found it.
struct FoundDataset {
    index: Arc<Index>,
    /// Its sidecar.
    bytes: Arc<Vec<u8>>,
    retained: Option<Arc<RetainedValues>>,
    origin: IndexOrigin,
    /// Time to locate the samples.
    seek: Duration,
    files: Arc<ShardFiles>,
    mappings: Option<Mappings>,
    /// Of [`expansion_ratio`].
    expansion: f64,
    job_shares: Option<JobShares>,
}

/// What this node holds in memory.
#[derive(Default)]
struct Held {
    store: Option<StorePlan>,
    residents: Option<ResidentPlan>,
    share: Option<OwnedFd>,
    server: Option<Server>,
}

impl FoundDataset {
    /// The memory of the retained values, once more.
    fn share_retained(&self) -> Result<Option<Vec<OwnedFd>>, Error> {
        Ok(self.retained.as_ref().map(|retained| retained.share()).transpose()?)
    }

    fn shares(&self) -> Option<Arc<NodeShares>> {
        self.job_shares.as_ref().map(|job| Arc::new(job.shares.clone()))
    }
}

impl Leading<'_> {
    fn warn(&self, text: &str) {
        self.caller.warn(&format!("loader \"{}\": {text}", self.options.name));
    }

    fn check_strategies(&self) -> Result<(), Error> {
        if let Some(locators) = &self.strategies.locators {
            if self.source.dataset().selection().is_some() {
                return Err(Error::Options {
                    message:
                        "the strategy finds samples by a cursor, and these are a selection of the records"
                            .into(),
                    hint: "use another strategy, or the whole dataset".into(),
                });
            }
            locators.check()?;
        }
        if let Some(scanner) = &self.strategies.scanner {
            scanner.check()?;
        }
        Ok(())
    }

    /// Loads or builds the index and opens the files; the budget loses what is retained.
    fn find(&self, budget: &mut Budget, fallbacks: &mut Vec<Fallback>) -> Result<FoundDataset, Error> {
        let &Self { source, options, strategies, links, caller, address_left, .. } = self;
        let locates = strategies.locators.is_some();
        let has_store = options.store.is_some();
        let keep_bytes = retained_bytes(options.strategy.readers, locates, has_store, budget.left_bytes());
        let begun = Instant::now();
        let Loaded { index, bytes, retained, origin, fallbacks: unmet } = match &strategies.scanner {
            Some(scanner) => scanned_index(source, &**scanner, options, links, caller)?,
            None if options.strategy.locate == Locate::Provenance => {
                source.index_computed(keep_bytes, caller)?
            }
            None => source.index_keeping(keep_bytes, caller)?,
        };
        let seek = begun.elapsed();
        fallbacks.extend(unmet);
        if index.samples() == 0 {
            return Err(Error::Options { message: "the dataset has no samples".into(), hint: String::new() });
        }
        let mut memory = None;
        if let Some(retained) = &retained {
            *budget = budget.beside(retained.take_from(options.budget_owner()));
            memory = Some(retained.share()?);
        }
        let files = open_files(source, &index, options.strategy.direct == Some(true), memory)?;
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
        Ok(FoundDataset { index, bytes, retained, origin, seek, files, mappings, expansion, job_shares })
    }

    /// Chooses what nodes keep, in the order `opportunistic`.
    fn choose_residents(
        &self,
        found: &FoundDataset,
        budget: &mut Budget,
    ) -> Result<Option<residents::Choice>, Error> {
        let &Self { source, options, links, caller, .. } = self;
        let Some(job_shares) = &found.job_shares else { return Ok(None) };
        if !matches!(options.kind(1, 1, 1), OrderKind::Opportunistic { .. }) {
            return Ok(None);
        }
        let index = &*found.index;
        let batch_bytes = config::data_facts(options, index, &found.files, found.expansion)?.batch_bytes;
        let fingerprint = source.dataset().identity();
        let question =
            ResidentQuestion { options, index, job_shares, fingerprint, links, budget, batch_bytes };
        let choice = residents::choose(&question, &config::plain_order(options, index)?, caller)?;
        if budget.is_default {
            // The windows follow from the entropy, not from the default.
            budget.requested_bytes = budget.requested_bytes.max(choice.memory_bytes);
        }
        Ok(Some(choice))
    }

    /// Decides how the node reads.
    fn decide(
        &self,
        found: &FoundDataset,
        choice: Option<&residents::Choice>,
        budget: &Budget,
    ) -> Result<Decision, Error> {
        let FoundDataset { index, files, mappings, expansion, job_shares, .. } = found;
        let streamed = choice.zip(job_shares.as_ref()).map(|(choice, job)| config::Streamed {
            order: &choice.order,
            staging_bytes: choice.plan.staging_bytes,
            unit_bytes: job.unit_bytes,
        });
        let limits = NodeLimits {
            budget,
            cores: self.cores.iter().copied().max().unwrap_or(1),
            has_shares: job_shares.is_some(),
        };
        config::decide(self.options, index, files, mappings.as_ref(), *expansion, streamed, limits)
    }

    /// Loads what this node holds in memory.
    fn hold(
        &self,
        found: &FoundDataset,
        choice: Option<residents::Choice>,
        fallbacks: &mut Vec<Fallback>,
    ) -> Result<Held, Error> {
        let &Self { source, options, links, caller, address_left, .. } = self;
        let (index, files, job_shares) = (&found.index, &*found.files, found.job_shares.as_ref());
        if let (Some(residents::Choice { mut plan, order, .. }), Some(job)) = (choice, job_shares) {
            let (share, loaded_bytes) = residents::load(&order, job.own_node, index, files, caller)?;
            plan.loaded_bytes = loaded_bytes;
            return Ok(Held { residents: Some(plan), share: Some(share), ..Held::default() });
        }
        let Some(size) = options.store.map(|store| store.size) else { return Ok(Held::default()) };
        let shares = job_shares.map(|job| &job.shares);
        let (dataset, fingerprint) = (&**source.dataset(), source.dataset().identity());
        let question =
            StoreQuestion { options, dataset, index, files, shares, fingerprint, links, address_left };
        let MadeStore { plan, share, server, fallback } = set_up(&question, size, caller)?;
        fallbacks.extend(fallback);
        Ok(Held { store: Some(plan), share: Some(share), server: Some(server), residents: None })
    }

    /// Attaches to the tier daemon, and decides how the node uses its tiers.
    fn use_tiers(
        &self,
        found: &FoundDataset,
        settings: &Settings,
        buffer_bytes: u64,
        fallbacks: &mut Vec<Fallback>,
    ) -> Result<Option<(TierPlan, Arc<TierClient>)>, Error> {
        let &Self { source, options, caller, .. } = self;
        if options.tiers.tiers.is_empty() {
            return Ok(None);
        }
        let (index, files) = (&found.index, &*found.files);
        let order = &decided_order(options, index, settings, found.shares(), None)?;
        let source_in_memory =
            found.retained.is_none() && files.is_local() && settings.mapping == Mapping::Resident;
        let own_node = found.job_shares.as_ref().map_or(0, |job| job.own_node);
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
            Ok(decided) => Ok(Some(decided)),
            Err(error) => {
                let reason = tiers::unusable(error, options)?;
                self.warn(&format!("the tiers are not used: {reason}"));
                fallbacks.push(Fallback::new(Wanted::Tiers, reason));
                Ok(None)
            }
        }
    }
}

/// The order that the settings make, on nodes with these shares that keep these units.
pub(crate) fn decided_order(
    options: &Options,
    index: &Index,
    settings: &Settings,
    shares: Option<Arc<NodeShares>>,
    residents: Option<&ResidentPlan>,
) -> Result<Order, Error> {
    let order = options.decided_order(index.samples(), settings)?;
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
    if options.store.is_some() {
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
