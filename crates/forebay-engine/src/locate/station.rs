//! What a planner asks: whether the samples of a tranche are found, and where they lie.

use forebay_format::SamplePlace;
use forebay_plan::Segment;
use forebay_types::{Extent, Located, SampleId, ShardId};

use crate::error::Error;
use crate::pass::Pass;
use crate::protocol::{is_behind, publish_position};

use super::Find;

/// Whether the samples of a tranche can be located without waiting.
pub(crate) fn is_found(pass: &Pass, tranche: &Segment) -> bool {
    let shared = &pass.shared;
    !shared.settings.mode.has_finds()
        || shared.region.readers()[..shared.settings.finders()]
            .iter()
            .all(|root| is_behind(&root.found, pass.number, tranche.last_step))
}

/// Locates the samples of a tranche of which [`is_found`] is true; `ids` is memory that is used again.
pub(crate) fn locate(
    pass: &Pass,
    tranche: &Segment,
    ids: &mut Vec<SampleId>,
    out: &mut Located,
) -> Result<(), Error> {
    let shared = &pass.shared;
    if shared.settings.mode.has_finds() {
        let taken = take(pass, tranche, out);
        publish_position(&shared.slot().taken, pass.number, tranche.last_step + 1);
        shared.region.planning().notify();
        if taken {
            return Ok(());
        }
    }
    ids.clear();
    ids.extend(tranche.demands.iter().map(|need| need.sample));
    Ok(shared.index.locate(ids, out)?)
}

/// Takes the finds of a tranche; false where one of them is missing.
fn take(pass: &Pass, tranche: &Segment, out: &mut Located) -> bool {
    let finds = pass.shared.region.finds();
    let batch = pass.shared.options.batch_size;
    out.clear(1);
    tranche.demands.iter().all(|need| {
        let number = u64::from(need.local_rank) * batch + u64::from(need.slot);
        let find = finds.get(tranche.first_step + u64::from(need.step), number);
        find.is_some_and(|find| {
            SamplePlace::from(find).push(out);
            true
        })
    })
}

impl From<Find> for SamplePlace {
    fn from(find: Find) -> Self {
        Self {
            extent: Extent { shard: ShardId(find.shard), offset: find.offset, length: find.length },
            head_bytes: find.head_bytes,
            guard: find.guard,
        }
    }
}
