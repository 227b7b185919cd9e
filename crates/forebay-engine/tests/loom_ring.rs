//! Model check of the ring of batch buffers: a gather thread, a consumer, and a view that dies on a
//! third thread.
#![cfg(loom)]

use std::time::Duration;

use forebay_engine::batch::buffer_pool::{BufferPool, Taken};
use forebay_engine::shm::block_state::SessionId;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const FOREVER: Duration = Duration::from_secs(3600);

#[test]
fn batches_arrive_in_order_through_one_buffer_that_another_thread_gives_back() {
    loom::model(|| {
        let ring: Arc<BufferPool<(u64, Option<usize>), ()>> = Arc::new(BufferPool::new(1));
        ring.resume(0);
        let gatherer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                for _ in 0..2 {
                    let claim = ring.claim(SessionId(0), FOREVER).expect("the ring is not stopped");
                    ring.finish(&claim, Ok((claim.step, claim.buffer)), |_| ()).expect("nobody pauses");
                }
            })
        };
        let mut dropper = None;
        for step in 0..2 {
            let Taken::Item((found, buffer)) = ring.take(step, FOREVER) else {
                panic!("step {step} must come")
            };
            assert_eq!(found, step);
            if let Some(buffer) = buffer
                && dropper.is_none()
            {
                let ring = Arc::clone(&ring);
                dropper = Some(thread::spawn(move || ring.give_back(buffer)));
            }
        }
        gatherer.join().unwrap();
        dropper.expect("the first batch had the buffer").join().unwrap();
    });
}

#[test]
fn pausing_while_a_claim_is_being_filled_loses_no_buffer() {
    loom::model(|| {
        let ring: Arc<BufferPool<Option<usize>, ()>> = Arc::new(BufferPool::new(1));
        ring.resume(0);
        let gatherer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let Some(claim) = ring.claim(SessionId(0), FOREVER) else { return };
                if let Err(Ok(Some(buffer))) = ring.finish(&claim, Ok(claim.buffer), |_| ()) {
                    ring.give_back(buffer);
                }
            })
        };
        for item in ring.pause() {
            if let Ok(Some(buffer)) = item {
                ring.give_back(buffer);
            }
        }
        assert!(ring.settle(FOREVER));
        ring.stop();
        gatherer.join().unwrap();
        ring.restart(SessionId(0));
        ring.resume(9);
        let claim = ring.claim(SessionId(0), FOREVER).expect("the buffer is free again");
        assert_eq!((claim.step, claim.buffer), (9, Some(0)));
    });
}

#[test]
fn a_thread_that_was_outside_when_the_ring_was_paused_touches_nothing_shared_again() {
    loom::model(|| {
        let ring: Arc<BufferPool<u64, ()>> = Arc::new(BufferPool::new(1));
        // What others may overwrite as soon as the ring is settled: staging bytes.
        let staging = Arc::new(UnsafeCell::new(0));
        ring.resume(0);
        let gatherer = {
            let (ring, staging) = (Arc::clone(&ring), Arc::clone(&staging));
            thread::spawn(move || {
                let Some(claim) = ring.claim(SessionId(0), FOREVER) else { return };
                if !ring.step_out(&claim) {
                    return ring.abandon(&claim);
                }
                // Here storage keeps it.
                if !ring.step_in(&claim) {
                    return ring.abandon(&claim);
                }
                let found = staging.with(|bytes| unsafe { *bytes });
                let _ = ring.finish(&claim, Ok(found), |_| ());
            })
        };
        drop(ring.pause());
        assert!(ring.settle(FOREVER));
        // loom fails the model when the thread reads at the same time.
        staging.with_mut(|bytes| unsafe { *bytes = 1 });
        ring.stop();
        gatherer.join().unwrap();
    });
}
