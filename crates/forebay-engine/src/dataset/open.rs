//! Opening the files that an index leads to.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_format::Index;
use forebay_io::{Mappings, ReadError, ShardFiles};
use forebay_plan::config::AccessChoice;

use crate::dataset::IndexedDataset;
use crate::error::Error;

/// Opens the shards, or takes the memory in which they are kept.
pub(crate) fn open_files(
    source: &IndexedDataset,
    index: &Arc<Index>,
    direct: bool,
    kept: Option<Vec<OwnedFd>>,
) -> Result<Arc<ShardFiles>, Error> {
    let paths = source.dataset().shards().iter().map(|shard| shard.path.clone());
    Ok(Arc::new(match kept {
        None => open_indexed(index, paths.collect(), direct)?,
        Some(memory) => {
            let shards: Vec<(PathBuf, u64)> =
                paths.zip(index.shards()).map(|(path, shard)| (path, shard.bytes)).collect();
            ShardFiles::kept(&shards, memory)?
        }
    }))
}

/// Opens what an index leads to: the shards at `paths`, or, where samples have files of their own, the folders.
pub(crate) fn open_indexed(
    index: &Arc<Index>,
    paths: Vec<PathBuf>,
    direct: bool,
) -> Result<ShardFiles, ReadError> {
    if index.has_sample_files() {
        return ShardFiles::of_samples(Arc::clone(index) as _, &paths);
    }
    let shards: Vec<_> = paths.into_iter().zip(index.shards().iter().map(|shard| shard.bytes)).collect();
    ShardFiles::open(&shards, direct)
}

/// Maps the shards where `access` may use that. Samples in files of their own are too many to be mapped, which is no failure.
pub(crate) fn open_mappings(
    access: AccessChoice,
    files: &Arc<ShardFiles>,
) -> Result<Option<Mappings>, Error> {
    match access {
        AccessChoice::Mmap | AccessChoice::Auto if files.are_of_samples() => Ok(None),
        AccessChoice::Mmap => Ok(Some(Mappings::open(files)?)),
        AccessChoice::Auto if files.is_local() => Ok(Some(Mappings::open(files)?)),
        _ => Ok(None),
    }
}
