//! What the engine would decide for the nodes of a job. Nodes that differ in nothing that decides
//! share their decisions.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::sync::Arc;

use forebay_plan::config::{IoMode, Settings};
use forebay_plan::{ChunkMap, Order, OrderKind, ranges_of_units};
use forebay_types::Extent;

use crate::decided::Decisions;
use crate::error::Error;
use crate::job::Job;
use crate::loads::{loads_of_chunks, loads_of_ranges};
use crate::places::Places;
use crate::residents::Residents;
use crate::shares::{JobShares, chunk_map};
use crate::store::StorePlan;
use crate::tiers::TierPlan;

/// What was decided for a job.
pub(crate) struct JobDecisions {
    pub(crate) order: Order,
    kinds: Vec<Decisions>,
    /// For each node, which of them.
    of_nodes: Vec<usize>,
    /// How the dataset is cut; empty where nothing depends on it.
    pub(crate) chunks: ChunkMap,
    /// How each node uses its tiers; none without tiers.
    pub(crate) tiers: Vec<Arc<TierPlan>>,
    pub(crate) store: Option<StorePlan>,
}

impl JobDecisions {
    /// Decides for all nodes.
    ///
    /// # Errors
    ///
    /// A job that is not valid, or that has no model.
    pub(crate) fn of(job: &Job, places: &Places) -> Result<JobDecisions, Error> {
        job.check()?;
        let options = job.loader_options(job.ranks_of(0).len() as u32).checked()?;
        let is_local =
            matches!(options.kind(1, 1, 1), OrderKind::LocalShuffle { .. } | OrderKind::Opportunistic { .. });
        let has_store = options.store.is_some();
        let chunks = chunk_map(places, is_local || has_store || !options.tiers.tiers.is_empty());
        let shares = JobShares::of(job, &options, places, &chunks);
        let streams = matches!(options.kind(1, 1, 1), OrderKind::Opportunistic { .. });
        let residents = shares.as_ref().filter(|_| streams);
        let residents =
            residents.map(|shares| Residents::choose(job, &options, places, shares)).transpose()?;
        let mut kinds: Vec<Decisions> = Vec::new();
        let mut known = BTreeMap::new();
        let mut of_nodes = Vec::with_capacity(job.nodes as usize);
        for node in 0..job.nodes {
            let streamed = residents.as_ref().map(|residents| residents.of_node(node as usize));
            let ranks = job.ranks_of(node).len() as u32;
            let kind = match known.entry((ranks, streamed.map(|streamed| streamed.staging_bytes))) {
                Entry::Occupied(kind) => *kind.get(),
                Entry::Vacant(place) => {
                    kinds.push(job.decide(places, ranks, shares.is_some(), streamed)?);
                    *place.insert(kinds.len() - 1)
                }
            };
            of_nodes.push(kind);
        }
        let order = match (residents, &shares) {
            (Some(residents), _) => residents.order,
            (None, Some(job_shares)) => kinds[0].order.clone().on_nodes(Arc::clone(&job_shares.shares)),
            (None, None) => kinds[0].order.clone(),
        };
        let store = if kinds[0].settings.mode == IoMode::Store {
            Some(StorePlan::of(job, &options, places, &chunks, shares.as_ref())?)
        } else {
            None
        };
        let mut found = JobDecisions { order, kinds, of_nodes, chunks, tiers: Vec::new(), store };
        found.decide_tiers(job, places)?;
        Ok(found)
    }

    fn decide_tiers(&mut self, job: &Job, places: &Places) -> Result<(), Error> {
        // What a node places depends on its share, and else on its kind only.
        let has_shares = self.order.shares().is_some();
        let mut known: BTreeMap<usize, Arc<TierPlan>> = BTreeMap::new();
        for node in 0..job.nodes {
            let kind = self.of_nodes[node as usize];
            let decided = &self.kinds[kind];
            let plan = match known.get(&kind).filter(|_| !has_shares) {
                Some(plan) => Arc::clone(plan),
                None => match TierPlan::of(job, places, &self.chunks, &self.order, (node, decided))? {
                    Some(plan) => Arc::new(plan),
                    None => return Ok(()),
                },
            };
            known.insert(kind, Arc::clone(&plan));
            self.tiers.push(plan);
        }
        Ok(())
    }

    /// What a node decided.
    pub(crate) fn settings(&self, node: usize) -> &Settings {
        &self.kinds[self.of_nodes[node]].settings
    }

    /// What a node reads into its memory before the loader begins: parts, each for one thread.
    pub(crate) fn loads(&self, node: usize, places: &Places) -> VecDeque<Vec<Extent>> {
        if let Some(store) = &self.store {
            return loads_of_chunks(&self.chunks, store.layout.chunks_of(node));
        }
        let Some(shares) = self.order.shares() else { return VecDeque::new() };
        let Ok::<_, Infallible>(ranges) = ranges_of_units(places, shares, self.order.resident_units(node));
        loads_of_ranges(&ranges)
    }
}
