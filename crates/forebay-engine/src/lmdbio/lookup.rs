//! What a planner asks: whether the samples of a segment are found, and where they lie.

use forebay_format::SamplePlace;
use forebay_plan::Segment;
use forebay_types::{Extent, Located, SampleId, ShardId};

use crate::error::Error;
use crate::pipeline::session::Session;
use crate::shm::block_state::{is_behind, publish_position};

use crate::shm::location_ring::SampleLocation;

/// Whether the samples of a segment can be located without waiting.
pub(crate) fn is_found(session: &Session, segment: &Segment) -> bool {
    let context = &session.context;
    !context.settings.mode.has_finds()
        || context.region.readers()[..context.settings.finders()]
            .iter()
            .all(|root| is_behind(&root.found, session.number, segment.last_step))
}

/// Locates the samples of a segment of which [`is_found`] is true; `ids` is memory that is used again.
pub(crate) fn locate(
    session: &Session,
    segment: &Segment,
    ids: &mut Vec<SampleId>,
    out: &mut Located,
) -> Result<(), Error> {
    let context = &session.context;
    if context.settings.mode.has_finds() {
        let taken = take(session, segment, out);
        publish_position(&context.slot().taken, session.number, segment.last_step + 1);
        context.region.planning().notify();
        if taken {
            return Ok(());
        }
    }
    ids.clear();
    ids.extend(segment.demands.iter().map(|need| need.sample));
    Ok(context.index.locate(ids, out)?)
}

/// Takes the finds of a segment; false where one of them is missing.
fn take(session: &Session, segment: &Segment, out: &mut Located) -> bool {
    let finds = session.context.region.finds();
    let batch = session.context.options.batch_size;
    out.clear(1);
    segment.demands.iter().all(|need| {
        let number = u64::from(need.local_rank) * batch + u64::from(need.slot);
        let find = finds.get(segment.first_step + u64::from(need.step), number);
        find.is_some_and(|find| {
            SamplePlace::from(find).push(out);
            true
        })
    })
}

impl From<SampleLocation> for SamplePlace {
    fn from(find: SampleLocation) -> Self {
        Self {
            extent: Extent { shard: ShardId(find.shard), offset: find.offset, length: find.length },
            head_bytes: find.head_bytes,
            guard: find.guard,
        }
    }
}
