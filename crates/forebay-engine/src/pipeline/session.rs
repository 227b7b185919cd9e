//! A session: state that the threads of one process share during a run of steps without a jump.
//!
//! `threads.rs` starts the threads. They stop together, when the loader is closed or when all ranks
//! of the node request the next session; until then a rank that requests a jump continues to read
//! for the others. A thread inside a read is left behind (`thread_group.rs`). Actions that require
//! that no thread of the session touches shared memory are deferred until it returns
//! ([`Session::when_out`], [`Session::publish_detached`]).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_io::guard;
use forebay_types::Rank;

use crate::config::strategies::Locator;
use crate::error::Error;
use crate::pipeline::context::Context;
use crate::pipeline::plan_queue::PlanQueue;
use crate::pipeline::thread_group::{ThreadKind, Threads, WhenOut};
use crate::shm::block_state::publish_position;
use crate::shm::position::{AWAY, Position, SessionId};

/// Longest sleep of an engine thread: events notify it, so the interval only matters for conditions
/// without a notification.
pub(crate) const WAKEUP_INTERVAL: Duration = Duration::from_secs(1);
/// The same for the user's thread, which also checks for signals and failures.
pub(crate) const ATTENTION: Duration = Duration::from_millis(200);
/// How long a rank that detaches waits for its gather threads while one of them is inside a read:
/// the work of the others takes less.
const BRIEFLY: Duration = Duration::from_millis(50);
/// The same while none is inside a read: they end as soon as they are scheduled.
const LONGEST: Duration = Duration::from_secs(5);

/// See the module header.
pub(crate) struct Session {
    pub(crate) context: Arc<Context>,
    pub(crate) number: SessionId,
    pub(crate) start: u64,
    pub(crate) plans: PlanQueue,
    /// The locator of this rank, if it reads its samples itself and the index does not locate them.
    pub(crate) rank_locator: Option<Mutex<Locator>>,
    /// Steps before this one must not rely on staging bytes (`gather::reattach`).
    pub(crate) first_safe: AtomicU64,
    stopped: AtomicBool,
    failure: Mutex<Option<Error>>,
    threads: Arc<Threads>,
    /// Publish that the rank is detached once its gather threads are out of their void claims.
    goes_away: Mutex<bool>,
    /// Readers that run in this process.
    hosted: Mutex<BTreeSet<usize>>,
}

impl Session {
    /// A session without threads, from an absolute step on.
    pub(crate) fn new(context: Arc<Context>, number: SessionId, start: u64) -> Self {
        let is_alone = context.settings.mode.is_alone();
        let locator = || context.locator(vec![Rank(context.options.rank)], start);
        let rank_locator = is_alone.then(locator).flatten().map(Mutex::new);
        Self {
            plans: PlanQueue::new(start),
            context,
            number,
            start,
            rank_locator,
            first_safe: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            failure: Mutex::new(None),
            threads: Arc::default(),
            goes_away: Mutex::new(false),
            hosted: Mutex::new(BTreeSet::new()),
        }
    }

