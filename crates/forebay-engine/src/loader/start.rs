//! Starts an iteration: continues the current session, or agrees with the other ranks of the node
//! on a new one.
//!
//! The n-th start of each rank must be at the same epoch and step, but not at the same time: a rank
//! that leaves an epoch early may be epochs ahead. So the decision to continue or to jump must not
//! depend on a rank's current step. A start continues if and only if it is at the beginning of the
//! epoch after the one that was started last; then all ranks of the node decide alike.
//!
//! A jump needs three agreements: all ranks want it, all at the same step, all are at rest. A rank
//! that has published that it is at rest stays with that session, even if the wait for the others
//! is interrupted.
//!
//! Ranks wait for a late rank and name it in a warning (`stall.rs`). A rank is at rest when none of
//! its threads touches shared memory. While one is inside a read, the others wait for storage, with
//! its limit.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::dataset::shuffle_quality;
use crate::error::Error;
use crate::host::Host;
use crate::host::warnings::Warnings;
use crate::loader::elsewhere::{self, RankWait};
use crate::loader::{Consumer, Engine};
use crate::pipeline::gather::reattach;
use crate::pipeline::session::{ATTENTION, Session};
use crate::pipeline::threads;
use crate::shm::counters::monotonic_ns;
use crate::shm::position::{Position, SessionId};
use crate::shm::region::RankSlot;
use crate::shm::stall::{Actor, StallCause};
use crate::shm::wait_clock::WaitClock;

impl Engine {
    /// Begins an iteration at a step of an epoch and returns its number; all earlier iterations
    /// become stale.
    pub fn start(&self, epoch: u64, step: u64, caller: &dyn Host) -> Result<u64, Error> {
        let mut consumer = self.consumer()?;
        consumer.iteration += 1;
        self.begin_at(&mut consumer, epoch, step, caller)?;
        Ok(consumer.iteration)
    }

    fn begin_at(
        &self,
        consumer: &mut Consumer,
        epoch: u64,
        step: u64,
        caller: &dyn Host,
    ) -> Result<(), Error> {
        elsewhere::is_here(&self.context);
        let wrong = |message| Err(Error::Options { message, hint: String::new() });
        let steps = self.steps_per_epoch();
        if step > steps {
            return wrong(format!("the start is after the end of the epoch: step {step} of {steps} steps"));
        }
        let last = self.last_epoch();
        if epoch > last {
            return wrong(format!("epoch {epoch} is too large (at most {last} for this dataset)"));
        }
        let end = (epoch + 1) * steps;
        let target = end - steps + step;
        self.check_liveness(caller, || "found before an iteration".into())?;
        self.warn_of_epochs(consumer, epoch + 1, caller);
        self.hold_memory()?;
        consumer.last_return = None;
        consumer.failed = None;
        // The rest of a start that was interrupted.
        if consumer.agreed.is_some() {
            let agreed = self.begin_agreed(consumer, caller)?;
            if agreed == (target, end) {
                return Ok(());
            }
            self.detach(consumer);
        }
        // A start that succeeded just before it was interrupted.
        if !consumer.detached && (consumer.step, consumer.end) == (target, end) {
            return Ok(());
        }
        match consumer.session.clone() {
            Some(session) if target == consumer.end => self.continue_session(consumer, &session, end, caller),
            _ => self.begin_session(consumer, target, end, caller),
        }
    }

    /// Warns, once and on one rank of the job, if there are too many epochs for the groups of the
    /// order.
    fn warn_of_epochs(&self, consumer: &mut Consumer, begun: u64, caller: &dyn Host) {
        let context = &self.context;
        let epochs = self.epochs.fetch_max(begun, Ordering::Relaxed).max(begun);
        if consumer.warned_shuffle || context.options.rank != 0 {
            return;
        }
        if let Some(text) = shuffle_quality::warning(&context.order, epochs, &context.index) {
            consumer.warned_shuffle = true;
            caller.warn(&format!("loader \"{}\": {text}", context.options.name));
        }
    }

