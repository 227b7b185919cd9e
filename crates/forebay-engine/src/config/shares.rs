//! Shares of the dataset that the nodes of a job hold, for orders that depend on them and for the
//! in-memory store.

use std::sync::Arc;

use forebay_format::Index;
use forebay_io::ShardFiles;
use forebay_plan::config::{needs_shares, unit_bytes};
use forebay_plan::{NodeShares, OrderKind, dataset_key, share_units};
use forebay_types::Rank;
use serde::{Deserialize, Serialize};

use crate::config::options::Options;
use crate::dataset::tier_sources::chunk_map;
use crate::error::Error;
use crate::host::Host;
use crate::mesh::Links;

/// The shares of a job, and what they rest on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct JobShares {
    /// Which samples each node holds.
    pub(crate) shares: NodeShares,
    /// About the length of a unit \[bytes\].
    pub(crate) unit_bytes: u64,
    /// Number of this node.
    pub(crate) own_node: usize,
}

/// Shares out the dataset, if order or strategy need that. Only `opportunistic` needs it on a
/// single node. All nodes compute the same.
pub(crate) fn share_out(
    options: &Options,
    index: &Arc<Index>,
    files: &ShardFiles,
    fingerprint: u128,
    links: Option<&Links>,
    caller: &dyn Host,
) -> Result<Option<JobShares>, Error> {
    let kind = options.kind(1, 1, 1);
    let is_local_order = matches!(kind, OrderKind::LocalShuffle { .. });
    let is_single = options.is_one_node();
    if !needs_shares(kind, options.store.is_some(), is_single) {
        return Ok(None);
    }
    let Some(links) = links.filter(|_| !is_single) else {
        if is_single {
            let ranks = options.local_ranks.iter().copied().map(Rank).collect();
            return cut(options, index, files, fingerprint, (&[ranks], 0), caller).map(Some);
        }
        if !is_local_order {
            return Err(Error::Options {
                message: "store=: the nodes of this job are not linked, so they cannot serve each other"
                    .into(),
                hint: "docs/nodes.md says how nodes find each other".into(),
            });
        }
        return Err(Error::Options {
            message: "order local-shuffle: the nodes of this job are not linked, so they cannot share out the data"
                .into(),
            hint: "docs/nodes.md says how nodes find each other; order=\"shuffle\" has the same samples in each step"
                .into(),
        });
    };
    let nodes: Vec<Vec<Rank>> =
        links.facts().0.iter().map(|node| node.ranks.iter().copied().map(Rank).collect()).collect();
    cut(options, index, files, fingerprint, (&nodes, links.own_node()), caller).map(Some)
}

/// Cuts the dataset into units and shares them out among nodes with these ranks; also given is the
/// number of this node.
fn cut(
    options: &Options,
    index: &Arc<Index>,
    files: &ShardFiles,
    fingerprint: u128,
    (nodes, own_node): (&[Vec<Rank>], usize),
    caller: &dyn Host,
) -> Result<JobShares, Error> {
    let map = chunk_map(files, index)?;
    let samples = index.samples();
    let (data_bytes, count) = (index.record_bytes(), nodes.len() as u64);
    let unit_bytes = unit_bytes(options.kind(1, 1, 1), data_bytes, samples, count, options.order.unit);
    let units = share_units(&**index, &map, unit_bytes, &mut sharing(caller))?;
    let shares = NodeShares::new(samples, &units, nodes, dataset_key(fingerprint));
    Ok(JobShares { shares, unit_bytes, own_node })
}

/// Reports the progress of sharing out samples.
pub(crate) fn sharing(caller: &dyn Host) -> impl FnMut(u64, u64) -> Result<(), Error> + '_ {
    |done, samples| {
        if caller.progress("share out the samples", done, samples) { Ok(()) } else { Err(Error::Interrupted) }
    }
}
