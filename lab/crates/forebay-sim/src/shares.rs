//! How the dataset is cut into chunks, and shared out among the nodes: as the engine does it.

use std::convert::Infallible;
use std::sync::Arc;

use forebay_plan::config::{needs_shares, unit_bytes};
use forebay_plan::options::LoaderOptions;
use forebay_plan::{ChunkMap, NodeShares, dataset_key, share_units};
use forebay_types::{Rank, SamplePlaces};

use crate::job::Job;
use crate::places::Places;

/// What identifies the dataset.
pub(crate) const DATASET: u128 = 0;

/// The shares of a job.
#[derive(Clone, Debug)]
pub(crate) struct JobShares {
    /// Which samples each node holds.
    pub(crate) shares: Arc<NodeShares>,
    /// About the length of a unit \[B\].
    pub(crate) unit_bytes: u64,
}

impl JobShares {
    /// Shares out the dataset, if order or store need that.
    pub(crate) fn of(
        job: &Job,
        options: &LoaderOptions,
        places: &Places,
        chunks: &ChunkMap,
    ) -> Option<JobShares> {
        let kind = options.kind(1, 1, 1);
        if !needs_shares(kind, options.store.is_some(), job.nodes == 1) {
            return None;
        }
        let nodes: Vec<Vec<Rank>> =
            (0..job.nodes).map(|node| job.ranks_of(node).map(Rank).collect()).collect();
        let (data_bytes, samples, count) = (places.record_bytes(), places.samples(), u64::from(job.nodes));
        let unit_bytes = unit_bytes(kind, data_bytes, samples, count, options.order.unit);
        let Ok(units) = share_units::<_, Infallible>(places, chunks, unit_bytes, &mut |_, _| Ok(()));
        let shares = NodeShares::new(samples, &units, &nodes, dataset_key(DATASET));
        Some(JobShares { shares: Arc::new(shares), unit_bytes })
    }
}

/// The chunks of a dataset, if they are needed.
pub(crate) fn chunk_map(places: &Places, is_needed: bool) -> ChunkMap {
    if !is_needed {
        return ChunkMap::of_files(&[]);
    }
    if places.has_sample_files() {
        let (files, own) = (places.samples() as usize, places.clone());
        let file_bytes = move |file: forebay_types::ShardId| Ok(own.bytes_of_file(u64::from(file.0)));
        // A length is never an error.
        if let Ok(map) = ChunkMap::of_sample_files(files, Arc::new(file_bytes)) {
            return map;
        }
    }
    ChunkMap::of_files(&places.shard_bytes())
}
