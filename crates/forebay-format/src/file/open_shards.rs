//! Open files of a dataset.

use forebay_host::allow_open_files;

/// A shard is open in the dataset, in its loader, and once more where reads go around the page
/// cache.
const OF_A_SHARD: u64 = 3;

/// For what else the process has open.
const OTHERS: u64 = 512;

/// Raises the limit on open files for a dataset of this many shards. Where it cannot be raised,
/// the open that fails later names its file.
pub(crate) fn allow_open_shards(shards: usize) {
    allow_open_files(OF_A_SHARD * shards as u64 + OTHERS);
}
