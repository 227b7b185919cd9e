//! The third phase of a loader: a rank has opened what it reads from: the files, their mappings,
//! storage tiers, and the memory of this and other nodes.

use std::sync::Arc;

use forebay_io::{FileIo, Mappings, ShardFiles};
use forebay_plan::config::{Mapping, ReadAhead};
use forebay_tier::TieredFiles;

use crate::base::fallback::{Fallback, Wanted};
use crate::config::tiers;
use crate::dataset::open::{open_files, open_mappings};
use crate::error::Error;
use crate::host::Host;
use crate::loader::agreed::Making;
use crate::loader::decided::Decided;
use crate::loader::leader_setup::LeaderOwn;
use crate::pipeline::near::{MappedFiles, Near, NearLevel};
use crate::residents::ResidentMemory;
use crate::store::Store;

/// See the module header.
pub(crate) struct Opened {
    pub(crate) files: Arc<ShardFiles>,
    /// The files, with the copies in tiers in front of them where there are tiers.
    pub(crate) io: Arc<dyn FileIo>,
    pub(crate) tiers: Option<Arc<TieredFiles>>,
    pub(crate) mappings: Option<Arc<Mappings>>,
    pub(crate) store: Option<Arc<Store>>,
    /// What has bytes in memory.
    pub(crate) near: Near,
    /// What could not be opened, and is done without.
    pub(crate) fallbacks: Vec<Fallback>,
}

impl Opened {
    /// Opens all that the decisions name; a leader has opened some of it.
    pub(crate) fn open(
        making: &Making<'_>,
        decided: &mut Decided,
        own: &mut LeaderOwn,
    ) -> Result<Self, Error> {
        let &Making { options, strategies, creation, caller, .. } = making;
        let mut fallbacks = Vec::new();
        let mut falls_back = |wanted, reason: String| {
            let fallback = Fallback::new(wanted, reason);
            fallback.log(&options.name);
            fallbacks.push(fallback);
        };
        let FromStorage { files, mappings, tiers } = FromStorage::open(making, decided, own)?;
        let tiers = match tiers.transpose() {
            Ok(tiers) => tiers,
            Err(error) => {
                falls_back(Wanted::Tiers, tiers::unusable(error, options)?);
                None
            }
        };
        let (mut store, mut residents) = (None, None);
        match (&decided.reply.store, decided.own_share.take()) {
            (Some(plan), Some(share)) => {
                let new = Store::new(plan, share, options, &files, &decided.index)?;
                new.connect(making.deadline(), caller)?;
                if let Some(server) = &own.server {
                    let links = creation.links().map(Arc::as_ref);
                    server.wait_for_clients(links, making.deadline(), caller)?;
                }
                store = Some(Arc::new(new));
            }
            (None, Some(share)) => residents = Some(Arc::new(ResidentMemory::new(share)?)),
            (_, None) => {}
        }
        let io: Arc<dyn FileIo> = match &tiers {
            Some(tiers) => Arc::clone(tiers) as _,
            None => Arc::clone(&files) as _,
        };
        let mappings = match mappings.transpose() {
            Ok(mappings) => mappings.flatten().map(Arc::new),
            Err(error) if strategies.locators.is_some() => return Err(error),
            Err(error) => {
                falls_back(Wanted::Mapping, error.to_string());
                None
            }
        };
        let settings = &decided.reply.settings;
        let (access, leaves_faults) = (settings.access, settings.leaves_faults_to_ranks());
        let mapped = mappings.clone().map(|mappings| MappedFiles { mappings, access, leaves_faults });
        let levels: [Option<Arc<dyn NearLevel>>; 4] = [
            store.clone().map(|store| store as _),
            residents.map(|residents| residents as _),
            tiers.clone().map(|tiers| tiers as _),
            mapped.map(|mapped| Arc::new(mapped) as _),
        ];
        let near = Near::new(levels.into_iter().flatten());
        Ok(Self { files, io, tiers, mappings, store, near, fallbacks })
    }
}

/// What storage may block.
struct FromStorage {
    files: Arc<ShardFiles>,
    mappings: Option<Result<Option<Mappings>, Error>>,
    tiers: Option<Result<Arc<TieredFiles>, forebay_tier::TierError>>,
}

impl FromStorage {
    fn open(making: &Making<'_>, decided: &mut Decided, own: &mut LeaderOwn) -> Result<Self, Error> {
        let (source, index) = (Arc::clone(making.source), Arc::clone(&decided.index));
        let (options, plan) = (making.options.clone(), decided.reply.tiers.clone());
        let (opened, client, retained) = (own.files.take(), own.tiers.take(), decided.retained.take());
        let settings = &decided.reply.settings;
        let (direct, access) = (settings.direct, settings.access);
        let maps = settings.mapping != Mapping::None;
        let kernel_read_ahead = settings.read_ahead == ReadAhead::Kernel;
        let is_retained = decided.reply.retained;
        making.offload(making.caller, move |_: &dyn Host| {
            let files = match opened.filter(|files| files.serves(direct)) {
                Some(files) => files,
                None => open_files(&source, &index, direct, retained)?,
            };
            let mappings = maps.then(|| open_mappings(access, &files));
            // Kernel read-ahead past a prefetched range reads samples of other ranks. And while it
            // is on, FUSE drops prefetch requests under load (fs/fuse/file.c, `fuse_readahead`).
            files.read_ahead(kernel_read_ahead);
            let tiers = plan.map(|plan| {
                let watched =
                    if is_retained { open_files(&source, &index, false, None)? } else { Arc::clone(&files) };
                Ok::<_, Error>(tiers::open(&plan, client, &options, &files, watched, &index))
            });
            Ok(Self { files, mappings, tiers: tiers.transpose()? })
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::loader::one_rank::OneRank;

    #[test]
    fn a_rank_maps_local_files_unless_it_reads_them() {
        for (access, maps) in [("auto", true), ("mmap", true), ("pread", false)] {
            let rank = OneRank::new(|values| values["strategy"] = serde_json::json!({"access": access}));
            let opened = rank.opened().unwrap();
            assert_eq!((opened.files.len(), opened.mappings.is_some()), (1, maps), "{access}");
            assert!(opened.tiers.is_none() && opened.store.is_none() && opened.fallbacks.is_empty());
        }
    }
}
