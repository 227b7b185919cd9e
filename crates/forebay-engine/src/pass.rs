//! A pass: what the threads of one process share while the node walks a stretch of steps without a jump.
//!
//! `crew.rs` starts the threads. They stop together, when the loader is closed or when all ranks of the node want the
//! next pass; until then a rank that wants to jump goes on reading for the others.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_format::SampleCursor;

use crate::access;
use crate::error::Error;
use crate::plans::Plans;
use crate::position::{AWAY, Position};
use crate::shared::Shared;

/// How long a thread of the engine sleeps at most before it looks around: what it waits for is rung, so this is for what cannot ring, and
/// often enough for that.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// The same for the thread of the user, who may press Ctrl-C, and who is told of failures.
pub(crate) const ATTENTION: Duration = Duration::from_millis(200);
/// After how long the user is told what is being waited for.
pub(crate) const STALL_WARNING: Duration = Duration::from_secs(10);

/// See the module header.
pub(crate) struct Pass {
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u64,
    pub(crate) start: u64,
    pub(crate) plans: Plans,
    /// Where this rank stands in the container, if it walks there by itself.
    pub(crate) cursor: Mutex<SampleCursor>,
    /// Steps before this one must not rely on landing bytes (`gather::come_back`).
    pub(crate) first_safe: AtomicU64,
    stopped: AtomicBool,
    failure: Mutex<Option<Error>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Readers that run in this process.
    hosted: Mutex<BTreeSet<usize>>,
}

impl Pass {
    /// A pass without threads, from an absolute step on.
    pub(crate) fn new(shared: Arc<Shared>, number: u64, start: u64) -> Self {
        Self {
            plans: Plans::new(start),
            shared,
            number,
            start,
            cursor: Mutex::default(),
            first_safe: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            failure: Mutex::new(None),
            threads: Mutex::new(Vec::new()),
            hosted: Mutex::new(BTreeSet::new()),
        }
    }

    /// Starts a thread of the pass.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: &str,
        run: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Result<(), Error> {
        let pass = Arc::clone(self);
        let handle = std::thread::Builder::new()
            .name(format!("forebay-{name}"))
            .spawn(move || {
                access::unblock();
                // A panic has printed where; without this the consumer would wait for a batch that never comes.
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&pass))).is_err() {
                    pass.fail(Error::panicked());
                }
            })
            .map_err(Error::threads(format_args!("engine thread \"{name}\"")))?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Ok(())
    }

    /// Notes that a reader runs here from now on; false when this process does not host it, or it runs here already.
    pub(crate) fn take_in(&self, number: usize) -> bool {
        self.shared.host(number, self.number) == self.shared.me() && self.hosted().insert(number)
    }

    /// Gives a reader to the next rank; called by the thread that runs it, as the last thing it does.
    pub(crate) fn hand_on(&self, number: usize) {
        self.hosted().remove(&number);
        let word = &self.shared.region.readers()[number].moves;
        let moves = Position::from_word(word.load(Ordering::Acquire)).step_in(self.number);
        word.store(Position::new(self.number, moves + 1).word(), Ordering::Release);
        self.shared.ring_all();
    }

    fn hosted(&self) -> std::sync::MutexGuard<'_, BTreeSet<usize>> {
        self.hosted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this rank is away from an epoch whose order the others were given and it was not.
    ///
    /// It cannot plan that epoch, so its readers must go on elsewhere.
    pub(crate) fn lacks_order(&self) -> bool {
        let Some(epoch) = self.plans.lacking() else { return false };
        let position = Position::from_word(self.shared.slot().position.load(Ordering::Acquire));
        position == Position::new(self.number, AWAY)
            && self.shared.active().any(|(_, slot)| slot.given_digest(epoch).is_some())
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Notes why the pass cannot go on; the consumer raises it.
    pub(crate) fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// Why the pass cannot go on.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the node that all steps before `step` are gathered.
    pub(crate) fn publish_gathered(&self, step: u64) {
        // Two gather threads may come here in the wrong order; positions only grow.
        let word = &self.shared.slot().position;
        let position = Position::new(self.number, step).word();
        word.fetch_max(position, Ordering::SeqCst);
        self.shared.region.gathered().ring();
    }

    /// Stops and joins all threads.
    pub(crate) fn end(&self) {
        self.stopped.store(true, Ordering::Release);
        self.shared.buffers.ring.stop();
        self.shared.ring_all();
        loop {
            let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
            if threads.is_empty() {
                return;
            }
            for thread in threads {
                // A thread that panicked has printed why; the pass is over either way.
                let _ = thread.join();
            }
        }
    }
}
