//! Fills a batch in the consumer's own thread, where its bytes are in memory.
//!
//! Where a rank has one core or a part of one, a gather thread and the thread of the script change
//! places on it for every batch, which costs about a tenth of the time of copying small samples. So
//! where ranks copy from mappings of resident files, the thread that asks for a batch copies it
//! itself, unless the copy could wait for storage: a thread that waits there cannot be interrupted.
//! The pages of all samples were in the page cache within the last second (`Mappings::resident`).
//!
//! Gather threads still fill batches ahead where the script has waited since its last batch, or has
//! computed for long: it may wait for an accelerator, and some wait busily. A script that pauses
//! after batches in quick succession finds the next ones filled only if it pauses for a second.

use forebay_host::ThreadUsage;
use forebay_io::guard;
use forebay_plan::config::{CallerFillFacts, IoMode, fills_in_caller, leaves_others_asleep};
use forebay_types::Piece;

use crate::pipeline::context::Context;
use crate::pipeline::gather::sample::Scratch;
use crate::pipeline::gather::{plain, serve};
use crate::pipeline::plan_queue::PlannedSegment;
use crate::pipeline::session::Session;
use crate::shm::counters::{Counter, count};

/// See the module header.
#[derive(Default)]
pub(crate) struct CallerFill {
    scratch: Scratch,
    /// Of the script's thread when it got its last batch.
    usage: ThreadUsage,
}

impl CallerFill {
    /// Fills the step that the consumer needs next, if no other thread has begun to and no byte of
    /// it must be waited for.
    pub(crate) fn fill(&mut self, session: &Session, step: u64) {
        let context = &session.context;
        if !is_possible(session, step) {
            return;
        }
        let ThreadUsage { busy, waits } = ThreadUsage::now();
        let alone = leaves_others_asleep(waits != self.usage.waits, busy.saturating_sub(self.usage.busy));
        let ring = &context.buffers.ring;
        if !ring.may_claim_own(step, alone) || !context.knows_order(context.epoch_of(step)) {
            return;
        }
        // An error is left to the gather thread, which meets it too.
        let Ok(found) = plain(session, step, &mut self.scratch.kept) else { return };
        if is_in_memory(context, &found)
            && let Some(claim) = ring.claim_own(session.number, step)
        {
            count(context.slot(), Counter::OwnBatches, 1);
            serve(session, &claim, Some(found), &mut self.scratch);
        }
    }

    /// Notes that the script gets its batch now.
    pub(crate) fn delivered(&mut self, session: &Session) {
        if session.context.cores == 1 {
            self.usage = ThreadUsage::now();
        }
    }
}

fn is_possible(session: &Session, step: u64) -> bool {
    let context = &session.context;
    fills_in_caller(&CallerFillFacts {
        cores: context.cores,
        copies: context.settings.mode == IoMode::Mapped || session.plans.leaves(step),
        decodes_or_replaces: !context.decoding.is_empty() || context.options.skips_bad_samples,
        takes_signals: guard::is_unblocked(),
    })
}

fn is_in_memory(context: &Context, found: &PlannedSegment) -> bool {
    let Some(mappings) = &context.mappings else { return false };
    found.located.pieces().iter().all(|piece| match piece {
        Piece::Extent(extent) => mappings.resident(extent.shard, extent.offset, extent.length),
        Piece::Literal { .. } => true,
    })
}
