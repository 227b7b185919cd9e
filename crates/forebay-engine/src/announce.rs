//! Announcing large reads: the kernel has all the requests of a block under way at once, and those of the blocks behind it,
//! so that the storage goes on while a block is copied.
//!
//! Each block is announced once on its node, one after the other in the order of the plan, and is read when that is done.
//! Two threads that fill the page cache side by side send their requests by turns, and in one place they take its pages by turns:
//! disks seek for either.

use std::time::Duration;

use forebay_plan::Block;

use crate::announced::Announced;
use crate::options::AccessChoice;
use crate::pass::Pass;
use crate::plans::Planned;

/// How long a reader waits for another one that announces its block; longer only where that one is stopped, or its process gone.
const PATIENCE: Duration = Duration::from_millis(100);

/// Announces `block`, which is read next, and `ahead` blocks behind it, as far as nobody has, and waits until the block itself is announced.
pub(crate) fn announce(pass: &Pass, planned: &Planned, block: &Block, ahead: u64) {
    let shared = &pass.shared;
    if !shared.settings.coalesces || shared.settings.direct || shared.settings.access == AccessChoice::Mmap {
        return;
    }
    let announced = shared.region.announced();
    loop {
        let taken = announced.taken();
        if announced.is_busy(pass.number) {
            // Whoever is at it goes on with what lies ahead.
            if pass.is_stopped() || announced.is_told(pass.number, block.sequence) {
                return;
            }
            let is_free = || pass.is_stopped() || !announced.is_busy(pass.number);
            if shared.region.filled().wait(is_free, PATIENCE) {
                continue;
            }
        }
        let sequence = block.sequence.max(Announced::next(taken, pass.number));
        if sequence > block.sequence + ahead {
            return;
        }
        let Some((next, place)) = pass.plans.next_block(sequence, 0, 1) else { return };
        // Another tranche is another turn.
        if shared.options.stagger.is_some() && next.tranche.first_step != planned.tranche.first_step {
            return;
        }
        let sequence = next.plan.blocks[place].sequence;
        if announced.take(taken, pass.number, sequence) {
            tell(pass, &next, place);
            announced.tell(pass.number, sequence);
            shared.region.filled().ring();
        }
    }
}

fn tell(pass: &Pass, planned: &Planned, place: usize) {
    let block = &planned.plan.blocks[place];
    let first = block.first_read as usize;
    for read in &planned.plan.reads[first..first + block.reads as usize] {
        pass.shared.files.will_need(read.shard, read.file_offset, read.length);
    }
}
