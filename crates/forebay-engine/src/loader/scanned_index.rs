//! An index that a plugged-in scanner builds when the loader is created, once in the job.
//!
//! The leader of the node with the least rank scans, and sends the index to the other leaders. If
//! the nodes are not linked, each leader scans for itself.

use std::sync::Arc;

use forebay_format::Error as FormatError;
use forebay_io::{Mappings, ShardFiles};
use forebay_plan::{IndexScanner, MappedShards, ScanHost};
use forebay_types::{Extent, ShardId};

use crate::config::options::Options;
use crate::dataset::{IndexOrigin, IndexedDataset, Loaded, ScanningNode};
use crate::error::Error;
use crate::host::Host;
use crate::mesh::{Channel, Links};

/// Index of the node whose leader scans.
const SCANNING_NODE: usize = 0;

/// Scans a dataset, or receives the index of another node's leader (collective over the linked
/// leaders).
pub(crate) fn scanned_index(
    source: &IndexedDataset,
    scanner: &dyn IndexScanner<Error = FormatError>,
    options: &Options,
    links: Option<&Links>,
    caller: &dyn Host,
) -> Result<Loaded, Error> {
    let (bytes, scanning_node) = match links {
        Some(links) if links.own_node() != SCANNING_NODE => {
            let stop = || {
                caller.waits_for_others();
                caller.interrupted()
            };
            let bytes = links.receive(Channel::Index, Some(SCANNING_NODE), &stop)?;
            let (_, bytes) = bytes.ok_or(Error::Interrupted)?;
            (bytes, ScanningNode::Other)
        }
        Some(links) => {
            let bytes = scan(source, scanner, caller)?;
            links.send_all(Channel::Index, bytes.as_slice())?;
            (bytes, ScanningNode::This)
        }
        None => {
            let scanning_node = if options.is_one_node() { ScanningNode::This } else { ScanningNode::Each };
            (scan(source, scanner, caller)?, scanning_node)
        }
    };
    let bytes = Arc::new(bytes);
    let index = Arc::new(source.dataset().index(Arc::clone(&bytes) as _)?);
    let origin = IndexOrigin::Scan { scanning_node };
    Ok(Loaded { index, bytes, retained: None, origin, fallbacks: Vec::new() })
}

fn scan(
    source: &IndexedDataset,
    scanner: &dyn IndexScanner<Error = FormatError>,
    caller: &dyn Host,
) -> Result<Vec<u8>, Error> {
    let shards: Vec<_> =
        source.dataset().shards().iter().map(|shard| (shard.path.clone(), shard.bytes)).collect();
    let files = Arc::new(ShardFiles::open(&shards, false)?);
    let mappings = Mappings::open(&files)?;
    mappings.without_read_ahead();
    let scanned = scanner.scan(&Scan { files: &files, mappings: &mappings, caller });
    // Lost pages read as zeros: report them.
    mappings.check()?;
    Ok(scanned?)
}

struct Scan<'a> {
    files: &'a ShardFiles,
    mappings: &'a Mappings,
    caller: &'a dyn Host,
}

impl MappedShards for Scan<'_> {
    fn bytes(&self, shard: ShardId, offset: u64, length: u64) -> Option<&[u8]> {
        self.mappings.bytes(shard, offset, length)
    }

    fn prefetch(&self, extent: Extent) -> u64 {
        self.files.prefetch(extent)
    }
}

impl ScanHost for Scan<'_> {
    fn progress(&self, what: &str, done: u64, total: u64) -> bool {
        self.caller.progress(what, done, total)
    }
}
