//! Model check of the ring of locations: a root that writes over steps, and a planner that reads
//! them.
//!
//! Run by `make test-all`: `RUSTFLAGS="--cfg loom" cargo test --release -p forebay-engine --test
//! 'loom_*'`.
#![cfg(loom)]

use forebay_engine::shm::block_state::{SessionId, is_behind, publish_position};
use forebay_engine::shm::location_ring::LocationRing;
use forebay_types::{Extent, SampleLocation, ShardId};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

const PASS: SessionId = SessionId(1);
const STEPS: u64 = 2;

/// A ring of one step of one sample.
struct Context {
    words: Vec<AtomicU64>,
    found: AtomicU64,
    taken: AtomicU64,
}

impl Context {
    fn new() -> Arc<Self> {
        let words = (0..LocationRing::words(1, 1)).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { words, found: AtomicU64::new(0), taken: AtomicU64::new(0) })
    }

    fn locations(&self) -> LocationRing<'_> {
        LocationRing::new(&self.words, 1, 1)
    }

    fn location(step: u64) -> SampleLocation {
        SampleLocation {
            extent: Extent { shard: ShardId(step as u32), offset: 100 + step, length: 200 + step },
            head_bytes: 16,
            guard: 300 + step,
        }
    }

    /// Locates the samples of all steps, as a root does.
    fn walk(&self) {
        for step in 0..STEPS {
            if let Some(lost) = self.locations().overwrites(step, 0) {
                while !is_behind(&self.taken, PASS, lost) {
                    thread::yield_now();
                }
            }
            self.locations().put(step, 0, Some(Self::location(step)));
            publish_position(&self.found, PASS, step + 1);
        }
    }

    /// Takes the locations of all steps, as a planner does.
    fn take(&self) {
        for step in 0..STEPS {
            while !is_behind(&self.found, PASS, step) {
                thread::yield_now();
            }
            assert_eq!(self.locations().get(step, 0), Some(Self::location(step)));
            publish_position(&self.taken, PASS, step + 1);
        }
    }
}

#[test]
fn a_planner_sees_the_locations_of_its_step_and_of_no_other() {
    loom::model(|| {
        let shared = Context::new();
        let planner = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.take())
        };
        shared.walk();
        planner.join().unwrap();
    });
}

#[test]
fn a_root_that_goes_on_where_another_ended_changes_no_location() {
    loom::model(|| {
        let shared = Context::new();
        let planner = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.take())
        };
        // The first root wrote a step and left before it published it; the next one writes it
        // again.
        shared.locations().put(0, 0, Some(Context::location(0)));
        shared.walk();
        planner.join().unwrap();
    });
}