    /// Continues with the next epoch of the session.
    fn continue_session(
        &self,
        consumer: &mut Consumer,
        session: &Session,
        end: u64,
        caller: &dyn Host,
    ) -> Result<(), Error> {
        let target = consumer.end;
        if consumer.step != target {
            self.detach(consumer);
        }
        if consumer.detached {
            // A thread inside a read may still copy staging bytes, which the others no longer
            // protect.
            let pages =
                || "pages of the dataset that are not in memory, which a void batch still needs".into();
            self.wait_for_storage(caller, pages, || session.cancel_detach())?;
        }
        self.publish_reached(session.number, end);
        self.check_same_start(consumer, session.number, target)?;
        self.context.buffers.ring.claim_up_to(self.context.wanted_end(end));
        if consumer.detached {
            // The node continued the session while this rank was detached.
            reattach(session, target);
            self.context.buffers.ring.resume(target);
            self.context.notify_all();
            consumer.detached = false;
        }
        consumer.step = target;
        consumer.end = end;
        self.report_start(consumer, target);
        Ok(())
    }

    /// Goes through the agreements of a new session.
    fn begin_session(
        &self,
        consumer: &mut Consumer,
        target: u64,
        end: u64,
        caller: &dyn Host,
    ) -> Result<(), Error> {
        let context = &self.context;
        let current = consumer.sessions;
        let number = current.next();
        self.detach(consumer);
        context.slot().want.store(Position::new(number, target).word(), Ordering::SeqCst);
        context.notify_all();
        let own_end = consumer.end;
        let want = |slot: &RankSlot| Position::from_word(slot.want.load(Ordering::SeqCst));
        let went_on = |slot: &RankSlot| {
            let reached = Position::from_word(slot.reached.load(Ordering::SeqCst));
            want(slot).session() < number && reached.session() == current && reached.step() > own_end
        };
        self.wait_for_others(caller, |slot| want(slot).session() >= number || went_on(slot))?;
        // Also compare ranks that left: a rank may have left because of this very conflict.
        for (local, slot) in context.region.ranks().iter().enumerate() {
            let other = want(slot);
            if other.session() == number && other.step() != target {
                self.report_conflict(consumer, target, local, other)?;
            }
            if went_on(slot) {
                let reached = Position::from_word(slot.reached.load(Ordering::SeqCst));
                let begun = reached.step().saturating_sub(self.steps_per_epoch());
                self.report_conflict(consumer, target, local, Position::new(number, begun))?;
            }
        }
        if let Some(session) = consumer.session.take() {
            session.end();
            consumer.ending = Some(session);
        }
        consumer.sessions = number;
        consumer.agreed = Some((target, end));
        let context = Arc::clone(context);
        let rest = move || {
            context.slot().quiet.store(number.0, Ordering::SeqCst);
            context.notify_all();
        };
        match &consumer.ending {
            Some(session) => session.when_out(Box::new(rest)),
            None => rest(),
        }
        self.begin_agreed(consumer, caller).map(drop)
    }

    /// Waits until all ranks are at rest and begins the session that was agreed on; returns its
    /// first step and its epoch's end.
    fn begin_agreed(&self, consumer: &mut Consumer, caller: &dyn Host) -> Result<(u64, u64), Error> {
        let context = &self.context;
        let number = consumer.sessions;
        let agreed = consumer.agreed.expect("a session was agreed on");
        let (target, end) = agreed;
        let not_at_rest =
            || context.present().find(|(_, slot)| SessionId(slot.quiet.load(Ordering::Acquire)) < number);
        self.wait_for_rest(caller, || not_at_rest().map(|(local, _)| local))?;
        consumer.ending = None;
        self.publish_reached(number, end);
        consumer.session = Some(threads::begin(Arc::clone(context), number, target, end)?);
        consumer.agreed = None;
        consumer.detached = false;
        consumer.filling = true;
        consumer.step = target;
        consumer.end = end;
        self.report_start(consumer, target);
        Ok(agreed)
    }

