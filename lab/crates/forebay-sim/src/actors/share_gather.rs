//! A gather thread of ranks that take their samples from an in-memory store. It stands for the
//! threads of all ranks of the node that work on the same step.

use std::ops::Range;

use forebay_model::Kernel;
use forebay_plan::PermutationCache;
use forebay_types::{Located, Piece, Rank, SampleId, SamplePlaces};

use crate::actors::share_reads::ShareReads;
use crate::actors::turns::RankTurns;
use crate::costs::nanoseconds;
use crate::world::{World, ids_of_epoch};

/// A gather thread of each rank of a node.
pub(crate) struct ShareGather {
    node: usize,
    ranks: Range<u32>,
    ids: Vec<SampleId>,
    kept: PermutationCache,
    located: Located,
    state: State,
}

enum State {
    /// The ranks of the node have not begun.
    Start,
    /// It claims a step.
    Claiming,
    /// Its ranks fetch what they need of this step.
    Fetching { step: u64, ranks: Vec<ShareReads>, turns: RankTurns },
    /// It copies the samples of this step.
    Copying(u64),
}

impl ShareGather {
    pub(crate) fn new(node: usize, ranks: Range<u32>) -> ShareGather {
        ShareGather {
            node,
            ranks,
            ids: Vec::new(),
            kept: PermutationCache::default(),
            located: Located::default(),
            state: State::Start,
        }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        let wake_ns = nanoseconds(world.job.costs.wake_ns);
        let steps_per_epoch = world.order.steps_per_epoch();
        loop {
            let node = &mut world.nodes[self.node];
            match &mut self.state {
                State::Start => {
                    self.state = State::Claiming;
                    return kernel.resume_at(node.begin);
                }
                State::Claiming => {
                    let Some(step) = node.claim() else { return kernel.wait(node.room) };
                    if step >= world.job.epochs * steps_per_epoch {
                        // Nothing is fetched beyond the last epoch.
                        return;
                    }
                    let ranks = self.ranks.clone().map(|rank| self.begin(world, step, rank)).collect();
                    let costs = &world.job.costs;
                    let duration = world.job.batch_size as f64 * costs.locate_ns;
                    let end = world.nodes[self.node].work_of_ranks(kernel, nanoseconds(duration));
                    let turns = RankTurns::new(end, self.ranks.len());
                    self.state = State::Fetching { step, ranks, turns };
                }
                State::Fetching { step, ranks, turns } => {
                    let place = (self.node, *step / steps_per_epoch);
                    if let Some(time) =
                        turns.run(kernel, |rank, kernel| ranks[rank].read(place, kernel, world))
                    {
                        return kernel.resume_at(time);
                    }
                    let step = *step;
                    let copied = ranks.iter().map(|rank| rank.own_bytes).max().unwrap_or(0);
                    let duration = world.gather_ns(copied);
                    let end = world.nodes[self.node].work_of_ranks(kernel, duration);
                    self.state = State::Copying(step);
                    return kernel.resume_at(end);
                }
                State::Copying(step) => {
                    node.finish(*step);
                    kernel.notify_after(node.gathered, wake_ns);
                    self.state = State::Claiming;
                }
            }
        }
    }

    /// Finds what a rank needs of a step.
    fn begin(&mut self, world: &mut World<'_>, step: u64, rank: u32) -> ShareReads {
        let steps = world.order.steps_per_epoch();
        let (epoch, within) = (step / steps, step % steps);
        let given = ids_of_epoch(&world.given, epoch);
        let (kept, ids) = (&mut self.kept, &mut self.ids);
        world.order.batch_keeping(epoch, within, Rank(rank), given.as_deref(), kept, ids);
        let Ok(()) = world.places.locate(ids, &mut self.located);
        let extents: Vec<_> = self
            .located
            .pieces()
            .iter()
            .filter_map(|piece| match piece {
                Piece::Extent(extent) => Some(*extent),
                Piece::Literal { .. } => None,
            })
            .collect();
        ShareReads::new(world, (self.node, rank, epoch), &extents)
    }
}
