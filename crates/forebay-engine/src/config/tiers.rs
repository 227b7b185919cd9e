//! Storage tiers of a loader: what the leader decides about them, and how each process uses them.

use std::sync::Arc;
use std::time::Duration;

use forebay_format::Index;
use forebay_io::ShardFiles;
use forebay_plan::config::{Settings, TieringFacts, decide_tiering};
use forebay_plan::{ChunkSet, Copies, EpochBytes, Order, Placement, TierLevel, chunks_of_share};
use forebay_tier::{
    DaemonAddress, DatasetId, Source, SourceState, TierClient, TierError, TierSetup, TieredFiles,
    check_sources, differing_sources,
};
use forebay_types::PIECE_BYTES;
use serde::{Deserialize, Serialize};

use crate::config::options::Options;
use crate::config::shares::sharing;
use crate::dataset::IndexedDataset;
use crate::dataset::tier_sources::{chunk_map, sources};
use crate::error::Error;
use crate::host::Host;

/// How long the end of a loader waits for copies under way.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// What the leader found and decided about tiers; the other ranks of the node get it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TierPlan {
    /// As the tier daemon knows it.
    dataset: DatasetId,
    sources: Vec<Source>,
    states: Vec<SourceState>,
    placement: Placement,
    /// The chunks that are placed, by their places in the set; all where there is none.
    #[serde(default)]
    own_chunks: Option<ChunkSet>,
    /// Whether copies are made.
    pub(crate) copies: Copies,
    pub(crate) levels: Vec<TierFacts>,
    /// What each of the first epochs reads, of all nodes.
    pub(crate) forecast: Vec<EpochBytes>,
    /// Memory for copies on their way, of each process \[bytes\].
    pub(crate) buffer_bytes: u64,
    pub(crate) chunks: u64,
    /// Nodes that share an epoch.
    pub(crate) nodes: u64,
}

/// A tier, as the leader found it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TierFacts {
    /// As the user calls it.
    pub(crate) path: String,
    /// What the user gave it \[bytes\].
    pub(crate) bytes: u64,
    /// Chunks of this dataset that it may hold.
    pub(crate) slots: u64,
    /// Bytes of this dataset that it holds already \[bytes\].
    pub(crate) held_bytes: u64,
    /// Whether it is memory.
    pub(crate) is_memory: bool,
}

/// What a decision about tiers rests on.
pub(crate) struct TierQuestion<'a> {
    pub(crate) options: &'a Options,
    pub(crate) source: &'a IndexedDataset,
    pub(crate) index: &'a Arc<Index>,
    pub(crate) files: &'a ShardFiles,
    pub(crate) order: &'a Order,
    /// The files are local and in the page cache.
    pub(crate) source_in_memory: bool,
    /// [`copy_buffer_bytes`](forebay_plan::config::copy_buffer_bytes).
    pub(crate) buffer_bytes: u64,
    pub(crate) settings: &'a Settings,
    /// Number of this node.
    pub(crate) own_node: usize,
}

