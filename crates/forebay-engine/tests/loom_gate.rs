//! Model check of the gate: nobody reads without the token.
//!
//! Run by `make test-all`: `RUSTFLAGS="--cfg loom" cargo test --release -p forebay-engine --test
//! 'loom_*'`.
#![cfg(loom)]

use std::time::Duration;

use forebay_engine::shm::read_gate::{GateEntry, ReadGate};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const FOREVER: Duration = Duration::from_secs(3600);

struct Context {
    gate: ReadGate,
    /// What only one node at a time may touch: loom fails the model when two do.
    storage: UnsafeCell<u64>,
}

#[test]
fn whoever_finds_the_gate_left_finds_nobody_reading() {
    // Without a bound this takes more than a minute; what is wrong here shows with one or two
    // switches.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Arc::new(Context { gate: ReadGate::default(), storage: UnsafeCell::new(0) });
        let reader = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                if shared.gate.enter(FOREVER, || shared.gate.is_free()) == GateEntry::Inside {
                    shared.storage.with_mut(|storage| unsafe { *storage += 1 });
                    shared.gate.leave();
                }
            })
        };
        shared.gate.open();
        // The token is given on as soon as the gate is left; then another node reads.
        if shared.gate.is_left() {
            shared.storage.with_mut(|storage| unsafe { *storage += 1 });
        }
        // So that a reader who came too late goes.
        shared.gate.set_free();
        reader.join().unwrap();
    });
}