    /// Starts a thread of the session, unless it has ended.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: &str,
        kind: ThreadKind,
        run: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Result<(), Error> {
        let session = Arc::clone(self);
        let run = move || {
            guard::unblock();
            // The panic has printed its message; without this the consumer would wait for ever.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&session))).is_err() {
                session.fail(Error::Panicked);
            }
            if kind == ThreadKind::Shares {
                session.threads.shares_no_more();
                session.look_out();
            }
        };
        self.threads.spawn(name, kind, run).map_err(Error::threads(format_args!("engine thread \"{name}\"")))
    }

    /// Records that a reader runs here from now on; false if this process does not host it, or if
    /// it runs here already.
    pub(crate) fn adopt_reader(&self, number: usize) -> bool {
        self.context.host(number, self.number) == self.context.local_rank() && self.hosted().insert(number)
    }

    /// Moves a reader to the next rank; its thread calls this as its last action.
    pub(crate) fn hand_over(&self, number: usize) {
        self.hosted().remove(&number);
        let word = &self.context.region.readers()[number].moves;
        let moves = Position::from_word(word.load(Ordering::Acquire)).step_in(self.number);
        word.store(Position::new(self.number, moves + 1).word(), Ordering::Release);
        self.context.notify_all();
    }

    fn hosted(&self) -> std::sync::MutexGuard<'_, BTreeSet<usize>> {
        self.hosted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this rank is detached and lacks the order of an epoch that other ranks were given.
    ///
    /// It cannot plan that epoch, so its readers must move to another rank.
    pub(crate) fn lacks_order(&self) -> bool {
        let Some(epoch) = self.plans.lacking() else { return false };
        let position = Position::from_word(self.context.slot().position.load(Ordering::Acquire));
        position == Position::new(self.number, AWAY)
            && self.context.active().any(|(_, slot)| slot.given_digest(epoch).is_some())
    }

    /// Whether this rank reads its samples of a step itself.
    pub(crate) fn is_alone(&self, step: u64) -> bool {
        self.context.settings.mode.is_alone() || self.plans.leaves(step)
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Records why the session failed; the consumer raises it.
    pub(crate) fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// Why the session failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes that this process runs.
    pub(crate) fn is_alive(&self) {
        self.context.is_alive();
    }

    /// Publishes the position of the rank: all steps before `step` are gathered.
    pub(crate) fn note_gathered(&self, step: u64) {
        // Positions only grow.
        let position = Position::new(self.number, step).word();
        self.context.slot().position.fetch_max(position, Ordering::SeqCst);
    }

    /// Publishes that the rank is detached, so that its staging bytes may be overwritten: now, or
    /// when the last gather thread has left its void claim. The pool must be paused.
    pub(crate) fn publish_detached(&self) {
        *self.goes_away() = true;
        // Wake threads that wait for blocks.
        self.context.notify_all();
        let begun = Instant::now();
        let ring = &self.context.buffers.ring;
        while !ring.settle(BRIEFLY) {
            let limit = if self.threads.any_stuck() { BRIEFLY } else { LONGEST };
            if begun.elapsed() >= limit {
                break;
            }
        }
        self.look_away();
    }

    /// Cancels a deferred [`Session::publish_detached`]; false if a gather thread is still in a
    /// void claim.
    pub(crate) fn cancel_detach(&self) -> bool {
        let mut goes_away = self.goes_away();
        let settled = self.context.buffers.ring.settle(Duration::ZERO);
        *goes_away &= !settled;
        settled
    }

    /// A gather thread has left a void claim: runs the deferred action.
    pub(crate) fn claim_was_void(&self) {
        self.look_away();
        self.look_out();
    }

    fn look_away(&self) {
        // Under the lock, so that a rank that reattaches meanwhile is not published as detached.
        let mut goes_away = self.goes_away();
        if *goes_away && self.context.buffers.ring.settle(Duration::ZERO) {
            *goes_away = false;
            publish_position(&self.context.slot().position, self.number, AWAY);
            self.context.notify_all();
        }
    }

    fn goes_away(&self) -> MutexGuard<'_, bool> {
        self.goes_away.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` when no thread of the ended session touches shared memory: now, or when the last
    /// one is out. Replaces an earlier deferred action.
    pub(crate) fn when_out(&self, act: WhenOut) {
        self.threads.when_out(act);
        self.look_out();
    }

    fn look_out(&self) {
        if let Some(act) = self.threads.take_when_out(|| self.context.buffers.ring.settle(Duration::ZERO)) {
            act();
        }
    }

    /// Stops all threads: none of them begins another read.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.context.buffers.ring.stop();
        self.context.notify_all();
    }

    /// Stops all threads and joins them, except those inside a read.
    pub(crate) fn end(&self) {
        self.stop();
        self.threads.end();
    }
}