/// Attaches the leader to the tier daemon, and decides what is copied where.
pub(crate) fn decide(
    question: &TierQuestion<'_>,
    caller: &dyn Host,
) -> Result<(TierPlan, Arc<TierClient>), TierError> {
    let &TierQuestion {
        options,
        source,
        index,
        files,
        order,
        source_in_memory,
        buffer_bytes,
        settings,
        own_node,
    } = question;
    let map = chunk_map(files, index)?;
    let (sources, states) = sources(source.dataset(), files, index, &map, caller)?;
    let paths = source.dataset().shards().iter().map(|shard| shard.path.as_path());
    check_sources(&options.tiers.tiers, paths)?;
    let daemon = DaemonAddress::of_this_node(options.tier_daemon.clone())?;
    let client = TierClient::attach(options.tiers.tiers.clone(), sources.clone(), daemon)?;
    for warning in client.take_warnings() {
        caller.warn(&format!("loader \"{}\": {warning}", options.name));
    }
    for number in differing_sources(&client, files, &map, &|| !caller.interrupted()) {
        client.source_differs(number)?;
        caller.warn(&format!(
            "loader \"{}\": {}: its copies in tiers are not its bytes, though it has the same size and times: \
             they are dropped",
            options.name, sources[number].path
        ));
    }
    let attached = client.attached();
    let held = attached.held();
    let tier_levels: Vec<TierLevel> = attached
        .levels
        .iter()
        .zip(&held)
        .map(|(level, held)| TierLevel {
            slots: level.slots.max(held.chunks),
            held_chunks: held.chunks,
            held_bytes: held.pieces * PIECE_BYTES,
        })
        .collect();
    let nodes = (u64::from(options.size) / options.local_ranks.len().max(1) as u64).max(1);
    let data_bytes: u64 = sources.iter().map(|source| source.bytes).sum();
    let own_chunks =
        order.shares().map(|shares| chunks_of_share(&**index, &map, shares, own_node, &mut sharing(caller)));
    let own_chunks = own_chunks.transpose().map_err(|error| TierError::Protocol {
        attempt: "find the chunks of this node's share",
        expected: "an index that locates all samples".into(),
        found: error.to_string(),
    })?;
    let facts = TieringFacts {
        order,
        settings,
        nodes,
        node_ranks: options.local_ranks.len() as u64,
        data_bytes,
        chunks: map.chunks(),
        own_chunks: own_chunks.as_ref().map(ChunkSet::len),
        has_sample_files: files.are_of_samples(),
        levels: &tier_levels,
        epochs: options.expected_epochs,
        source_in_memory,
        buffer_bytes,
        key: key(&sources),
    };
    let tiering = decide_tiering(&facts, &**index).map_err(|error| TierError::Protocol {
        attempt: "place chunks",
        expected: "a placement".into(),
        found: error.to_string(),
    })?;
    let levels = attached
        .levels
        .iter()
        .zip(&options.tiers.tiers)
        .zip(&tier_levels)
        .map(|((level, spec), facts)| TierFacts {
            path: level.name.clone(),
            bytes: spec.bytes,
            slots: facts.slots,
            held_bytes: facts.held_bytes.min(data_bytes),
            is_memory: level.is_memory,
        })
        .collect();
    let plan = TierPlan {
        dataset: client.dataset(),
        sources,
        states,
        placement: tiering.placement,
        own_chunks,
        copies: tiering.copies,
        levels,
        forecast: tiering.forecast,
        buffer_bytes: tiering.buffer_bytes,
        chunks: map.chunks(),
        nodes,
    };
    Ok((plan, client))
}

/// Key of a placement: the same for the same sources.
fn key(sources: &[Source]) -> u64 {
    let keys: Vec<u8> = sources.iter().flat_map(|source| source.key.0).collect();
    xxhash_rust::xxh3::xxh3_64(&keys)
}

/// Uses the tiers in one process. `watched` are the files themselves, where `files` are memory.
pub(crate) fn open(
    plan: &TierPlan,
    client: Option<Arc<TierClient>>,
    options: &Options,
    files: &Arc<ShardFiles>,
    watched: Arc<ShardFiles>,
    index: &Arc<Index>,
) -> Result<Arc<TieredFiles>, TierError> {
    let client = if let Some(client) = client {
        client
    } else {
        let daemon = DaemonAddress::of_this_node(options.tier_daemon.clone())?;
        TierClient::join(plan.dataset, options.tiers.tiers.clone(), plan.sources.clone(), daemon)?
    };
    let (placement, own_chunks) = (plan.placement.clone(), plan.own_chunks.clone());
    let level = move |chunk| match &own_chunks {
        Some(own) => own.place(chunk).and_then(|place| placement.level(place)),
        None => placement.level(chunk),
    };
    let setup = TierSetup {
        files: Arc::clone(files),
        watched,
        states: plan.states.clone(),
        map: chunk_map(files, index)?,
        placement: Arc::new(move |chunk| level(chunk.0)),
        buffer_bytes: plan.buffer_bytes as usize,
    };
    TieredFiles::new(client, setup).map(Arc::new)
}

/// What is done about tiers that cannot be used: a tier that the user must mend is an error;
/// without the daemon, or without the system's tiers, the loader reads the source.
pub(crate) fn unusable(error: TierError, options: &Options) -> Result<String, Error> {
    match error {
        TierError::Tier { .. } | TierError::Format { .. } if !options.tiers.of_system => Err(error.into()),
        _ => Ok(error.to_string()),
    }
}

/// Ends the use of tiers: waits a moment for copies under way.
pub(crate) fn close(tiers: &TieredFiles) {
    tiers.close(FINISH_WITHIN);
}
