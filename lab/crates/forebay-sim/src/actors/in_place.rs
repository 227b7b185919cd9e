//! What a rank reads itself: the samples of a step that no reader staged.

use forebay_model::{AccessMethod, ClientAccess, Kernel, ModelTime};
use forebay_plan::{AskedAhead, RequestTraits, in_place_runs};
use forebay_types::Extent;

use crate::actors::transfers::Transfers;
use crate::costs::nanoseconds;
use crate::request::Request;
use crate::world::World;

/// The requests of one rank for a step.
pub(crate) struct RankReads {
    requests: Vec<Extent>,
    /// Requests that have been begun.
    begun: usize,
    ahead: AskedAhead,
    /// What the last of these takes, where there are tiers.
    transfers: Transfers,
    /// How much of that has been begun.
    sent: usize,
    /// What is waited for; without access where memory has it.
    waiting: Option<(Request, Option<ClientAccess>)>,
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

    pub(super) fn new(extents: Vec<Extent>) -> RankReads {
        let (mut requests, mut small): (Vec<Extent>, Vec<Extent>) =
            extents.into_iter().partition(|extent| extent.length >= RequestTraits::FILES.straight_bytes);
        small.sort_unstable_by_key(|extent| (extent.shard, extent.offset));
        requests.extend(in_place_runs(&small, RequestTraits::FILES.gap_bytes).iter().map(|run| run.extent));
        RankReads {
            requests,
            begun: 0,
            ahead: AskedAhead::default(),
            transfers: Transfers::default(),
            sent: 0,
            waiting: None,
        }
    }

    /// Goes on, for a step of `epoch`; returns when it continues, or `None` once it has read all.
    pub(crate) fn read(
        &mut self,
        (node, epoch): (usize, u64),
        kernel: &mut Kernel,
        world: &mut World<'_>,
    ) -> Option<ModelTime> {
        let (now, processors) = (kernel.now(), world.nodes[node].processors);
        let direct = world.settings(node).direct;
        loop {
            if let Some((request, access)) = &mut self.waiting {
                if let Some(access) = access
                    && let Some(due) = world.advance_request(now, node, request.holder, access)
                {
                    return Some(due);
                }
                let duration = world.request_ns(request);
                self.waiting = None;
                return Some(kernel.work(processors, duration));
            }
            // A rank waits for the bytes.
            if let Some(due) = self.transfers.plan(now, world, node, false) {
                return Some(due);
            }
            if let Some(&request) = self.transfers.requests.get(self.sent) {
                self.sent += 1;
                let how = if direct { AccessMethod::Direct } else { AccessMethod::Read };
                self.waiting = Some((request, world.begin_request(node, &request, how, epoch)));
                continue;
            }
            if let Some(due) = self.transfers.land(kernel, world, node, false) {
                return Some(due);
            }
            let next = *self.requests.get(self.begun)?;
            let mut sent = 0;
            if !direct {
                for asked in self.ahead.before(self.begun, &self.requests) {
                    sent += world.will_need(now, node, self.requests[asked]);
                }
            }
            (self.transfers, self.sent) = (Transfers::new([next]), 0);
            self.begun += 1;
            if sent > 0 {
                let duration = nanoseconds(world.job.costs.request_ns) * sent;
                return Some(kernel.work(processors, duration));
            }
        }
    }
}
