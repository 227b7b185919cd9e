//! Opening the files that an index leads to.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_format::{Dataset, Index};
use forebay_io::{DataFile, Mappings, ReadError, ShardFiles};
use forebay_plan::config::AccessChoice;

use crate::dataset::IndexedDataset;
use crate::error::Error;

/// Opens the shards, or uses the memory in which their values are retained.
pub(crate) fn open_files(
    source: &IndexedDataset,
    index: &Arc<Index>,
    direct: bool,
    retained: Option<Vec<OwnedFd>>,
) -> Result<Arc<ShardFiles>, Error> {
    let dataset = source.dataset();
    Ok(Arc::new(match retained {
        None => open_indexed(dataset, index, direct)?,
        Some(memory) => {
            let shards: Vec<(PathBuf, u64)> = dataset
                .shards()
                .iter()
                .zip(index.shards())
                .map(|(shard, indexed)| (shard.path.clone(), indexed.bytes))
                .collect();
            ShardFiles::kept(&shards, memory)?
        }
    }))
}

/// Opens what an index leads to: the shards, or, where each sample has a file of its own, the
/// folders. A shard that the dataset holds open is read through the same descriptor, so that each
/// takes one.
pub(crate) fn open_indexed(
    dataset: &Dataset,
    index: &Arc<Index>,
    direct: bool,
) -> Result<ShardFiles, ReadError> {
    open_through(dataset, index, direct, |number| dataset.open_shard(number))
}

/// The same through the descriptors that the dataset holds, wherever their paths lead by now.
pub(crate) fn open_held(dataset: &Dataset, index: &Arc<Index>) -> Result<ShardFiles, ReadError> {
    open_through(dataset, index, false, |number| dataset.held_shard(number))
}

fn open_through(
    dataset: &Dataset,
    index: &Arc<Index>,
    direct: bool,
    open: impl Fn(usize) -> Option<Arc<DataFile>>,
) -> Result<ShardFiles, ReadError> {
    let shards = dataset.shards();
    if index.has_sample_files() {
        let paths: Vec<_> = shards.iter().map(|shard| shard.path.clone()).collect();
        return ShardFiles::of_samples(Arc::clone(index) as _, &paths);
    }
    let files = shards.iter().zip(index.shards()).enumerate().map(|(number, (shard, indexed))| {
        let file = match open(number) {
            Some(file) => file,
            None => Arc::new(DataFile::open(&shard.path)?),
        };
        Ok((file, indexed.bytes))
    });
    ShardFiles::of_files(files, direct)
}

/// Maps the shards where `access` may use that. Samples in files of their own are too many to be
/// mapped, which is no failure.
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
