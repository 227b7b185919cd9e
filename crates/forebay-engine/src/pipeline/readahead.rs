//! Prefetches large reads: the kernel keeps all requests of a block in flight, and those of the
//! next blocks, so that the storage is busy while a block is copied.
//!
//! Each block is announced once on its node, one after another in the order of the plan, and read
//! after that. Concurrent readahead would interleave requests, which causes seeks: only one thread
//! announces at a time.

use std::time::Duration;

use forebay_plan::Block;
use forebay_plan::config::ReadAhead;

use crate::pipeline::plan_queue::PlannedSegment;
use crate::pipeline::session::Session;
use crate::shm::position::BlockSeq;

/// Minimum read-ahead \[bytes\]: more than any storage delivers within its latency.
const AHEAD_BYTES: u64 = 8 << 20;
/// Maximum number of blocks of that read-ahead.
const AHEAD_BLOCKS: u64 = 16;
/// How long a reader waits for another one that announces: only a stopped or dead process takes
/// longer.
const WAKEUP_INTERVAL: Duration = Duration::from_millis(100);

/// Announces `block`, which is read next, and its neighbours that are not announced: earlier
/// blocks, whose readers come later, and at least as many later blocks as there are readers, more
/// if they are small. Waits until the block itself is announced.
pub(crate) fn announce(session: &Session, planned: &PlannedSegment, block: &Block, width: u64) {
    let context = &session.context;
    if context.settings.read_ahead != ReadAhead::Announced {
        return;
    }
    let announced = context.region.readahead();
    let ahead = width.max((AHEAD_BYTES / block.length.max(1)).min(AHEAD_BLOCKS));
    let token_start = context.options.strategy.stagger.and_then(|_| planned.plan.blocks.first());
    let earliest = earliest(block.sequence, width).max(token_start.map_or(0, |first| first.sequence));
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
        let sequence = earliest.max(taken.step_in(session.number));
        if sequence > block.sequence + ahead {
            return;
        }
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

/// The first block that one of `readers` may still have to read when the next one of a reader is
/// `sequence`.
fn earliest(sequence: u64, readers: u64) -> u64 {
    sequence.saturating_sub(readers.saturating_sub(1))
}

fn announce_reads(session: &Session, planned: &PlannedSegment, place: usize) {
    let block = &planned.plan.blocks[place];
    let first = block.first_read as usize;
    for read in &planned.plan.reads[first..first + block.reads as usize] {
        session.context.will_need(read.shard, read.file_offset, read.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_comes_first_announces_the_blocks_of_the_others_before_its_own() {
        for (sequence, readers, expected) in
            [(0, 4, 0), (3, 4, 0), (4, 4, 1), (9, 4, 6), (7, 1, 7), (7, 0, 7)]
        {
            assert_eq!(earliest(sequence, readers), expected, "block {sequence} of {readers} readers");
        }
    }
}