    /// Reports to the other nodes where all ranks of this one began.
    fn report_start(&self, consumer: &mut Consumer, target: u64) {
        consumer.begun = target;
        if let Some(links) = &self.context.links {
            self.context.region.conflict().clear();
            links.started(target);
        }
    }

    fn publish_reached(&self, session: SessionId, end: u64) {
        self.context.slot().reached.store(Position::new(session, end).word(), Ordering::SeqCst);
        self.context.notify_all();
    }

    /// Checks that no rank of this node and no other node began the iteration at a different step,
    /// as far as known.
    pub(crate) fn check_same_epoch(&self, consumer: &mut Consumer) -> Result<(), Error> {
        if let Some(conflict) = self.context.region.conflict().at(consumer.begun) {
            let node = self.failure_detector.nodes.as_ref().and_then(|nodes| nodes.0.get(conflict.node));
            let node = node.map_or("unknown", |facts| facts.name.as_str());
            return Err(self.disagree(conflict.own, &format!("node {node}"), conflict.theirs));
        }
        let begun = consumer.end.saturating_sub(self.steps_per_epoch());
        match &consumer.session {
            Some(session) if !consumer.detached => {
                let number = session.number;
                self.check_same_start(consumer, number, begun)
            }
            _ => Ok(()),
        }
    }

    /// Fails if a rank requested another step than `target` for the start at which this one
    /// continued session `number`.
    fn check_same_start(&self, consumer: &mut Consumer, number: SessionId, target: u64) -> Result<(), Error> {
        let want = |slot: &RankSlot| Position::from_word(slot.want.load(Ordering::SeqCst));
        let wants_other = |slot: &RankSlot| {
            let reached = Position::from_word(slot.reached.load(Ordering::SeqCst));
            want(slot).session() > number && reached.session() == number && reached.step() <= target
        };
        for (local, slot) in self.context.region.ranks().iter().enumerate() {
            if wants_other(slot) {
                self.report_conflict(consumer, target, local, want(slot))?;
            }
        }
        Ok(())
    }

    /// Fails because the rank at `local` starts at `other`. Reports each start of a rank that left
    /// once, so that the remaining ranks can agree on another one.
    fn report_conflict(
        &self,
        consumer: &mut Consumer,
        target: u64,
        local: usize,
        other: Position,
    ) -> Result<(), Error> {
        if self.context.region.ranks()[local].left.load(Ordering::Acquire) != 0 {
            let seen = (local, other.word());
            if consumer.reported.contains(&seen) {
                return Ok(());
            }
            consumer.reported.push(seen);
        }
        let rank = format!("rank {}", self.context.options.local_ranks[local]);
        Err(self.disagree(target, &rank, other.step()))
    }

    fn disagree(&self, own: u64, other: &str, theirs: u64) -> Error {
        let steps = self.steps_per_epoch().max(1);
        Error::disagree(format!(
            "ranks disagree on the iteration start: rank {} at epoch {} step {}, {other} at epoch {} step {}",
            self.context.options.rank,
            own / steps,
            own % steps,
            theirs / steps,
            theirs % steps,
        ))
    }

    /// Waits until all active ranks are ready to continue; warns about late ones.
    fn wait_for_others(&self, caller: &dyn Host, ready: impl Fn(&RankSlot) -> bool) -> Result<(), Error> {
        let context = &self.context;
        let missing = || context.active().find(|(_, slot)| !ready(slot)).map(|(local, _)| local);
        let begun = Instant::now();
        let mut warnings = Warnings::before(self.limit());
        let mut wait = RankWait::new(context);
        while let Some(local) = missing() {
            let waited =
                || format!("waiting for {} to start at the same epoch and step", self.name_of(local));
            self.check_liveness(caller, waited)?;
            wait.check(Some(local), |local| self.name_of(local))?;
            if warnings.is_due(begun.elapsed()) {
                let text = format!("{}; {}", waited(), self.if_alone(local));
                self.warn_of_wait(caller, begun.elapsed(), &text);
            }
            context.region.gathered().wait(|| missing().is_none(), ATTENTION);
        }
        Ok(())
    }

