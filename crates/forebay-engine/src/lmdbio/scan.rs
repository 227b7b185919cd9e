//! The scan of LMDBIO-LMM-DIO: one process goes over all records once, and everybody uses the places that it found.
//!
//! It is the leader of the node with the least rank. It walks from record to record through a mapping, as programs do that use
//! LMDB's library, so it pays a page fault for every page of the tree; but it fetches no other page, and asks for the leaves of a
//! branch page when it comes to it. What it finds becomes an index like any other, which goes to
//! the leaders of the other nodes over the links, and is kept nowhere: the next loader scans again. Where the nodes have no
//! links, every leader scans for itself.

use std::sync::Arc;

use forebay_io::{Mappings, ShardFiles};

use crate::base::failpoint;
use crate::config::options::Options;
use crate::dataset::{IndexOrigin, IndexedDataset, Loaded, ScanningNode};
use crate::error::Error;
use crate::host::Host;
use crate::mesh::{Channel, Links};

/// The place of the node whose leader scans.
const SCANNER: usize = 0;

/// Scans a data set, or takes what the leader of another node found (collective over the leaders that are linked).
pub(crate) fn scan(
    source: &IndexedDataset,
    options: &Options,
    links: Option<&Links>,
    caller: &dyn Host,
) -> Result<Loaded, Error> {
    let (bytes, scanning_node) = match links {
        Some(links) if links.me() != SCANNER => {
            let stop = || {
                caller.waits_for_others();
                caller.interrupted()
            };
            let bytes = links.receive(Channel::Index, Some(SCANNER), &stop)?;
            let (_, bytes) = bytes.ok_or(Error::Interrupted)?;
            (bytes, ScanningNode::Other)
        }
        Some(links) => {
            let bytes = go_over(source, caller)?;
            links.send_all(Channel::Index, bytes.as_slice())?;
            (bytes, ScanningNode::This)
        }
        None => {
            let is_one_node = options.size as usize == options.local_ranks.len();
            let scanning_node = if is_one_node { ScanningNode::This } else { ScanningNode::Each };
            (go_over(source, caller)?, scanning_node)
        }
    };
    let bytes = Arc::new(bytes);
    let index = Arc::new(source.dataset().index(Arc::clone(&bytes) as _)?);
    let origin = IndexOrigin::Scan { scanning_node };
    Ok(Loaded { index, bytes, kept: None, origin, fallbacks: Vec::new() })
}

/// Goes over all records and makes an index of them.
fn go_over(source: &IndexedDataset, caller: &dyn Host) -> Result<Vec<u8>, Error> {
    let dataset = source.dataset();
    let shards: Vec<_> = dataset.shards().iter().map(|shard| (shard.path.clone(), shard.bytes)).collect();
    let files = Arc::new(ShardFiles::open(&shards, false)?);
    let mappings = Mappings::open(&files)?;
    mappings.without_read_ahead();
    let announce = |shard, offset, length| files.will_need(shard, offset, length);
    let bytes = |shard, offset, length| {
        failpoint::at(failpoint::Place::Scan);
        mappings.bytes(shard, offset, length)
    };
    let tell =
        |progress: forebay_format::Progress| caller.progress(progress.what, progress.done, progress.total);
    let scanned = dataset.scan_index(&bytes, &announce, &tell);
    // Lost pages read as zeros, whatever became of them.
    mappings.check()?;
    Ok(scanned?.bytes)
}
