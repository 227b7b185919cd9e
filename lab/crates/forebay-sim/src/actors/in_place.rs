//! What a rank reads itself: the samples of a step that no reader staged.

use forebay_model::{AccessMethod, ByteRange, ClientAccess, Kernel, ModelTime};
use forebay_plan::{AskedAhead, RequestTraits, in_place_runs};
use forebay_types::Extent;

use crate::costs::nanoseconds;
use crate::world::World;

/// The requests of one rank for a step.
pub(crate) struct RankReads {
    requests: Vec<Extent>,
    /// Requests that have been begun.
    begun: usize,
    ahead: AskedAhead,
    access: Option<ClientAccess>,
}

impl RankReads {
    /// The requests of each rank for what it reads in place: local rank, bytes.
    pub(crate) fn of(in_place: &[(u32, Extent)]) -> Vec<RankReads> {
        let ranks = in_place.iter().map(|(rank, _)| *rank as usize + 1).max().unwrap_or(0);
        let mut extents: Vec<Vec<Extent>> = vec![Vec::new(); ranks];
        for (rank, extent) in in_place {
            extents[*rank as usize].push(*extent);
        }
        extents.into_iter().map(RankReads::new).collect()
    }

    fn new(extents: Vec<Extent>) -> RankReads {
        let (mut requests, mut small): (Vec<Extent>, Vec<Extent>) =
            extents.into_iter().partition(|extent| extent.length >= RequestTraits::FILES.straight_bytes);
        small.sort_unstable_by_key(|extent| (extent.shard, extent.offset));
        requests.extend(in_place_runs(&small, RequestTraits::FILES.gap_bytes).iter().map(|run| run.extent));
        RankReads { requests, begun: 0, ahead: AskedAhead::default(), access: None }
    }

    /// Goes on; returns when it continues, or `None` once it has read all.
    pub(crate) fn read(
        &mut self,
        node: usize,
        kernel: &mut Kernel,
        world: &mut World<'_>,
    ) -> Option<ModelTime> {
        let (now, id, processors) = (kernel.now(), world.nodes[node].id, world.nodes[node].processors);
        loop {
            if let Some(access) = &mut self.access {
                if let Some(due) = world.storage.advance(now, id, access) {
                    return Some(due);
                }
                self.access = None;
                let costs = &world.job.costs;
                let copied = costs.copy(self.requests[self.begun - 1].length);
                return Some(kernel.work(processors, nanoseconds(costs.read_ns) + copied));
            }
            let next = *self.requests.get(self.begun)?;
            let direct = world.settings(node).direct;
            let mut sent = 0;
            if !direct {
                for asked in self.ahead.before(self.begun, &self.requests) {
                    let extent = self.requests[asked];
                    let open = world.open(node, extent.shard.0);
                    let range = ByteRange { offset: extent.offset, length: extent.length };
                    sent += world.storage.will_need(now, id, open, range);
                }
            }
            let open = world.open(node, next.shard.0);
            let counters = &mut world.nodes[node].counters;
            counters.reads += 1;
            counters.read_bytes += next.length;
            let how = if direct { AccessMethod::Direct } else { AccessMethod::Read };
            self.access = Some(world.storage.client(id).access(open, next.offset, next.length, how));
            self.begun += 1;
            if sent > 0 {
                let duration = nanoseconds(world.job.costs.request_ns) * sent;
                return Some(kernel.work(processors, duration));
            }
        }
    }
}
