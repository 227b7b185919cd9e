//! Prefetches large reads: the kernel keeps all requests of a block in flight, and those of the
//! next blocks, so that the storage is busy while a block is copied.
//!
//! Each block is announced once on its node, one after another in the order of the plan, and read
//! after that. Concurrent readahead would interleave requests, which causes seeks: only one thread
//! announces at a time.

use std::time::Duration;

use forebay_plan::config::ReadAhead;
use forebay_plan::{AnnounceWindow, Block};

use crate::pipeline::plan_queue::PlannedSegment;
use crate::pipeline::session::Session;
use crate::shm::position::BlockSeq;

/// How long a reader waits for another one that announces: only a stopped or dead process takes
/// longer.
const WAKEUP_INTERVAL: Duration = Duration::from_millis(100);

/// Announces `block`, which is read next, and its neighbours that are not announced
/// ([`AnnounceWindow`]). Waits until the block itself is announced.
pub(crate) fn announce(session: &Session, planned: &PlannedSegment, block: &Block, width: u64) {
    let context = &session.context;
    if context.settings.read_ahead != ReadAhead::Announced {
        return;
    }
    let announced = context.region.readahead();
    let token_start = context.options.strategy.stagger.and_then(|_| planned.plan.blocks.first());
    let token_start = token_start.map(|first| first.sequence);
    let window = AnnounceWindow::new(block.sequence, block.length, width, token_start);
    loop {
        let taken = announced.taken();
        if announced.is_busy(session.number) {
            // Another reader announces; it continues with the blocks ahead.
            if session.is_stopped() || announced.is_announced(session.number, BlockSeq(block.sequence)) {
                return;
            }
            let is_free = || session.is_stopped() || !announced.is_busy(session.number);
            if context.region.filled().wait(is_free, WAKEUP_INTERVAL) {
                continue;
            }
        }
        let Some(sequence) = window.next(taken.step_in(session.number)) else { return };
        let Some((next, place)) = session.plans.next_block(sequence, 0, 1) else { return };
        // Another segment needs another token.
        if context.read_gate().is_some() && next.segment.first_step != planned.segment.first_step {
            return;
        }
        let sequence = BlockSeq(next.plan.blocks[place].sequence);
        if announced.take(taken, session.number, sequence) {
            announce_reads(session, &next, place);
            announced.finish(session.number, sequence);
            context.region.filled().notify();
        }
    }
}

fn announce_reads(session: &Session, planned: &PlannedSegment, place: usize) {
    let block = &planned.plan.blocks[place];
    let first = block.first_read as usize;
    for read in &planned.plan.reads[first..first + block.reads as usize] {
        session.context.will_need(read.shard, read.file_offset, read.length);
    }
}