    /// Waits until all ranks are at rest. The wait for a rank with a thread inside a read counts as
    /// a wait for storage.
    fn wait_for_rest(&self, caller: &dyn Host, not_at_rest: impl Fn() -> Option<usize>) -> Result<(), Error> {
        let cause = |now_ns: u64| {
            let local = not_at_rest().unwrap_or(self.context.local_rank());
            self.context.node(SessionId::default(), now_ns).cause_of_unrest(local)
        };
        self.wait_with_limit(
            caller,
            cause,
            || not_at_rest().is_none(),
            |cause| match cause {
                StallCause::Storage { actor: Actor::Rank(local), .. } => {
                    format!(
                        "waiting for storage to answer the reads of {}, which were given up",
                        self.name_of(local)
                    )
                }
                StallCause::Rank { local, .. } => {
                    format!("waiting for {} to come to rest", self.name_of(local))
                }
                _ => "waiting for the other ranks to come to rest".into(),
            },
        )
    }

    /// Waits for something that this process's own threads do after storage answers.
    fn wait_for_storage(
        &self,
        caller: &dyn Host,
        what: impl Fn() -> String,
        ready: impl Fn() -> bool,
    ) -> Result<(), Error> {
        let actor = Actor::Rank(self.context.local_rank());
        let cause = |until_ns: u64| StallCause::Storage { actor, since_ns: 0, until_ns };
        self.wait_with_limit(caller, cause, ready, |_| format!("waiting for {}", what()))
    }

    fn wait_with_limit(
        &self,
        caller: &dyn Host,
        cause: impl Fn(u64) -> StallCause,
        ready: impl Fn() -> bool,
        description: impl Fn(StallCause) -> String,
    ) -> Result<(), Error> {
        let context = &self.context;
        let begun = Instant::now();
        let mut warnings = Warnings::before(self.limit());
        let mut waited = WaitClock::new(monotonic_ns());
        while !ready() {
            // No thread of a session publishes it now.
            context.is_alive();
            let now_ns = monotonic_ns();
            let cause = cause(now_ns);
            self.check_liveness(caller, || description(cause))?;
            if warnings.is_due(begun.elapsed()) {
                self.warn_of_wait(caller, begun.elapsed(), &description(cause));
            }
            if waited.count(now_ns, cause) >= self.limit() {
                return Err(Error::Timeout { seconds: context.options.timeout_s, what: description(cause) });
            }
            context.region.gathered().wait(&ready, ATTENTION);
        }
        Ok(())
    }

    /// Maximum stall of storage.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(self.context.options.timeout_s)
    }

    pub(crate) fn warn_of_wait(&self, caller: &dyn Host, elapsed: Duration, description: &str) {
        let name = &self.context.options.name;
        caller.warn(&format!("loader \"{name}\": no batch for {} s, {description}", elapsed.as_secs()));
    }

    /// What to do if a rank takes no part, as in an evaluation on one rank.
    pub(crate) fn if_alone(&self, local: usize) -> String {
        format!(
            "if rank {} does not iterate this loader, as in an evaluation on one rank, make it with world=\"single\"",
            self.context.options.local_ranks[local]
        )
    }

    /// A rank of this node, for messages.
    pub(crate) fn name_of(&self, local: usize) -> String {
        let options = &self.context.options;
        let peer = self.failure_detector.membership.peers().nth(local);
        let rank =
            peer.map_or_else(|| format!("rank {}", options.local_ranks[local]), |peer| peer.to_string());
        format!("{rank} on node {}", options.node)
    }
}
