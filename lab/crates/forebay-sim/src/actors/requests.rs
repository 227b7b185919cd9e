//! How requests are made: to the file system, or to a tier of the node.

use forebay_model::{AccessMethod, ClientAccess, ModelTime};

use crate::costs::nanoseconds;
use crate::request::{Holder, Request};
use crate::world::World;

impl World<'_> {
    /// Begins a request of a node, and counts it for an epoch; `None` for one that is answered from
    /// memory.
    pub(crate) fn begin_request(
        &mut self,
        node: usize,
        request: &Request,
        how: AccessMethod,
        epoch: u64,
    ) -> Option<ClientAccess> {
        let &Request { holder, offset, length } = request;
        let counted = self.nodes[node].levels.entry(epoch).or_default();
        match holder {
            Holder::Source(shard) => {
                counted.source += length;
                let counters = &mut self.nodes[node].counters;
                counters.reads += 1;
                counters.read_bytes += length;
                let open = self.open(node, shard.0);
                Some(self.storage.client(self.nodes[node].id).access(open, offset, length, how))
            }
            Holder::Level(level) => {
                counted.add_to_tier(level, length);
                let storage = self.tiers[node].levels[level].storage.as_mut()?;
                Some(storage.files.client(storage.node).access(storage.open, offset, length, how))
            }
        }
    }

    /// Sends a request that bypasses the page cache, and returns when it is answered.
    pub(crate) fn send_request(
        &mut self,
        now: ModelTime,
        node: usize,
        request: &Request,
        epoch: u64,
    ) -> ModelTime {
        let Some(mut access) = self.begin_request(node, request, AccessMethod::Direct, epoch) else {
            return now;
        };
        let due = match request.holder {
            Holder::Source(_) => self.storage.step(now, self.nodes[node].id, &mut access).due,
            Holder::Level(level) => {
                let level = &mut self.tiers[node].levels[level];
                let due = level
                    .storage
                    .as_mut()
                    .and_then(|storage| storage.files.step(now, storage.node, &mut access).due);
                level.reading_until = level.reading_until.max(due.unwrap_or(now));
                due
            }
        };
        due.unwrap_or(now)
    }

    /// Goes on with a request; returns until when it waits, or `None` once it is answered.
    pub(crate) fn advance_request(
        &mut self,
        now: ModelTime,
        node: usize,
        holder: Holder,
        access: &mut ClientAccess,
    ) -> Option<ModelTime> {
        match holder {
            Holder::Source(_) => self.storage.advance(now, self.nodes[node].id, access),
            Holder::Level(level) => {
                let level = &mut self.tiers[node].levels[level];
                let storage = level.storage.as_mut()?;
                let due = storage.files.advance(now, storage.node, access)?;
                level.reading_until = level.reading_until.max(due);
                Some(due)
            }
        }
    }

    /// Processor time of a request, besides waiting \[ns\].
    pub(crate) fn request_ns(&self, request: &Request) -> u64 {
        let costs = &self.job.costs;
        match request.holder {
            // Ranks copy from the memory itself.
            Holder::Level(level) if self.job.tiers[level].storage.is_none() => 0,
            _ => nanoseconds(costs.read_ns) + costs.copy(request.length),
        }
    }
}
