//! Orders that the user supplies, one epoch at a time: the same on each rank of the node, or an
//! error.

use std::sync::Arc;

use crate::error::Error;
use crate::loader::Engine;
use crate::shm::region::RankSlot;

impl Engine {
    /// Takes the order of an epoch, for `order="given"`.
    pub fn give_order(&self, epoch: u64, ids: &[i64]) -> Result<(), Error> {
        let _consumer = self.consumer()?;
        let context = &self.context;
        let ids: Arc<[u64]> = context.order.check_given(epoch, ids)?.into();
        self.compare_given(epoch, &ids)?;
        context.given.put(epoch, ids);
        context.notify_all();
        Ok(())
    }

    /// Compares the digest of a given order with what the other ranks of the node were given for
    /// the same epoch.
    fn compare_given(&self, epoch: u64, ids: &[u64]) -> Result<(), Error> {
        let context = &self.context;
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        for id in ids {
            hasher.update(&id.to_le_bytes());
        }
        context.slot().give(epoch, hasher.digest());
        self.check_given_orders(epoch)
    }

    /// Checks that all ranks of the node that were given an order for an epoch were given the same.
    ///
    /// The rank that gets its order last fails in `give_order`; the others fail here.
    pub(crate) fn check_given_orders(&self, epoch: u64) -> Result<(), Error> {
        let context = &self.context;
        let Some(own) = context.slot().given_digest(epoch) else { return Ok(()) };
        let differs = |slot: &RankSlot| slot.given_digest(epoch).is_some_and(|other| other != own);
        match context.region.ranks().iter().position(differs) {
            None => Ok(()),
            Some(local) => Err(Error::disagree(format!(
                "the order given for epoch {epoch} differs between rank {} and rank {}",
                context.options.rank, context.options.local_ranks[local]
            ))),
        }
    }
}
