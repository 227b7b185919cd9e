//! Model check of the staging protocol: every interleaving of a reader and gatherers that share one
//! block's memory.
//!
//! Run by `make test-all`: `RUSTFLAGS="--cfg loom" cargo test --release -p forebay-engine --test
//! 'loom_*'`.
#![cfg(loom)]

use forebay_engine::shm::block_state::{
    BlockSeq, Filled, Presence, SessionId, block_state, first_safe_step, is_behind, presence, publish_block,
    publish_overwritten, publish_position, publish_presence,
};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;

const PASS: SessionId = SessionId(1);
/// Stands for "away": behind every step.
const AWAY: u64 = (1 << 44) - 1;

/// One stretch of staging memory that the blocks 0 (step 0) and 1 (step 1) use one after the other.
struct Context {
    words: [AtomicU64; 2],
    position: AtomicU64,
    overwritten: AtomicU64,
    memory: UnsafeCell<u64>,
}

impl Context {
    fn new() -> Arc<Self> {
        let shared = Self {
            words: [AtomicU64::new(0), AtomicU64::new(0)],
            position: AtomicU64::new(0),
            overwritten: AtomicU64::new(0),
            memory: UnsafeCell::new(0),
        };
        publish_position(&shared.position, PASS, 0);
        Arc::new(shared)
    }

    /// Fills block `sequence`, waiting for `after` as the reader does.
    fn fill(&self, sequence: u64, after: Option<u64>) {
        if let Some(step) = after {
            publish_overwritten(&self.overwritten, PASS, step);
            while !is_behind(&self.position, PASS, step) {
                thread::yield_now();
            }
        }
        // loom fails the model when anybody reads at the same time.
        self.memory.with_mut(|memory| unsafe { *memory = 100 + sequence });
        publish_block(&self.words[sequence as usize], PASS, BlockSeq(sequence), Filled::Staged);
    }

    fn gather(&self, sequence: u64) -> u64 {
        while block_state(&self.words[sequence as usize], PASS, BlockSeq(sequence)).is_none() {
            thread::yield_now();
        }
        self.memory.with(|memory| unsafe { *memory })
    }
}

#[test]
fn a_gatherer_sees_the_bytes_of_its_block_and_of_no_other() {
    loom::model(|| {
        let shared = Context::new();
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.fill(0, None);
                shared.fill(1, Some(0));
            })
        };
        assert_eq!(shared.gather(0), 100);
        publish_position(&shared.position, PASS, 1);
        assert_eq!(shared.gather(1), 101);
        publish_position(&shared.position, PASS, 2);
        reader.join().unwrap();
    });
}

#[test]
fn a_rank_that_comes_back_uses_staging_bytes_only_where_none_are_overwritten() {
    loom::model(|| {
        let shared = Context::new();
        shared.fill(0, None);
        // The rank went away before step 0 was gathered; the reader may overwrite block 0 now.
        publish_position(&shared.position, PASS, AWAY);
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.fill(1, Some(0)))
        };
        // It comes back at step 0.
        publish_position(&shared.position, PASS, 0);
        if first_safe_step(&shared.overwritten, PASS) == 0 {
            assert_eq!(shared.gather(0), 100, "nobody may overwrite what the rank relies on");
        }
        publish_position(&shared.position, PASS, 1);
        reader.join().unwrap();
    });
}

#[test]
fn a_reader_moves_to_the_next_rank_only_when_the_read_of_a_rank_that_closed_has_returned() {
    loom::model(|| {
        let shared = Context::new();
        let left = Arc::new(AtomicU32::new(0));
        // A thread that storage keeps while its rank closes, whether the answer comes before or
        // after that.
        let kept = {
            let (shared, left) = (Arc::clone(&shared), Arc::clone(&left));
            thread::spawn(move || {
                shared.memory.with_mut(|memory| unsafe { *memory = 100 });
                publish_presence(&left, Presence::Gone);
            })
        };
        publish_presence(&left, Presence::Leaving);
        while presence(&left) != Presence::Gone {
            thread::yield_now();
        }
        // The next rank fills the block again, then others get the memory for another one.
        shared.fill(0, None);
        assert_eq!(shared.gather(0), 100);
        publish_position(&shared.position, PASS, 1);
        shared.fill(1, Some(0));
        assert_eq!(shared.gather(1), 101);
        kept.join().unwrap();
    });
}
