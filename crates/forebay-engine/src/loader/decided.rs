//! The second phase of a loader: a rank has the decisions of its leader, and what they are about:
//! the shared memory, the index, the order.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use forebay_format::Index;
use forebay_host::Map;
use forebay_plan::Order;

use crate::error::Error;
use crate::loader::agreed::Making;
use crate::loader::leader_setup::{Reply, decided_order};
use crate::shm::region::Region;

/// See the module header.
pub(crate) struct Decided {
    pub(crate) reply: Reply,
    /// Cores that this rank may use.
    pub(crate) cores: usize,
    pub(crate) region: Arc<Region>,
    /// Whether the region has huge pages.
    pub(crate) huge_pages: bool,
    pub(crate) index: Arc<Index>,
    pub(crate) order: Order,
    /// What this node holds in memory, if it holds something.
    pub(crate) own_share: Option<Map>,
    /// Retained values, in place of the files.
    pub(crate) retained: Option<Vec<OwnedFd>>,
}

impl Decided {
    /// Maps the memory that came with the leader's decisions. A leader has parsed its index
    /// already.
    pub(crate) fn of(
        reply: Reply,
        fds: Vec<OwnedFd>,
        leaders_index: Option<Index>,
        making: &Making<'_>,
    ) -> Result<Self, Error> {
        let options = making.options;
        let cores = reply.cores.get(options.local_rank as usize).copied().unwrap_or(1);
        let mut fds = fds.into_iter();
        let (Some(region_fd), Some(index_fd)) = (fds.next(), fds.next()) else {
            return Err(Error::local("the leader sent no memory"));
        };
        let region = Arc::new(Region::map(region_fd, reply.settings.region.clone())?);
        let huge_pages = region.memory().ask_for_huge_pages();
        let index = Arc::new(match leaders_index {
            Some(index) => index,
            None => making.source.dataset().shared_index(Arc::new(IndexBytes(Map::read_only(&index_fd)?)))?,
        });
        let shares = reply.shares.as_ref().map(|job| Arc::new(job.shares.clone()));
        let order = decided_order(options, &index, &reply.settings, shares, reply.residents.as_ref())?;
        let has_share = reply.store.is_some() || reply.residents.is_some();
        let own_share = has_share.then(|| fds.next().ok_or_else(|| Error::local("no share was sent")));
        let own_share = own_share.transpose()?.map(|share| Map::read_only(&share)).transpose()?;
        let retained = reply.retained.then(|| fds.collect());
        Ok(Self { reply, cores, region, huge_pages, index, order, own_share, retained })
    }
}

/// The index's bytes in the leader's sealed memory.
struct IndexBytes(Map);

impl AsRef<[u8]> for IndexBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use crate::loader::one_rank::OneRank;

    use super::*;

    #[test]
    fn a_rank_maps_the_index_and_makes_the_order_that_was_decided() {
        for (kind, last_batch, steps) in [("sequential", "fill", 13), ("shuffle", "drop", 12)] {
            let rank = OneRank::new(|values| {
                values["order"]["kind"] = kind.into();
                values["last_batch"] = last_batch.into();
            });
            let decided = rank.decided().unwrap();
            assert_eq!(decided.index.samples(), OneRank::SAMPLES);
            assert_eq!((decided.order.kind().name(), decided.order.steps_per_epoch()), (kind, steps));
            assert_eq!(decided.region.layout().ranks, 1);
            assert!(decided.own_share.is_none() && decided.retained.is_none());
        }
    }

    #[test]
    fn a_reply_without_memory_is_an_error() {
        let rank = OneRank::new(|_| ());
        let reply = rank.agreed().unwrap().reply;
        let error = rank.with(|making| Decided::of(reply, Vec::new(), None, making)).err().unwrap();
        assert!(error.to_string().contains("the leader sent no memory"), "{error}");
    }
}
