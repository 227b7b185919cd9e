//! No ring is lost, in every interleaving.
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p forebay-engine --test loom_bell --release
//!
//! Under loom a wait never ends by its time limit, so a waiter that sleeps through its ring is a dead-lock, which loom
//! reports.
#![cfg(loom)]

use std::time::Duration;

use forebay_engine::node::Bell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// Preemptions that loom tries where all of them would take too long.
const PREEMPTIONS: usize = 3;
const LIMIT: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Shared {
    bell: Bell,
    word: AtomicU64,
    other: AtomicU64,
}

fn bounded(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(test);
}

#[test]
fn a_waiter_sees_what_was_published_before_the_ring() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let ringer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.other.store(41, Ordering::Relaxed);
                shared.word.store(1, Ordering::Release);
                shared.bell.ring();
            })
        };
        assert!(shared.bell.wait(|| shared.word.load(Ordering::Acquire) == 1, LIMIT));
        assert_eq!(shared.other.load(Ordering::Relaxed), 41);
        ringer.join().unwrap();
        assert_eq!(shared.bell.waiting(), 0);
    });
}

#[test]
fn every_waiter_is_woken() {
    bounded(|| {
        let shared = Arc::new(Shared::default());
        let waiter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.bell.wait(|| shared.word.load(Ordering::Acquire) == 1, LIMIT))
        };
        let ringer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.word.store(1, Ordering::Release);
                shared.bell.ring();
            })
        };
        assert!(shared.bell.wait(|| shared.word.load(Ordering::Acquire) == 1, LIMIT));
        assert!(waiter.join().unwrap());
        ringer.join().unwrap();
    });
}

#[test]
fn a_waiter_for_two_words_hears_both_rings() {
    bounded(|| {
        let shared = Arc::new(Shared::default());
        let ring = |publish: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                publish(&shared);
                shared.bell.ring();
            })
        };
        let one = ring(|shared| shared.word.store(1, Ordering::Release));
        let two = ring(|shared| shared.other.store(1, Ordering::Release));
        let both = || shared.word.load(Ordering::Acquire) + shared.other.load(Ordering::Acquire) == 2;
        assert!(shared.bell.wait(both, LIMIT));
        one.join().unwrap();
        two.join().unwrap();
    });
}

#[test]
fn two_processes_pass_a_word_to_and_fro() {
    bounded(|| {
        let shared = Arc::new(Shared::default());
        let echo = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                assert!(shared.bell.wait(|| shared.word.load(Ordering::Acquire) == 1, LIMIT));
                shared.other.store(1, Ordering::Release);
                shared.bell.ring();
            })
        };
        shared.word.store(1, Ordering::Release);
        shared.bell.ring();
        assert!(shared.bell.wait(|| shared.other.load(Ordering::Acquire) == 1, LIMIT));
        echo.join().unwrap();
    });
}

/// The model finds what it is there to find.
#[test]
#[should_panic(expected = "deadlock")]
fn ringing_before_publishing_is_caught() {
    loom::model(|| {
        // Leaked, because loom's own reference counts cannot be dropped once it has found the dead-lock.
        let shared: &'static Shared = Box::leak(Box::default());
        let ringer = thread::spawn(|| {
            shared.bell.ring();
            shared.word.store(1, Ordering::Release);
        });
        shared.bell.wait(|| shared.word.load(Ordering::Acquire) == 1, LIMIT);
        ringer.join().unwrap();
    });
}
