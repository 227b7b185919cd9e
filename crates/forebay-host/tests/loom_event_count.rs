//! No notification is lost, in every interleaving.
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p forebay-host --test loom_event_count --release
//!
//! Under loom a wait never times out, so a waiter that misses its notification is a deadlock, which
//! loom reports.
#![cfg(loom)]

use std::time::Duration;

use forebay_host::EventCount;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// Preemptions that loom tries where all of them would take too long.
const PREEMPTIONS: usize = 3;
const LIMIT: Duration = Duration::from_secs(3600);

#[derive(Default)]
struct Shared {
    events: EventCount,
    word: AtomicU64,
    other: AtomicU64,
}

fn bounded(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(test);
}

#[test]
fn a_waiter_sees_what_was_published_before_the_notification() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let notifier = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.other.store(41, Ordering::Relaxed);
                shared.word.store(1, Ordering::Release);
                shared.events.notify();
            })
        };
        assert!(shared.events.wait(|| shared.word.load(Ordering::Acquire) == 1, LIMIT));
        assert_eq!(shared.other.load(Ordering::Relaxed), 41);
        notifier.join().unwrap();
        assert_eq!(shared.events.waiters(), 0);
    });
}

#[test]
fn every_waiter_is_woken() {
    bounded(|| {
        let shared = Arc::new(Shared::default());
        let waiter = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.events.wait(|| shared.word.load(Ordering::Acquire) == 1, LIMIT))
        };
        let notifier = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.word.store(1, Ordering::Release);
                shared.events.notify();
            })
        };
        assert!(shared.events.wait(|| shared.word.load(Ordering::Acquire) == 1, LIMIT));
        assert!(waiter.join().unwrap());
        notifier.join().unwrap();
    });
}

#[test]
fn a_waiter_for_two_words_sees_both_notifications() {
    bounded(|| {
        let shared = Arc::new(Shared::default());
        let notify = |publish: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                publish(&shared);
                shared.events.notify();
            })
        };
        let one = notify(|shared| shared.word.store(1, Ordering::Release));
        let two = notify(|shared| shared.other.store(1, Ordering::Release));
        let both = || shared.word.load(Ordering::Acquire) + shared.other.load(Ordering::Acquire) == 2;
        assert!(shared.events.wait(both, LIMIT));
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
                assert!(shared.events.wait(|| shared.word.load(Ordering::Acquire) == 1, LIMIT));
                shared.other.store(1, Ordering::Release);
                shared.events.notify();
            })
        };
        shared.word.store(1, Ordering::Release);
        shared.events.notify();
        assert!(shared.events.wait(|| shared.other.load(Ordering::Acquire) == 1, LIMIT));
        echo.join().unwrap();
    });
}

/// The model finds what it is there to find.
#[test]
#[should_panic(expected = "deadlock")]
fn notifying_before_publishing_is_caught() {
    loom::model(|| {
        // Leaked: loom's reference counts cannot be dropped after it has found a deadlock.
        let shared: &'static Shared = Box::leak(Box::default());
        let notifier = thread::spawn(|| {
            shared.events.notify();
            shared.word.store(1, Ordering::Release);
        });
        shared.events.wait(|| shared.word.load(Ordering::Acquire) == 1, LIMIT);
        notifier.join().unwrap();
    });
}
