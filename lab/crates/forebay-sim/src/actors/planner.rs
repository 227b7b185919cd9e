//! The planner: turns the order into plans, a little ahead of the readers.

use forebay_model::Kernel;
use forebay_plan::{
    Next, Plan, PlanWindow, Schedule, Segment, StagingRing, plan_into, read_ahead_end, wanted_end,
};
use forebay_types::{Located, Rank, SampleId, SamplePlaces};

use crate::costs::nanoseconds;
use crate::planned_segment::PlannedSegment;
use crate::world::{World, ids_of_epoch};

/// The planner of a node.
pub(crate) struct Planner {
    node: usize,
    schedule: Schedule,
    staging: StagingRing,
    has_begun: bool,
    /// The next segment, which is not wanted yet.
    waiting: Option<Segment>,
    /// A segment that is being planned.
    planned: Option<PlannedSegment>,
    next_block: u64,
    ids: Vec<SampleId>,
    located: Located,
    plan: Plan,
}

impl Planner {
    pub(crate) fn new(world: &World<'_>, node: usize) -> Planner {
        let settings = world.settings(node);
        let ranks: Vec<Rank> = world.job.ranks_of(node as u32).map(Rank).collect();
        let steps = settings.first_segment_steps..=settings.segment_steps;
        Planner {
            node,
            schedule: Schedule::new(world.order, &ranks, 0, steps),
            staging: StagingRing::new(settings.region.staging_bytes, settings.region.blocks as u64),
            has_begun: false,
            waiting: None,
            planned: None,
            next_block: 0,
            ids: Vec::new(),
            located: Located::default(),
            plan: Plan::default(),
        }
    }

    pub(crate) fn resume(&mut self, kernel: &mut Kernel, world: &mut World<'_>) {
        if !self.has_begun {
            self.has_begun = true;
            return kernel.resume_at(world.nodes[self.node].begin);
        }
        let wake_ns = nanoseconds(world.job.costs.wake_ns);
        let node = &mut world.nodes[self.node];
        if let Some(planned) = self.planned.take() {
            node.push(planned);
            kernel.notify_after(node.filled, wake_ns);
            kernel.notify_after(node.gathered, wake_ns);
        }
        node.forget_done();
        if self.waiting.is_none() {
            let Next::Segment(segment) = self.schedule.next(|epoch| ids_of_epoch(&world.given, epoch)) else {
                return;
            };
            node.covered = segment.first_step;
            kernel.notify_after(node.filled, wake_ns);
            self.waiting = Some(segment);
        }
        let steps = world.order.steps_per_epoch();
        let window = PlanWindow {
            wanted_end: wanted_end(Some(world.job.epochs), steps, 0),
            read_ahead_end: read_ahead_end(Some(node.position), steps),
            claim: Some(node.next_claim),
        };
        let is_wanted = |segment: &Segment| window.wants(segment.first_step, || node.segments_ahead());
        let is_located = |segment: &Segment| node.located.iter().all(|next| *next > segment.last_step);
        let is_ready = |segment: &mut Segment| is_wanted(segment) && is_located(segment);
        let Some(segment) = self.waiting.take_if(is_ready) else {
            return kernel.wait(node.planning);
        };
        let is_of_roots = !node.located.is_empty();
        node.planned = segment.last_step + 1;
        if is_of_roots {
            // There is room for the places of further steps.
            kernel.notify_after(node.planning, wake_ns);
        }
        let costs = &world.job.costs;
        let duration = segment.demands.len() as f64 * (costs.locate_ns + costs.plan_ns);
        let end = node.work_of_ranks(kernel, nanoseconds(duration));
        self.planned = Some(self.plan(world, &segment));
        kernel.resume_at(end);
    }

    fn plan(&mut self, world: &World<'_>, segment: &Segment) -> PlannedSegment {
        self.ids.clear();
        self.ids.extend(segment.demands.iter().map(|demand| demand.sample));
        let Ok(()) = world.places.locate(&self.ids, &mut self.located);
        let limits = &world.settings(self.node).limits;
        let (located, plan) = (&self.located, &mut self.plan);
        plan_into(segment, located, &world.shard_bytes, limits, &mut self.staging, plan);
        let planned = PlannedSegment::new(segment, located, plan, self.next_block);
        self.next_block = plan.blocks.last().map_or(self.next_block, |block| block.sequence + 1);
        planned
    }
}
