//! What a rank takes from an in-memory store for a step: from the share of its node, by requests to
//! other nodes, and from the files what no share holds.

use std::collections::VecDeque;

use forebay_model::{Kernel, ModelTime};
use forebay_plan::{SharePart, peer_requests, share_parts};
use forebay_types::{Extent, MAX_REQUEST_PARTS};

use crate::actors::in_place::RankReads;
use crate::store::ShareRequest;
use crate::world::World;

/// The samples of one rank for a step.
pub(crate) struct ShareReads {
    rank: u32,
    /// Bytes in the share of its node \[B\].
    pub(crate) own_bytes: u64,
    /// Requests to other nodes that have not been sent, those to one node together.
    queues: Vec<VecDeque<ShareRequest>>,
    /// Parts that overlap others, which are asked for later.
    later: Vec<SharePart>,
    /// What those that were sent take to receive: parts, bytes.
    received: (u64, u64),
    /// When the last of them is answered.
    due: ModelTime,
    /// What no share holds.
    files: RankReads,
}

impl ShareReads {
    /// What a rank takes of these bytes of the files, counted for `epoch`.
    pub(crate) fn new(
        world: &mut World<'_>,
        (node, rank, epoch): (usize, u32, u64),
        extents: &[Extent],
    ) -> ShareReads {
        let (mut wanted, mut missing, mut own_bytes): (Vec<SharePart>, Vec<Extent>, u64) =
            (Vec::new(), Vec::new(), 0);
        if let Some(store) = &world.store {
            for extent in extents {
                match share_parts(&store.plan.layout, world.chunks, *extent, |_| true) {
                    None => missing.push(*extent),
                    Some(parts) => {
                        for part in parts {
                            if part.node == node {
                                own_bytes += part.length;
                            } else {
                                wanted.push(part);
                            }
                        }
                    }
                }
            }
        }
        let counted = world.nodes[node].levels.entry(epoch).or_default();
        counted.share += own_bytes;
        counted.peers += wanted.iter().map(|part| part.length).sum::<u64>();
        ShareReads {
            rank,
            own_bytes,
            queues: Vec::new(),
            later: wanted,
            received: (0, 0),
            due: 0,
            files: RankReads::new(missing),
        }
    }

    /// Goes on; returns when it continues, or `None` once all is there.
    pub(crate) fn read(
        &mut self,
        (node, epoch): (usize, u64),
        kernel: &mut Kernel,
        world: &mut World<'_>,
    ) -> Option<ModelTime> {
        let now = kernel.now();
        loop {
            let mut free = ModelTime::MAX;
            for queue in &mut self.queues {
                while let Some(request) = queue.front() {
                    match world.fetch(kernel, (self.rank, node), request) {
                        Err(due) => {
                            free = free.min(due);
                            break;
                        }
                        Ok(due) => self.due = self.due.max(due),
                    }
                    self.received.0 += request.parts;
                    self.received.1 += request.bytes;
                    queue.pop_front();
                }
            }
            if free < ModelTime::MAX {
                return Some(free);
            }
            if self.due > now {
                return Some(self.due);
            }
            if self.received != (0, 0) {
                let (parts, bytes) = std::mem::take(&mut self.received);
                return Some(kernel.work(world.nodes[node].processors, world.job.costs.serve(parts, bytes)));
            }
            if self.later.is_empty() {
                return self.files.read((node, epoch), kernel, world);
            }
            self.queue_later(world);
        }
    }

    /// Makes requests of the parts that are wanted, but for those that overlap others.
    fn queue_later(&mut self, world: &World<'_>) {
        let mut parts = std::mem::take(&mut self.later);
        parts.sort_unstable_by_key(|part| (part.node, part.offset));
        let most_bytes = world.store.as_ref().map_or(u64::MAX, |store| store.plan.limits.bytes);
        let (requests, later) = peer_requests(&parts, most_bytes, MAX_REQUEST_PARTS);
        self.later = later.into_iter().map(|number| parts[number]).collect();
        self.queues.clear();
        for request in requests {
            let bytes = request.pieces.iter().map(|piece| piece.length).sum();
            let made = ShareRequest { node: request.node, parts: request.pieces.len() as u64, bytes };
            match self.queues.last_mut() {
                Some(queue) if queue.back().is_some_and(|last| last.node == made.node) => {
                    queue.push_back(made);
                }
                _ => self.queues.push([made].into()),
            }
        }
    }
}
