//! What a planner takes from the roots of its node: where the samples of a segment lie.

use forebay_plan::Segment;
use forebay_types::Located;

use crate::pipeline::session::Session;
use crate::shm::block_state::{is_behind, publish_position};

/// The locations that the roots of the node publish.
pub(crate) struct RootLookup<'a> {
    session: &'a Session,
}

impl<'a> RootLookup<'a> {
    /// `None` where no roots locate samples.
    pub(crate) fn new(session: &'a Session) -> Option<Self> {
        (session.context.settings.locating_roots > 0).then_some(Self { session })
    }

    /// Whether the roots have come to the end of a segment.
    pub(crate) fn is_ready(&self, segment: &Segment) -> bool {
        let context = &self.session.context;
        let roots = &context.region.readers()[..context.settings.locating_roots];
        roots.iter().all(|root| is_behind(&root.found, self.session.number, segment.last_step))
    }

    /// Takes the locations of a segment that is ready; false where one is missing.
    pub(crate) fn take(&self, segment: &Segment, out: &mut Located) -> bool {
        let context = &self.session.context;
        let locations = context.region.locations();
        let batch = context.order.largest_batch();
        out.clear(1);
        let has_all = segment.demands.iter().all(|need| {
            let number = u64::from(need.local_rank) * batch + u64::from(need.slot);
            let location = locations.get(segment.first_step + u64::from(need.step), number);
            location.inspect(|location| location.push(out)).is_some()
        });
        publish_position(&context.slot().taken, self.session.number, segment.last_step + 1);
        context.region.planning().notify();
        has_all
    }
}
