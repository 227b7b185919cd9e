//! Announcing large reads: the kernel has all the requests of a block under way at once, and those of the blocks behind it,
//! so that the storage goes on while a block is copied.
//!
//! Each block is announced once on its node, one after the other in the order of the plan, and is read when that is done.
//! Two threads that fill the page cache side by side send their requests by turns, and in one place they take its pages by turns:
//! disks seek for either.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_plan::Block;

use crate::options::AccessChoice;
use crate::pass::Pass;
use crate::plans::Planned;
use crate::position::Position;

/// How long a reader waits for another one that announces its block; longer only where that one is stopped, or its process gone.
const PATIENCE: Duration = Duration::from_millis(100);

/// Words in shared memory; all begin as zeros.
#[repr(C)]
pub(crate) struct Announced {
    /// Position word of (pass, sequence of the last block that somebody announces + 1).
    taken: AtomicU64,
    /// The same of a block that was announced.
    told: AtomicU64,
}

impl Announced {
    /// The word of what is taken; `take` wants it unchanged.
    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Whether somebody is at it: a block of the pass was taken and is not announced yet.
    fn is_busy(&self, pass: u64) -> bool {
        let taken = self.taken();
        step_of(taken, pass) > step_of(self.told.load(Ordering::Acquire), pass)
    }

    /// Whether a block was announced.
    fn is_told(&self, pass: u64, sequence: u64) -> bool {
        step_of(self.told.load(Ordering::Acquire), pass) > sequence
    }

    /// Takes a block; false where somebody was faster.
    fn take(&self, taken: u64, pass: u64, sequence: u64) -> bool {
        let word = Position::new(pass, sequence + 1).word();
        self.taken.compare_exchange(taken, word, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Notes that a block which was taken is announced.
    fn tell(&self, pass: u64, sequence: u64) {
        self.told.fetch_max(Position::new(pass, sequence + 1).word(), Ordering::AcqRel);
    }
}

/// The step of a position word, 0 where it is of another pass.
fn step_of(word: u64, pass: u64) -> u64 {
    let position = Position::from_word(word);
    if position.pass() == pass { position.step() } else { 0 }
}

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
        let sequence = block.sequence.max(step_of(taken, pass.number));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Announced {
        Announced { taken: AtomicU64::new(0), told: AtomicU64::new(0) }
    }

    #[test]
    fn a_block_is_announced_by_one_reader_and_a_new_pass_begins_anew() {
        let announced = nothing();
        assert!(!announced.is_busy(1) && !announced.is_told(1, 0));
        let before = announced.taken();
        assert!(announced.take(before, 1, 0) && !announced.take(before, 1, 0));
        assert!(announced.is_busy(1) && !announced.is_told(1, 0) && !announced.is_busy(2));
        announced.tell(1, 0);
        assert!(announced.is_told(1, 0) && !announced.is_told(1, 1) && !announced.is_busy(1));
        assert!(!announced.is_told(2, 0) && announced.take(announced.taken(), 2, 0));
    }

    #[test]
    fn readers_side_by_side_announce_one_after_the_other() {
        let announced = nothing();
        let order = std::sync::Mutex::new(Vec::new());
        let announce = || {
            loop {
                let taken = announced.taken();
                if announced.is_busy(1) {
                    std::thread::yield_now();
                    continue;
                }
                let sequence = step_of(taken, 1);
                if sequence == 1000 {
                    return;
                }
                if announced.take(taken, 1, sequence) {
                    // Nobody else is here.
                    order.try_lock().unwrap().push(sequence);
                    announced.tell(1, sequence);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(announce);
            }
        });
        assert_eq!(order.into_inner().unwrap(), (0..1000).collect::<Vec<_>>());
    }
}
