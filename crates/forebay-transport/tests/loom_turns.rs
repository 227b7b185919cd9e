//! One thread drives at a time, and none sleeps for good, in every interleaving.
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p forebay-transport --test loom_turns --release
#![cfg(loom)]

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use forebay_transport::turns::{Look, Turns};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A connection: requests are answered in order, until it fails or begins again.
#[derive(Default)]
struct State {
    generation: u64,
    issued: u64,
    completed: u64,
    failed: bool,
}

#[derive(Default)]
struct Model {
    /// The number of requests that are answered before the connection fails.
    answers: u64,
    /// Memory that the driving thread writes: loom fails the model when two threads touch it at
    /// once.
    memory: UnsafeCell<u64>,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Answered,
    Failed,
    Stale,
}

struct Link {
    turns: Turns<State, ()>,
    model: Model,
}

impl Link {
    fn new(answers: u64) -> Arc<Self> {
        let model = Model { answers, ..Model::default() };
        Arc::new(Self { turns: Turns::new(State::default(), ()), model })
    }

    fn issue(&self) -> (u64, u64) {
        self.turns.with(|state| {
            state.issued += 1;
            (state.generation, state.issued - 1)
        })
    }

    /// As the links of the fetcher wait. A thread whose request has failed reads the memory, which
    /// no thread may write any more.
    fn wait(&self, (generation, number): (u64, u64)) -> Outcome {
        let look = |state: &State, is_free: bool| {
            if state.generation != generation {
                Look::Done(Outcome::Stale)
            } else if state.completed > number {
                Look::Done(Outcome::Answered)
            } else if !state.failed {
                Look::Drive(())
            } else if is_free {
                self.model.memory.with(|memory| unsafe { memory.read() });
                Look::Done(Outcome::Failed)
            } else {
                Look::Sleep
            }
        };
        let drive = |_: &mut (), ()| {
            loop {
                let is_over = self.turns.with(|state| state.failed || state.completed > number);
                if is_over {
                    return ControlFlow::Continue(());
                }
                self.model.memory.with_mut(|memory| unsafe { *memory += 1 });
                self.turns.change(|state| {
                    if state.completed < self.model.answers {
                        state.completed += 1;
                    } else {
                        state.failed = true;
                    }
                });
            }
        };
        // Loom has no clock: the wait ends by an outcome, or the model is in a deadlock.
        let deadline = Instant::now() + Duration::from_secs(3600);
        self.turns.wait(deadline, look, drive).expect("an outcome before the deadline")
    }
}

#[test]
fn threads_that_wait_get_their_answers() {
    loom::model(|| {
        let link = Link::new(2);
        let other = {
            let link = Arc::clone(&link);
            thread::spawn(move || link.wait(link.issue()))
        };
        assert_eq!(link.wait(link.issue()), Outcome::Answered);
        assert_eq!(other.join().unwrap(), Outcome::Answered);
    });
}

#[test]
fn a_failure_reaches_each_thread_once_no_thread_drives() {
    loom::model(|| {
        let link = Link::new(1);
        let tickets = [link.issue(), link.issue()];
        let other = {
            let link = Arc::clone(&link);
            thread::spawn(move || link.wait(tickets[1]))
        };
        assert_eq!(link.wait(tickets[0]), Outcome::Answered);
        assert_eq!(other.join().unwrap(), Outcome::Failed);
    });
}

#[test]
fn a_restart_waits_for_the_thread_that_drives() {
    loom::model(|| {
        let link = Link::new(u64::MAX);
        let ticket = link.issue();
        let other = {
            let link = Arc::clone(&link);
            thread::spawn(move || link.wait(ticket))
        };
        let end = |state: &mut State| state.failed = true;
        let start = |state: &mut State| {
            link.model.memory.with_mut(|memory| unsafe { *memory = 0 });
            *state = State { generation: state.generation + 1, ..State::default() };
        };
        link.turns.restart(end, (), start);
        // Answered before, failed in between, or stale afterwards.
        other.join().unwrap();
        assert_eq!(link.wait(link.issue()), Outcome::Answered);
    });
}
